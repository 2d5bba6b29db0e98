use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::resource::Resource;

fn compiled(message_data: &Json) -> Payload {
    Payload::compile(message_data, Leaves::Paths).unwrap_or_else(|errors| panic!("{message_data}: {errors:?}"))
}

/// Fills a payload in; only expressions look at more than the JSON.
fn build(payload: &Payload, resource: &Json) -> Built {
    let view = Resource::parse(r#"{"id":"r","generation":2,"status":{"observed_generation":1}}"#).unwrap();
    payload.build(Facts { resource, view: &view, now: Timestamp::UNIX_EPOCH }, "why")
}

/// The data as text, and what was missing as `field path`.
fn built(message_data: &Json, resource: &Json) -> (String, Vec<String>) {
    let built = build(&compiled(message_data), resource);
    assert_eq!(built.errors, vec![], "{message_data}");
    (built.data.get().to_owned(), built.missing.iter().map(|m| format!("{} {}", m.field, m.path)).collect())
}

/// Every problem as `field: problem`.
fn problems(message_data: &Json) -> Vec<String> {
    Payload::compile(message_data, Leaves::Paths).expect_err("accepted").iter().map(ToString::to_string).collect()
}

/// A cluster as the specification's API serves it.
fn seed_cluster() -> Json {
    json!({
        "id": "cls-123", "kind": "Cluster", "generation": 2,
        "metadata": {"name": "prod-1", "labels": {"region": "us-east", "cluster-type": "hypershift"}},
        "status": {"phase": "Ready", "observed_generation": 2}
    })
}

/// A node pool as today's API serves it.
fn node_pool() -> Json {
    json!({
        "id": "019a0c5e-0000-7000-8000-000000000001", "kind": "NodePool", "name": "np-a",
        "href": "/api/hyperfleet/v1/clusters/c1/nodepools/n1", "generation": 3,
        "labels": {"region": "us-east", "cluster-type": "hypershift", "example.com/tier": "gold"},
        "spec": {"replicas": 4, "ratio": 0.5, "zones": ["a", "b"], "autoscale": true, "note": null},
        "owner_references": {"id": "c1", "kind": "Cluster", "href": "/api/hyperfleet/v1/clusters/c1"},
        "status": {"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "Reconciled", "status": "False"}
        ]}
    })
}

#[test]
fn the_specification_s_sample_gives_its_resulting_data() {
    let message_data = json!({"resource_id": ".id", "region": ".metadata.labels.region"});
    let resource = json!({"id": "cls-123", "metadata": {"labels": {"region": "us-east"}}});
    assert_eq!(built(&message_data, &resource), (r#"{"resource_id":"cls-123","region":"us-east"}"#.to_owned(), vec![]));
}

#[test]
fn the_specification_s_display_name_falls_back_to_the_name() {
    let message_data = json!({
        "display_name": "{{if .metadata.displayName}}{{.metadata.displayName}}{{else}}{{.metadata.name}}{{end}}"
    });
    let mut cluster = seed_cluster();
    assert_eq!(built(&message_data, &cluster), (r#"{"display_name":"prod-1"}"#.to_owned(), vec![]));
    cluster["metadata"]["displayName"] = json!("Production");
    assert_eq!(built(&message_data, &cluster), (r#"{"display_name":"Production"}"#.to_owned(), vec![]));
    assert_eq!(built(&message_data, &node_pool()), (r#"{"display_name":"np-a"}"#.to_owned(), vec![]));
    let nameless = (r#"{"display_name":""}"#.to_owned(), vec!["display_name .metadata.name".to_owned()]);
    assert_eq!(built(&message_data, &json!({})), nameless);
}

#[test]
fn paths_keep_json_types_and_templates_yield_strings() {
    let message_data = json!({
        "generation": ".generation", "text": "{{.generation}}", "ratio": ".spec.ratio", "zones": ".spec.zones",
        "on": ".spec.autoscale", "labels": ".labels", "joined": "{{range .spec.zones}}{{.}};{{end}}"
    });
    let labels = r#"{"region":"us-east","cluster-type":"hypershift","example.com/tier":"gold"}"#;
    let data = format!(
        r#"{{"generation":3,"text":"3","ratio":0.5,"zones":["a","b"],"on":true,"labels":{labels},"joined":"a;b;"}}"#
    );
    assert_eq!(built(&message_data, &node_pool()), (data, vec![]));
}

#[test]
fn the_specification_s_paths_resolve_against_both_shapes() {
    let message_data = json!({
        "region": ".metadata.labels.region", "type": ".metadata.labels.cluster-type", "name": ".metadata.name",
        "cluster_id": ".ownerResource.id", "phase": ".status.phase", "kind": ".kind"
    });
    let (data, missing) = built(&message_data, &seed_cluster());
    let expected =
        r#"{"region":"us-east","type":"hypershift","name":"prod-1","cluster_id":"","phase":"Ready","kind":"Cluster"}"#;
    assert_eq!((data.as_str(), missing), (expected, vec!["cluster_id .ownerResource.id".to_owned()]));

    let (data, missing) = built(&message_data, &node_pool());
    let expected = r#"{"region":"us-east","type":"hypershift","name":"np-a","cluster_id":"c1","phase":"NotReady","kind":"NodePool"}"#;
    assert_eq!((data.as_str(), missing), (expected, vec![]));

    let in_templates = json!({
        "all": "{{.metadata.labels.region}} {{$.metadata.name}} {{.ownerResource.id}} {{.ownerResource.kind}} {{.status.phase}}",
        "with": "{{with .ownerResource}}{{.id}}{{end}}{{if eq .status.phase \"NotReady\"}}!{{end}}{{index .metadata.labels \"example.com/tier\"}}"
    });
    let expected = r#"{"all":"us-east np-a c1 Cluster NotReady","with":"c1!gold"}"#.to_owned();
    assert_eq!(built(&in_templates, &node_pool()), (expected, vec![]));
}

#[test]
fn what_is_written_wins_over_the_other_shape() {
    let resource = json!({
        "metadata": {"name": "written", "labels": {"a": "written", "null": null}}, "name": "other",
        "labels": {"a": "other", "b": "other", "null": "other"},
        "ownerResource": {"id": "written"}, "owner_references": {"id": "other", "kind": "other"},
        "status": {"phase": "Written", "conditions": [{"type": "Reconciled", "status": "True"}]}
    });
    let message_data = json!({
        "name": ".metadata.name", "a": ".metadata.labels.a", "b": ".metadata.labels.b", "null": ".metadata.labels.null",
        "id": ".ownerResource.id", "kind": ".ownerResource.kind", "phase": ".status.phase"
    });
    let data =
        r#"{"name":"written","a":"written","b":"other","null":"","id":"written","kind":"other","phase":"Written"}"#;
    assert_eq!(built(&message_data, &resource), (data.to_owned(), vec!["null .metadata.labels.null".to_owned()]));
}

#[test]
fn the_phase_comes_from_reconciled_else_from_ready() {
    let message_data = json!({"phase": ".status.phase"});
    let of = |conditions: Json| built(&message_data, &json!({"status": {"conditions": conditions}})).0;
    let condition = |name: &str, status: &str| json!({"type": name, "status": status});
    let all = [
        (json!([condition("Reconciled", "True")]), "Ready"),
        (json!([condition("Reconciled", "False")]), "NotReady"),
        (json!([condition("Reconciled", "Unknown")]), "NotReady"),
        (json!([condition("Ready", "True")]), "Ready"),
        (json!([condition("Ready", "False")]), "NotReady"),
        (json!([condition("Ready", "False"), condition("Reconciled", "True")]), "Ready"),
        (json!([condition("Ready", "True"), condition("Reconciled", "False")]), "NotReady"),
        (json!([{"type": "Reconciled"}]), "NotReady"),
        (json!([condition("DnsSuccessful", "True")]), ""),
        (json!([]), ""),
        (json!("x"), ""),
        (Json::Null, ""),
    ];
    for (conditions, phase) in all {
        assert_eq!(of(conditions.clone()), format!(r#"{{"phase":"{phase}"}}"#), "{conditions}");
    }
    let deeper =
        json!({"a": ".status.phase.x", "b": ".status.other", "c": ".phase", "d": ".metadata.kind", "e": ".metadata"});
    assert_eq!(built(&deeper, &node_pool()).0, r#"{"a":"","b":"","c":"","d":"","e":""}"#);
}

#[test]
fn the_default_payload_is_what_today_s_adapters_read() {
    let built = build(&Payload::default_payload(), &node_pool());
    let expected = concat!(
        r#"{"id":"019a0c5e-0000-7000-8000-000000000001","kind":"NodePool","href":"/api/hyperfleet/v1/clusters/c1/nodepools/n1","#,
        r#""generation":3,"owner_references":{"id":"c1","kind":"Cluster","href":"/api/hyperfleet/v1/clusters/c1"}}"#
    );
    assert_eq!((built.data.get(), built.missing, built.errors), (expected, vec![], vec![]));
}

#[test]
fn the_default_payload_leaves_out_an_absent_owner() {
    for resource in [
        json!({"id": "a", "kind": "Cluster", "href": "/a", "generation": 1}),
        json!({"id": "a", "kind": "Cluster", "href": "/a", "generation": 1, "owner_references": null}),
    ] {
        let built = build(&Payload::default_payload(), &resource);
        assert_eq!(built.data.get(), r#"{"id":"a","kind":"Cluster","href":"/a","generation":1}"#);
        assert_eq!(built.missing, vec![]);
    }
    let built = build(&Payload::default_payload(), &json!({"id": "a", "kind": "Cluster"}));
    assert_eq!(built.data.get(), r#"{"id":"a","kind":"Cluster","href":"","generation":""}"#);
    let missing: Vec<_> = built.missing.iter().map(|m| (m.field.as_ref(), m.path.as_str())).collect();
    assert_eq!(missing, [("href", ".href"), ("generation", ".generation")]);
}

#[test]
fn maps_and_lists_nest_and_keep_their_order_and_case() {
    let message_data = json!({
        "zeta": ".id", "resourceId": ".id", "Alpha": {"z": ".kind", "a": [".generation", "{{.kind}}!", 1, true, {"deep": ".kind"}]},
        "emptyList": [], "emptyMap": {}, "number": 1.5, "off": false
    });
    let data = r#"{"zeta":"cls-123","resourceId":"cls-123","Alpha":{"z":"Cluster","a":[2,"Cluster!",1,true,{"deep":"Cluster"}]},"emptyList":[],"emptyMap":{},"number":1.5,"off":false}"#;
    assert_eq!(built(&message_data, &seed_cluster()), (data.to_owned(), vec![]));
}

#[test]
fn what_is_missing_is_empty_and_reported_once_per_field() {
    let message_data = json!({
        "plain": ".gone", "again": ".gone", "deep": {"list": [".a.b.c", "{{.x}}{{.x}}{{.y}}"]}, "null": ".spec.note", "through": ".id.x",
        "item": ".spec.zones.0", "asked": "{{if .gone}}x{{end}}"
    });
    let (data, missing) = built(&message_data, &node_pool());
    assert_eq!(data, r#"{"plain":"","again":"","deep":{"list":["",""]},"null":"","through":"","item":"","asked":""}"#);
    let expected = [
        "plain .gone",
        "again .gone",
        "deep.list[0] .a.b.c",
        "deep.list[1] .x",
        "deep.list[1] .y",
        "null .spec.note",
        "through .id.x",
        "item .spec.zones.0",
    ];
    assert_eq!(missing, expected);
}

#[test]
fn a_template_that_fails_leaves_its_field_empty_and_the_rest_whole() {
    let message_data = json!({
        "id": ".id", "bad": "before {{index .spec.zones 7}} after", "worse": {"x": "{{lt .generation .kind}}"}, "kind": ".kind"
    });
    let built = build(&compiled(&message_data), &node_pool());
    let data = r#"{"id":"019a0c5e-0000-7000-8000-000000000001","bad":"","worse":{"x":""},"kind":"NodePool"}"#;
    assert_eq!(built.data.get(), data);
    let errors: Vec<_> = built.errors.iter().map(|e| format!("{e}: {}", e.source)).collect();
    assert_eq!(
        errors,
        [
            "build field bad of the payload: line 1, column 10: index: index out of range: 7",
            "build field worse.x of the payload: line 1, column 3: lt: incompatible types for comparison: int64 and string"
        ]
    );
}

#[test]
fn every_problem_of_every_field_is_reported() {
    let message_data = json!({
        "ok": ".id", "null": null, "empty": "", "blank": "  \n", "literal": "id", "cel": "resource.id", "path": ".a..b", "slash": ".labels.a/b",
        "template": "{{.a}", "unsupported": "{{html .a}}", "nested": {"list": [".ok", "no", {"x": null}]}
    });
    let expected = [
        "message_data.null: has no value: give a path such as .id, or leave the key out",
        "message_data.empty: has no value: give a path such as .id, or leave the key out",
        "message_data.blank: has no value: give a path such as .id, or leave the key out",
        r#"message_data.literal: "id" is neither a path nor a template: a path begins with a dot (.id), a literal needs {{ "id" }}"#,
        r#"message_data.cel: "resource.id" is neither a path nor a template: a path begins with a dot (.id), a literal needs {{ "resource.id" }}"#,
        r#"message_data.path: ".a..b" is not a path: segments are letters, digits, _ and -; for any other key write {{ index .labels "a.b/c" }}"#,
        r#"message_data.slash: ".labels.a/b" is not a path: segments are letters, digits, _ and -; for any other key write {{ index .labels "a.b/c" }}"#,
        r#"message_data.template: template: line 1, column 3, at ".a}": bad character '}'"#,
        r#"message_data.unsupported: template: line 1, column 3, at "html": the function html is not supported; supported are"#,
        r#"message_data.nested.list[1]: "no" is neither a path nor a template: a path begins with a dot (.no), a literal needs {{ "no" }}"#,
        "message_data.nested.list[2].x: has no value: give a path such as .id, or leave the key out",
    ];
    let problems = problems(&message_data);
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for (problem, expected) in problems.iter().zip(expected) {
        assert!(problem.starts_with(expected), "{problem}");
    }
}

#[test]
fn message_data_is_a_map_with_at_least_one_field() {
    for message_data in [json!({}), json!([".id"]), json!(".id"), json!(null), json!(1)] {
        assert_eq!(problems(&message_data), ["message_data: must be a map from field names to paths or templates"]);
    }
}

#[test]
fn message_data_nests_to_a_bound() {
    let nested = |n: usize| (0..n).fold(json!(".id"), |inner, _| json!({"a": inner}));
    assert!(Payload::compile(&nested(MAX_DEPTH), Leaves::Paths).is_ok());
    let problems = problems(&nested(MAX_DEPTH + 1));
    assert_eq!(problems.len(), 1);
    assert!(problems[0].ends_with(".a.a: nests deeper than 32"), "{problems:?}");
}

#[test]
fn blanks_around_a_path_do_not_matter_and_in_a_template_do() {
    let message_data =
        json!({"path": " .kind\n", "template": " {{.kind}} ", "constant": "{{ \"text\" }}", "whole": "."});
    let data = r#"{"path":"Cluster","template":" Cluster ","constant":"text","whole":{"kind":"Cluster"}}"#;
    assert_eq!(built(&message_data, &json!({"kind": "Cluster"})), (data.to_owned(), vec![]));
}

#[test]
fn unicode_control_characters_and_huge_values_arrive_unharmed() {
    let text = "Zürich 日本 🔥 \u{0}\u{1}\u{7f}\u{2028}\"\\/<>&\t\r\n";
    let huge = "x".repeat(5_000_000);
    let resource = json!({"t": text, "huge": huge, "ключ": "v", "min": i64::MIN, "max": u64::MAX, "e": 1e300});
    let message_data = json!({
        "path": ".t", "template": "{{.t}}", "huge": ".huge", "clé\n": ".ключ", "unicode": "{{.ключ}}", "min": ".min", "max": ".max", "e": ".e"
    });
    let built = build(&compiled(&message_data), &resource);
    let data: Json = serde_json::from_str(built.data.get()).unwrap();
    let expected = json!({
        "path": text, "template": text, "huge": huge, "clé\n": "v", "unicode": "v", "min": i64::MIN, "max": u64::MAX, "e": 1e300
    });
    assert_eq!(data, expected);
}

#[test]
fn a_template_over_a_huge_value_is_an_error_and_the_event_goes_out() {
    let resource = json!({"id": "a", "huge": "x".repeat(2_000_000)});
    let built = build(&compiled(&json!({"id": ".id", "huge": "{{.huge}}"})), &resource);
    assert_eq!(built.data.get(), r#"{"id":"a","huge":""}"#);
    assert!(built.errors[0].source.what.contains("larger than"), "{:?}", built.errors);
}

#[test]
fn any_resource_builds_whatever_its_type() {
    let message_data = json!({"id": ".id", "t": "{{.id}}", "name": ".metadata.name", "phase": "{{.status.phase}}"});
    for resource in [json!({}), json!(null), json!([1]), json!("text"), json!(3)] {
        let built = build(&compiled(&message_data), &resource);
        assert_eq!(built.data.get(), r#"{"id":"","t":"","name":"","phase":""}"#);
    }
}

#[test]
fn top_level_fields_are_the_real_names_aliases_included() {
    let all = [
        (json!({"a": ".id", "b": {"c": [".kind", 1]}}), Some("id kind")),
        (json!({"a": ".metadata.labels.x"}), Some("labels metadata")),
        (json!({"a": "{{.metadata.labels.x}}"}), Some("labels metadata")),
        (json!({"a": ".metadata.labels"}), Some("labels metadata")),
        (json!({"a": ".metadata.name"}), Some("metadata name")),
        (json!({"a": ".metadata.other"}), Some("metadata")),
        (json!({"a": ".metadata"}), Some("metadata")),
        (json!({"a": ".ownerResource.id"}), Some("ownerResource owner_references")),
        (json!({"a": "{{$.ownerResource}}"}), Some("ownerResource owner_references")),
        (json!({"a": ".status.phase", "b": "{{if .spec}}{{.id}}{{end}}"}), Some("id spec status")),
        (json!({"a": 1}), Some("")),
        (json!({"a": ".id", "b": "."}), None),
        (json!({"a": ".id", "b": ["{{.}}"]}), None),
        (json!({"a": ".id", "b": {"c": "{{range $k, $v := $}}{{$k}}{{end}}"}}), None),
    ];
    for (message_data, expected) in all {
        let fields = compiled(&message_data).top_level_fields();
        let fields = fields.map(|fields| fields.into_iter().collect::<Vec<_>>().join(" "));
        assert_eq!(fields.as_deref(), expected, "{message_data}");
    }
    let fields = Payload::default_payload().top_level_fields().unwrap();
    assert_eq!(fields.into_iter().collect::<Vec<_>>(), ["generation", "href", "id", "kind", "owner_references"]);
}

/// Any JSON, with the keys that paths and templates below ask for among its own.
fn any_json() -> impl Strategy<Value = Json> {
    let key = prop_oneof!["a|b|metadata|labels|name|status|conditions|ownerResource|owner_references", any::<String>()];
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        any::<String>().prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 64, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Json::from),
            prop::collection::vec((key.clone(), inner), 0..6)
                .prop_map(|entries| Json::Object(entries.into_iter().collect())),
        ]
    })
}

fn any_leaf() -> impl Strategy<Value = String> {
    prop_oneof![
        r"(\.(a|b|metadata|labels|name|status|phase|ownerResource|no-such)){1,4}",
        any::<String>(),
        Just("{{.}}{{range .a}}{{.}}{{end}}".to_owned()),
        Just("{{printf \"%q %v %d\" .a .b .metadata.name}}{{index .a 0}}".to_owned()),
        Just("{{with .a}}{{.b}}{{else}}{{.status.phase}}{{end}}".to_owned()),
    ]
}

/// The data, and what was left out as `field why`.
fn expressed(message_data: &Json, resource: &Json) -> (String, Vec<String>) {
    let payload =
        Payload::compile(message_data, Leaves::Mixed).unwrap_or_else(|errors| panic!("{message_data}: {errors:?}"));
    let built = build(&payload, resource);
    let why = |failure: &Option<Failure>| failure.as_ref().map_or_else(|| "null".to_owned(), ToString::to_string);
    let omitted = built.omitted.iter().map(|omitted| format!("{} {}", omitted.field, why(&omitted.failure)));
    (built.data.get().to_owned(), omitted.collect())
}

#[test]
fn an_expression_keeps_its_type_and_sees_what_the_decision_saw() {
    let message_data = json!({
        "resourceId": "resource.id", "generation": "resource.generation", "why": "reason", "replicas": "resource.spec.replicas",
        "double": "resource.spec.replicas * 2.0", "zones": "resource.spec.zones", "now": "now",
        "ready": "condition(\"Ready\").status == \"True\"", "seen": "summary().observed_generation",
        "source": "\"sentinel\"", "n": 5, "on": true, "nested": {"region": "resource.labels.region.upperAscii()"},
        "age": "duration(\"90m\")",
    });
    let (data, omitted) = expressed(&message_data, &node_pool());
    assert_eq!(omitted, [""; 0]);
    assert_eq!(
        data,
        r#"{"resourceId":"019a0c5e-0000-7000-8000-000000000001","generation":3,"why":"why","replicas":4,"double":8,"zones":["a","b"],"now":"1970-01-01T00:00:00Z","ready":true,"seen":1,"source":"sentinel","n":5,"on":true,"nested":{"region":"US-EAST"},"age":5400000000000}"#
    );
}

#[test]
fn an_expression_without_a_value_leaves_its_key_out() {
    let message_data = json!({
        "id": "resource.id", "note": "resource.spec.note", "gone": "resource.spec.gone",
        "owner": {"id": "resource.nobody.id", "kind": "resource.nobody.kind"}, "list": ["resource.nobody", "resource.kind"],
    });
    let (data, omitted) = expressed(&message_data, &node_pool());
    assert_eq!(data, r#"{"id":"019a0c5e-0000-7000-8000-000000000001","list":["NodePool"]}"#);
    assert_eq!(
        omitted,
        [
            "note null",
            "gone line 1, column 1: there is no \"gone\"",
            "owner.id line 1, column 1: there is no \"nobody\"",
            "owner.kind line 1, column 1: there is no \"nobody\"",
            "list[0] line 1, column 1: there is no \"nobody\"",
        ]
    );
}

#[test]
fn what_a_text_is_depends_on_the_form_and_on_the_decision() {
    let message_data = json!({"path": ".kind", "template": "{{.kind}}!", "expression": "resource.kind + \"?\""});
    let (data, _) = expressed(&message_data, &node_pool());
    assert_eq!(data, r#"{"path":"NodePool","template":"NodePool!","expression":"NodePool?"}"#);
    assert_eq!(problems(&message_data).len(), 1);
}

#[test]
fn an_expression_that_cannot_be_used_names_its_field() {
    let message_data = json!({"id": " ", "a": {"b": "resource.id + 1"}, "c": "nope", "d": ["nope + nap"]});
    let errors = Payload::compile(&message_data, Leaves::Mixed).unwrap_err();
    let text: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert!(text[0].starts_with("message_data.id: has no value"), "{text:?}");
    assert!(text[1].starts_with("message_data.a.b: expression: line 1, column 1: + cannot take"), "{text:?}");
    assert!(text[2].starts_with("message_data.c: expression: line 1, column 1: nope is not known"), "{text:?}");
    // All that is wrong with one of them.
    assert!(text[3].starts_with("message_data.d[0]: expression: line 1, column 1: nope is not known"), "{text:?}");
    assert!(text[4].starts_with("message_data.d[0]: expression: line 1, column 8: nap is not known"), "{text:?}");
    assert_eq!(text.len(), 5, "{text:?}");
}

#[test]
fn what_expressions_read_is_known() {
    let fields = |data: Json| Payload::compile(&data, Leaves::Mixed).unwrap().top_level_fields();
    let of = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
    assert_eq!(fields(json!({"a": "resource.spec.x", "b": "condition(\"c\").status"})), of(&["spec", "status"]));
    assert_eq!(fields(json!({"a": "resource"})), None);
}

proptest! {
    #[test]
    fn the_output_is_always_a_json_object_with_the_configured_keys(
        resource in any_json(),
        fields in prop::collection::vec((any::<String>(), any_leaf()), 1..6),
    ) {
        let message_data = Json::Object(fields.into_iter().map(|(k, v)| (k, Json::from(v))).collect());
        if let Ok(payload) = Payload::compile(&message_data, Leaves::Paths) {
            let built = build(&payload, &resource);
            let data: Json = serde_json::from_str(built.data.get()).expect("valid JSON");
            let keys: Vec<_> = data.as_object().expect("an object").keys().cloned().collect();
            let configured: Vec<_> = message_data.as_object().unwrap().keys().cloned().collect();
            prop_assert_eq!(keys, configured);
        }
    }

    #[test]
    fn a_bare_path_copies_the_value_as_it_is(value in any_json()) {
        let resource = json!({"spec": {"value": value}});
        let built = build(&compiled(&json!({"v": ".spec.value"})), &resource);
        let expected = if value.is_null() { json!("") } else { value };
        prop_assert_eq!(built.data.get(), format!("{{\"v\":{expected}}}"));
    }
}

/// Values as an API may write them, some of which we would write in another way.
const ODD: &[&str] = &[
    "null",
    "true",
    "false",
    "0",
    "7",
    "-3",
    "1.50",
    "1e3",
    "123456789012345678",
    "18446744073709551615",
    "\"\"",
    "\"plain\"",
    "\"\\u0061\\n\"",
    "\"ä€\"",
    "\"\u{7f}\"",
    "[ 1, {\"b\" : null} ]",
    "{\"z\":1,\"a\":{}, \"z\":2}",
    "{ }",
];

fn of(values: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(values)
}

fn odd_json() -> impl Strategy<Value = String> {
    prop::sample::select(ODD).prop_map(str::to_owned)
}

proptest! {
    #[test]
    fn what_is_copied_is_what_would_be_built(
        served in prop::collection::vec((prop::sample::select(&["id", "a", "b", "\\u0062", "other"][..]), odd_json()), 0..8),
    ) {
        let members: Vec<_> = served.iter().map(|(key, value)| format!("\"{key}\" : {value}")).collect();
        let json = format!("{{{}}}", members.join(" ,\n"));
        let payload = compiled(&json!({"id": ".id", "first": ".a", "again": ".a", "b\"": ".b"}));
        let fields = payload.top_level_fields().unwrap();
        let value = crate::partial::read(&json, Some(&fields)).unwrap();
        let built = build(&payload, &value);
        let copied = payload.copier().unwrap().build(&Served::read(&json, &fields).unwrap());
        prop_assert_eq!(copied.data.get(), built.data.get());
        prop_assert_eq!(copied.missing, built.missing);
    }
}

proptest! {
    #[test]
    fn what_is_read_with_the_view_is_what_would_be_read_for_the_payload(
        id in of(&["\"plain\"", "\"\\u0061\\n\"", "\"ä€\""]), kind in of(&["null", "\"\"", "\"Cluster\"", "\"\\u0061\""]),
        generation in of(&["null", "0", "7", "-3", "9223372036854775807"]), href in odd_json(), owner in odd_json(),
    ) {
        let json = format!(
            r#"{{"id":{id},"generation" : {generation},"kind":{kind} ,"href":{href},"owner_references":{owner}}}"#
        );
        let payload = Payload::default_payload();
        let fields = payload.top_level_fields().unwrap();
        prop_assert!(Served::are_at_top(&fields));
        let (resource, top) = Resource::read(&json).unwrap();
        let read = payload.copier().unwrap().build(&Served::read(&json, &fields).unwrap());
        let at_top = payload.copier().unwrap().build(&Served::at_top(&resource, &top).unwrap());
        prop_assert_eq!(at_top.data.get(), read.data.get());
        prop_assert_eq!(at_top.missing, read.missing);
    }
}

#[test]
fn only_what_is_a_field_of_the_resource_is_copied() {
    for taken in [json!({"id": ".id", "n": ".generation"}), json!({"o": ".owner_references"})] {
        assert!(compiled(&taken).copier().is_some(), "{taken}");
    }
    assert!(Payload::default_payload().copier().is_some());
    for more in [".a.b", ".", ".ownerResource", "{{ .id }}"] {
        assert!(compiled(&json!({"id": ".id", "more": more})).copier().is_none(), "{more}");
    }
    assert!(compiled(&json!({"a": {"id": ".id"}})).copier().is_none());
    for broken in [r#"{"id":"\ud800"}"#, r#"{"id":1e999}"#, r#"{"id":1} x"#, "[]", r#"{"other":}"#] {
        let fields = ["id".to_owned()].into();
        assert!(Served::read(broken, &fields).is_err(), "{broken}");
    }
}
