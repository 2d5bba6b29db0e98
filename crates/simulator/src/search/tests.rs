use super::*;

fn lookup(field: &Field) -> Value<'static> {
    let time = |text: &str| Value::Time(text.parse().unwrap());
    match field {
        Field::Id => Value::Text("m"),
        Field::Name => Value::Text("it's"),
        Field::Kind => Value::Text("Cluster"),
        Field::Generation => Value::Number(3.0),
        Field::CreatedTime => time("2026-07-01T10:00:00Z"),
        Field::UpdatedTime => time("2026-07-01T10:05:00.5Z"),
        Field::Author => Value::Text("system"),
        Field::Label(key) if key == "region" => Value::Text("us-east"),
        Field::Spec(path) if path == &["replicas"] => Value::Owned("3".to_owned()),
        Field::Label(_) | Field::Spec(_) | Field::DeletedTime | Field::OwnerId => Value::Null,
        Field::Condition(ty, _) if ty != "Reconciled" => Value::Null,
        Field::Condition(_, ConditionField::Status) => Value::Text("True"),
        Field::Condition(_, ConditionField::ObservedGeneration) => Value::Number(2.0),
        Field::Condition(..) => time("2026-07-01T10:06:00Z"),
    }
}

#[test]
fn expressions_match_as_the_database_would() {
    for (text, expected) in [
        ("id = 'm'", true),
        ("'m' = id", true),
        ("'a' < id and id < 'z'", true),
        ("id > 'm' or id >= 'm'", true),
        ("id != 'm'", false),
        ("name = 'it''s'", true),
        ("generation > 2 and generation <= 3", true),
        ("generation between 1 and 2", false),
        ("generation in [1, 3]", true),
        ("created_time < '2026-07-01T10:00:01Z'", true),
        ("created_time = 2026-07-01T10:00:00Z", true),
        ("updated_time >= '2026-07-01T10:05:00.500Z'", true),
        ("deleted_time is null", true),
        ("deleted_time is not null", false),
        ("not generation = 4", true),
        ("NOT (generation = 3) OR kind = 'Cluster'", true),
        ("labels.region = 'us-east'", true),
        ("labels.region != 'us-west'", true),
        ("labels.region in ['us-west', 'us-east']", true),
        ("labels.region like 'us-%'", true),
        ("labels.region like 'us-_ast'", true),
        ("labels.region like '%west%'", false),
        ("labels.region like 'US-%'", false),
        ("labels.region ilike 'US-%'", true),
        ("labels.tier is null", true),
        ("labels.tier != 'gold'", false),
        ("labels.tier like '%'", false),
        ("labels.tier in ['gold']", false),
        ("(labels.tier is null or (labels.tier != 'a' and labels.tier != 'b'))", true),
        ("spec.replicas = 3", true),
        ("spec.replicas = '4'", false),
        ("status.conditions.Reconciled = 'True'", true),
        ("status.conditions.Reconciled = 'False'", false),
        ("status.conditions.DnsSuccessful = 'True'", false),
        ("status.conditions.Reconciled.observed_generation < 3", true),
        ("status.conditions.Reconciled.last_updated_time < '2026-07-01T10:06:01Z'", true),
        ("owner_id = 'x'", false),
        ("not owner_id = 'x'", false),
    ] {
        let expr = parse(text).unwrap_or_else(|problem| panic!("{text}: {problem}")).unwrap();
        assert_eq!(expr.matches(&lookup), expected, "{text}");
    }
    assert_eq!(parse("  ").unwrap(), None);
}

#[test]
fn what_the_api_refuses_is_refused_in_its_words() {
    for (text, detail) in [
        ("labels.cluster-type='gpu'", "unsupported comparison operator: SUB"),
        ("id = 'a' and labels.a-b in ['c']", "unsupported comparison operator: SUB"),
        ("not labels.region='us-east'", "NOT operator is not supported with label queries"),
        ("not (id = 'x' and (labels.region='us-east'))", "NOT operator is not supported with label queries"),
        ("labels.region is not null", "NOT operator is not supported with label queries"),
        ("labels.region not in ['a']", "NOT operator is not supported with label queries"),
        ("not status.conditions.Reconciled='True'", "NOT operator is not supported with condition queries"),
        ("colour = 'red'", "colour is not a valid field name"),
    ] {
        let problem = parse(text).unwrap_err();
        assert_eq!(
            (problem.status, problem.code, problem.detail.as_str()),
            (400, "HYPERFLEET-VAL-005", detail),
            "{text}"
        );
    }
}

#[test]
fn what_cannot_be_read_is_an_error_and_never_a_panic() {
    for text in [
        "id",
        "id =",
        "= 'x'",
        "id = 'x",
        "id = 'x' and",
        "(id = 'x'",
        "id = 'x')",
        "id in []",
        "id in ['a'",
        "id in 'a'",
        "id between 'a'",
        "id like 3",
        "id is 3",
        "id ~ 'x'",
        "id = 'x' 'y'",
        "generation = 'three'",
        "created_time > 'noon'",
        "labels. = 'x'",
        "status.conditions.reconciled='True'",
        "status.conditions.Reconciled != 'True'",
        "status.conditions.Reconciled = 'Maybe'",
        "status.conditions.Reconciled.colour = 'x'",
        "1 = 1",
        "12x = id",
        "not",
        "'",
        "status.conditions.Reconciled in ['True']",
        "generation = -",
        "\u{0}",
    ] {
        assert_eq!(parse(text).unwrap_err().status, 400, "{text}");
    }
}

#[test]
fn input_is_bounded() {
    assert!(parse(&format!("id = '{}'", "x".repeat(MAX_LENGTH))).is_err());
    assert!(parse(&format!("{}id = 'x'{}", "(".repeat(MAX_DEPTH + 1), ")".repeat(MAX_DEPTH + 1))).is_err());
    assert!(parse(&format!("{} id = 'x'", "not ".repeat(MAX_DEPTH + 1))).is_err());
    let many = vec!["id='m'"; 350].join(" and ");
    assert!(parse(&many).unwrap().unwrap().matches(&lookup));
}

#[test]
fn a_key_is_taken_out_of_the_plan() {
    let of = |text: &str| plan(parse(text).unwrap());
    assert_eq!(of("id > 'x'"), Plan { after: Some("x".to_owned()), rest: None, only_labels: false });
    let with_label = of("id > 'x' and labels.region = 'a' and id > 'y'");
    assert_eq!((with_label.after.as_deref(), with_label.only_labels), (Some("y"), true));
    let with_more = of("id > 'x' and generation = 1");
    assert_eq!((with_more.after.is_some(), with_more.rest.is_some(), with_more.only_labels), (true, true, false));
    assert_eq!(of("id > 'x' or name = 'y'").after, None);
    assert_eq!(of(""), Plan::default());
}
