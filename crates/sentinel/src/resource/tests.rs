use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[test]
fn conditions_give_the_minimum_that_the_adapters_saw() {
    let resource = Resource::parse(
        r#"{"id":"a","kind":"Cluster","generation":2,"labels":{"region":"eu"},"spec":{"x":[1,2]},"status":{"conditions":[
            {"type":"Reconciled","status":"False","observed_generation":2,"last_updated_time":"2026-01-01T00:00:05Z",
             "last_transition_time":"2026-01-01T00:00:01.5Z"},
            {"type":"LastKnownReconciled","status":"True","observed_generation":1},
            {"type":"ValidationSuccessful","status":"True","observed_generation":2},
            {"type":"DnsSuccessful","status":"True","observed_generation":1}]}}"#,
    )
    .unwrap();
    assert_eq!((resource.id.as_ref(), resource.kind.as_ref(), resource.generation), ("a", "Cluster", Some(2)));
    assert_eq!(resource.labels.get("region"), Some("eu"));
    assert_eq!(resource.labels.get("zone"), None);
    let status = resource.status;
    assert!(!status.ready);
    assert_eq!(status.observed_generation, Some(1));
    assert_eq!(status.last_updated, Some(at("2026-01-01T00:00:05Z")));
    assert_eq!(status.last_transition, Some(at("2026-01-01T00:00:01Z")));
}

#[test]
fn an_adapter_condition_without_a_generation_has_seen_none() {
    let json = r#"{"id":"a","status":{"conditions":[{"type":"DnsSuccessful","status":"True"}]}}"#;
    assert_eq!(Resource::parse(json).unwrap().status.observed_generation, Some(0));
}

#[test]
fn reconciled_true_is_ready_and_ready_is_the_older_name() {
    for name in ["Reconciled", "Ready"] {
        let json = format!(r#"{{"id":"a","status":{{"conditions":[{{"type":"{name}","status":"True"}}]}}}}"#);
        assert!(Resource::parse(&json).unwrap().status.ready, "{name}");
    }
    let both = r#"{"id":"a","status":{"conditions":[{"type":"Ready","status":"True"},{"type":"Reconciled","status":"False"}]}}"#;
    assert!(!Resource::parse(both).unwrap().status.ready);
}

#[test]
fn phases_are_read_in_both_spellings() {
    let snake = r#"{"id":"a","generation":2,"metadata":{"labels":{"region":"us"}},"status":{"phase":"Ready",
        "observed_generation":1,"last_transition_time":"2025-10-21T10:00:00Z","last_updated_time":"2025-10-21T12:00:00Z"}}"#;
    let camel = r#"{"id":"a","metadata":{"generation":2,"labels":{"region":"us"}},"status":{"phase":"Ready",
        "observedGeneration":1,"lastTransitionTime":"2025-10-21T10:00:00Z","lastUpdatedTime":"2025-10-21T12:00:00Z"}}"#;
    let (snake, camel) = (Resource::parse(snake).unwrap(), Resource::parse(camel).unwrap());
    assert_eq!(snake, camel);
    assert_eq!(snake.labels.get("region"), Some("us"));
    assert_eq!(
        snake.status,
        Status {
            ready: true,
            observed_generation: Some(1),
            last_updated: Some(at("2025-10-21T12:00:00Z")),
            last_transition: Some(at("2025-10-21T10:00:00Z")),
            last_progress: None,
        }
    );
}

#[test]
fn a_resource_reads_the_same_whether_or_not_its_times_have_a_fraction() {
    let json = |fraction: &str| {
        format!(
            r#"{{"id":"a","deleted_time":"2026-01-01T00:00:09{fraction}Z","status":{{"conditions":[
                {{"type":"Reconciled","status":"False","last_updated_time":"2026-01-01T00:00:05{fraction}Z",
                  "last_transition_time":"2026-01-01T00:00:01{fraction}Z"}},
                {{"type":"DnsSuccessful","last_transition_time":"2026-01-01T00:00:03{fraction}Z"}}]}}}}"#
        )
    };
    let (whole, projected) = (json(".123456"), json(""));
    assert_eq!(Resource::parse(&whole).unwrap(), Resource::parse(&projected).unwrap());
}

#[test]
fn any_other_phase_is_not_ready() {
    for phase in ["NotReady", "Provisioning", "ready", ""] {
        let json = format!(r#"{{"id":"a","status":{{"phase":"{phase}"}}}}"#);
        assert!(!Resource::parse(&json).unwrap().status.ready, "{phase}");
    }
}

#[test]
fn what_is_missing_or_null_reads_as_absent() {
    for json in [
        r#"{"id":"a"}"#,
        r#"{"id":"a","kind":null,"generation":null,"labels":null,"metadata":null,"status":null}"#,
        r#"{"id":"a","status":{"conditions":[]}}"#,
        r#"{"id":"a","status":{"conditions":null,"phase":null,"last_updated_time":""}}"#,
        r#"{"id":"a","status":{"last_updated_time":"0001-01-01T00:00:00Z"}}"#,
    ] {
        let resource = Resource::parse(json).unwrap();
        assert_eq!(resource.status, Status::default(), "{json}");
        assert_eq!((resource.generation, resource.kind.as_ref()), (None, ""));
    }
}

#[test]
fn escaped_strings_are_unescaped() {
    let resource = Resource::parse(r#"{"id":"a\u0041","labels":{"k\n":"v\""}}"#).unwrap();
    assert_eq!(resource.id, "aA");
    assert_eq!(resource.labels.get("k\n"), Some("v\""));
}

#[test]
fn a_resource_without_an_id_is_an_error() {
    for json in [r#"{"kind":"Cluster"}"#, r#"{"id":""}"#, r#"{"id":null}"#] {
        assert!(matches!(Resource::parse(json), Err(Error::NoId)), "{json}");
    }
}

#[test]
fn a_malformed_resource_is_an_error() {
    for json in [
        "3",
        "null",
        "[]",
        r#"["a", "Cluster", 1]"#,
        r#"{"id":5}"#,
        r#"{"id":"a","generation":"x"}"#,
        r#"{"id":"a","labels":{"k":1}}"#,
    ] {
        assert!(matches!(Resource::parse(json), Err(Error::Malformed { .. })), "{json}");
    }
}

#[test]
fn a_malformed_field_says_what_belongs_there() {
    for (json, expected) in [(r#"{"id":5}"#, "expected a string"), (r#"{"labels":5}"#, "expected a map of strings")] {
        let Err(Error::Malformed { source }) = Resource::parse(json) else { panic!("{json}") };
        assert!(source.to_string().contains(expected), "{source}");
    }
}

#[test]
fn a_malformed_resource_is_told_by_its_place_and_not_by_its_text() {
    let json = r#"{"id":"a","generation":"s3cret \"quoted\" text"}"#;
    let said = watchfire_runtime::chain(&Resource::parse(json).unwrap_err());
    assert!(said.contains("invalid type: string (not shown), expected i64 at line 1 column "), "{said}");
    assert!(!said.contains("s3cret") && !said.contains("quoted"), "{said}");
}

#[test]
fn an_unreadable_time_names_resource_and_field() {
    let json = r#"{"id":"a","status":{"phase":"Ready","last_updated_time":"yesterday"}}"#;
    let error = Resource::parse(json).unwrap_err();
    assert_eq!(error.to_string(), r#"read time "yesterday" in last_updated_time of resource a"#);
}

#[test]
fn the_end_of_the_last_year_is_the_far_future_and_not_an_error() {
    let read = |time: &str| {
        let json = format!(r#"{{"id":"a","status":{{"phase":"Ready","last_updated_time":"{time}"}}}}"#);
        Resource::parse(&json).map(|resource| resource.status.last_updated)
    };
    for time in ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999999999Z", "9999-12-30T23:00:00+00:00"] {
        assert_eq!(read(time).unwrap(), Some(Timestamp::MAX), "{time}");
    }
    assert_eq!(read("9999-12-30T21:00:00Z").unwrap(), Some(at("9999-12-30T21:00:00Z")));
    for wrong in ["9999-12-32T00:00:00Z", "9999-12-31", "9999-12-31T25:00:00Z"] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn the_cursor_is_the_id_alone() {
    assert_eq!(parse_id(r#"{"spec":{},"id":"b"}"#).as_deref(), Some("b"));
    assert_eq!(parse_id(r#"{"spec":{}}"#), None);
    assert_eq!(parse_id("7"), None);
}

#[test]
fn without_conditions_of_adapters_the_summary_says_what_was_seen_once_it_is_ready() {
    let json = |status: &str| {
        format!(
            r#"{{"id":"a","status":{{"conditions":[{{"type":"Ready","status":"{status}","observed_generation":3}}]}}}}"#
        )
    };
    assert_eq!(Resource::parse(&json("True")).unwrap().status.observed_generation, Some(3));
    assert_eq!(Resource::parse(&json("False")).unwrap().status.observed_generation, None);
}

#[test]
fn progress_is_the_last_change_of_the_state_or_of_what_an_adapter_says_of_its_part() {
    let progress = |ready: &str, dns: &str| {
        let json = format!(
            r#"{{"id":"a","status":{{"conditions":[
                {{"type":"Reconciled","status":"{ready}","last_transition_time":"2026-01-01T00:00:01Z"}},
                {{"type":"Upgradable","status":"True","last_transition_time":"2026-01-01T00:00:09Z"}},
                {{"type":"ValidationSuccessful","last_transition_time":"2026-01-01T00:00:02Z"}},
                {{"type":"DnsSuccessful","last_transition_time":"{dns}"}}]}}}}"#
        );
        Resource::parse(&json).unwrap().status.last_progress
    };
    assert_eq!(progress("False", "2026-01-01T00:00:03Z"), Some(at("2026-01-01T00:00:03Z")));
    assert_eq!(progress("False", "soon"), Some(at("2026-01-01T00:00:02Z")), "what cannot be read says nothing");
    assert_eq!(progress("True", "2026-01-01T00:00:03Z"), None, "not looked for");
    let phase = r#"{"id":"a","status":{"phase":"NotReady","last_transition_time":"2025-10-21T10:00:00Z"}}"#;
    assert_eq!(Resource::parse(phase).unwrap().status.last_progress, Some(at("2025-10-21T10:00:00Z")));
}

#[test]
fn a_deletion_is_read_in_both_spellings_and_null_is_none() {
    for name in ["deleted_time", "deletedTime"] {
        let json = format!(r#"{{"id":"a","{name}":"2026-01-01T00:00:01Z"}}"#);
        assert_eq!(Resource::parse(&json).unwrap().deleted_time, Some(at("2026-01-01T00:00:01Z")));
    }
    for none in [r#"{"id":"a"}"#, r#"{"id":"a","deleted_time":null}"#] {
        assert_eq!(Resource::parse(none).unwrap().deleted_time, None);
    }
    let error = Resource::parse(r#"{"id":"a","deleted_time":"soon"}"#).unwrap_err();
    assert_eq!(error.to_string(), "read time \"soon\" in deleted_time of resource a");
}
