use proptest::prelude::*;

use super::*;

fn attributes() -> Attributes {
    Attributes {
        id: "01a21f95-bf93-78f5-8061-87c0708d71e7".into(),
        source: "hyperfleet-sentinel".into(),
        ty: "com.redhat.hyperfleet.nodepool.reconcile".into(),
        subject: None,
        time: None,
        extensions: vec![("traceparent".into(), "00-f5be02881b1851634873d85b2eb0030f-773964d182f7ff52-01".into())],
    }
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

const DATA: &str = r#"{"generation":2,"href":"/api/hyperfleet/v1/clusters/01a21f95-4dc3-72b8-a133-ca2db9f803e7/nodepools/01a21f95-7cf5-733f-97b8-7d95afc01152","id":"01a21f95-7cf5-733f-97b8-7d95afc01152","kind":"NodePool","owner_references":{"href":"/api/hyperfleet/v1/clusters/01a21f95-4dc3-72b8-a133-ca2db9f803e7","id":"01a21f95-4dc3-72b8-a133-ca2db9f803e7","kind":"Cluster"}}"#;

/// The body as the Go sentinel published it to RabbitMQ.
const RECORDED: &str = concat!(
    r#"{"specversion":"1.0","id":"01a21f95-bf93-78f5-8061-87c0708d71e7","source":"hyperfleet-sentinel","type":"com.redhat.hyperfleet.nodepool.reconcile","datacontenttype":"application/json","data":"#,
    r#"{"generation":2,"href":"/api/hyperfleet/v1/clusters/01a21f95-4dc3-72b8-a133-ca2db9f803e7/nodepools/01a21f95-7cf5-733f-97b8-7d95afc01152","id":"01a21f95-7cf5-733f-97b8-7d95afc01152","kind":"NodePool","owner_references":{"href":"/api/hyperfleet/v1/clusters/01a21f95-4dc3-72b8-a133-ca2db9f803e7","id":"01a21f95-4dc3-72b8-a133-ca2db9f803e7","kind":"Cluster"}}"#,
    r#","traceparent":"00-f5be02881b1851634873d85b2eb0030f-773964d182f7ff52-01"}"#
);

#[test]
fn body_is_byte_for_byte_what_the_go_sentinel_sends() {
    let event = CloudEvent::new(attributes(), raw(DATA));
    assert_eq!(std::str::from_utf8(event.body()).unwrap(), RECORDED);
}

#[test]
fn subject_and_time_stand_between_type_and_datacontenttype() {
    let time = Some("2026-11-28T01:02:03.5Z".parse().unwrap());
    let with = Attributes { subject: Some("clusters/ä\"1".into()), time, ..attributes() };
    let event = CloudEvent::new(with, raw("1"));
    let body = std::str::from_utf8(event.body()).unwrap();
    let part = r#"reconcile","subject":"clusters/ä\"1","time":"2026-11-28T01:02:03.5Z","datacontenttype":"#;
    assert!(body.contains(part), "{body}");
}

#[test]
fn an_event_read_back_keeps_its_bytes() {
    let spaced = br#" { "type":"t", "specversion":"1.0","time":"2026-01-01T02:00:00+02:00","source":"s","id":"i","data": {"b":1, "a":2} ,"n":-7,"flag":true,"subject":null} "#;
    let event = CloudEvent::from_structured(spaced).unwrap();
    assert_eq!(event.body().as_ref(), spaced);
    assert_eq!(event.data().get(), r#"{"b":1, "a":2}"#);
    let pairs: Vec<_> = event.attribute_pairs().map(|(name, value)| format!("{name}={value}")).collect();
    let expected = "specversion=1.0 id=i source=s type=t time=2026-01-01T00:00:00Z datacontenttype=application/json n=-7 flag=true";
    assert_eq!(pairs.join(" "), expected);
}

#[test]
fn data_is_optional() {
    let event = CloudEvent::from_structured(br#"{"specversion":"1.0","id":"1","source":"s","type":"t"}"#).unwrap();
    assert_eq!(event.data().get(), "null");
}

#[test]
fn reading_refuses_what_would_travel_on() {
    let with = |extra: &str| format!(r#"{{"specversion":"1.0","id":"1","source":"s","type":"t"{extra}}}"#);
    let cases = [
        (String::new(), "read a structured cloudevent"),
        ("[]".into(), "read a structured cloudevent"),
        (with(r#","id":"2""#), "read a structured cloudevent"),
        (with(",") + "}", "read a structured cloudevent"),
        (r#"{"id":"1","source":"s","type":"t"}"#.into(), "attribute specversion is missing"),
        (r#"{"specversion":"0.3","id":"1","source":"s","type":"t"}"#.into(), "specversion is not 1.0"),
        (r#"{"specversion":"1.0","id":"","source":"s","type":"t"}"#.into(), "attribute id is missing"),
        (r#"{"specversion":"1.0","id":"1","type":"t"}"#.into(), "attribute source is missing"),
        (r#"{"specversion":"1.0","id":"1","source":"s"}"#.into(), "attribute type is missing"),
        (r#"{"specversion":"1.0","id":1,"source":"s","type":"t"}"#.into(), "attribute id is not a string"),
        (with(r#","time":"yesterday""#), "time is not an RFC 3339 time"),
        (with(r#","datacontenttype":"text/xml""#), "datacontenttype is not a JSON media type"),
        (with(r#","data_base64":"AA==""#), "data_base64 is binary data"),
        (with(r#","Trace":"x""#), r#""Trace" is not a name"#),
        (with(r#","a_b":"x""#), r#""a_b" is not a name"#),
        (with(r#","":"x""#), r#""" is not a name"#),
        (with(r#","a":{}"#), "attribute a is not a string"),
        (with(r#","a":1.5"#), "attribute a is not a 32-bit integer"),
        (with(r#","a":2147483648"#), "attribute a is not a 32-bit integer"),
    ];
    for (body, expected) in cases {
        let error = CloudEvent::from_structured(body.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{body}: {error}");
    }
    let many: Vec<_> = (0..200).map(|n| format!(r#","x{n}":"""#)).collect();
    assert!(CloudEvent::from_structured(with(&many.concat()).as_bytes()).is_err());
    assert!(CloudEvent::from_structured(b"{\"specversion\":\"1.0\xff\"}").is_err());
}

#[test]
fn attributes_from_configuration_are_checked() {
    let extension = |name: &str| Attributes { extensions: vec![(name.into(), String::new())], ..attributes() };
    assert!(attributes().check().is_ok());
    for name in ["", "Upper", "with-hyphen", "ä", "data", "data_base64", "subject"] {
        assert!(matches!(extension(name).check(), Err(Invalid::Name(_))), "{name}");
    }
    let twice = Attributes { extensions: vec![("a".into(), "1".into()), ("a".into(), "2".into())], ..attributes() };
    assert!(matches!(twice.check(), Err(Invalid::Name(_))));
    assert!(matches!(Attributes { ty: String::new(), ..attributes() }.check(), Err(Invalid::Missing("type"))));
}

#[test]
fn binary_headers_are_percent_encoded() {
    let with = Attributes { subject: Some("Euro € \"50%\"\n".into()), ..attributes() };
    let event = CloudEvent::new(with, raw("{}"));
    let headers = event.binary_headers();
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["ce-specversion"], "1.0");
    assert_eq!(headers["ce-subject"], "Euro%20%E2%82%AC%20%2250%25%22%0A");
    assert_eq!(headers["ce-traceparent"], "00-f5be02881b1851634873d85b2eb0030f-773964d182f7ff52-01");
    assert!(!headers.contains_key("ce-datacontenttype"));
    assert_eq!(headers.len(), 7);
}

#[test]
fn a_batch_is_an_array_of_the_frozen_bodies() {
    let event = CloudEvent::new(attributes(), raw(DATA));
    assert_eq!(batch(&[]).as_ref(), b"[]");
    let expected = format!("[{RECORDED},{RECORDED}]");
    assert_eq!(batch(&[event.clone(), event]).as_ref(), expected.as_bytes());
}

#[test]
fn debug_shows_no_payload() {
    let event = CloudEvent::new(attributes(), raw(r#""secret""#));
    assert!(!format!("{event:?}").contains("secret"));
}

#[test]
fn an_extension_that_is_added_is_in_the_body_and_changes_nothing_else() {
    let event = CloudEvent::new(Attributes { extensions: Vec::new(), ..attributes() }, raw(DATA));
    let (name, value) = &attributes().extensions[0];
    let event = event.superseding("nodepools/1").with_extension(name, value.clone());
    assert_eq!(std::str::from_utf8(event.body()).unwrap(), RECORDED);
    assert_eq!(event.supersedes(), Some("nodepools/1"));
}

proptest! {
    #[test]
    fn whatever_is_built_can_be_read_back(
        id in ".+", source in ".+", ty in ".+", subject in proptest::option::of(".*"),
        seconds in 0i64..4_000_000_000, extension in ".*", data in "[a-z€\"\\\\]*",
    ) {
        let attributes = Attributes {
            id, source, ty, subject,
            time: Some(Timestamp::from_second(seconds).unwrap()),
            extensions: vec![("traceparent".into(), extension)],
        };
        let built = CloudEvent::new(attributes, serde_json::value::to_raw_value(&data).unwrap());
        let read = CloudEvent::from_structured(built.body()).unwrap();
        prop_assert_eq!(built.body(), read.body());
        prop_assert_eq!(built.data().get(), read.data().get());
        prop_assert!(built.attribute_pairs().eq(read.attribute_pairs()));
        let again = CloudEvent::new(read.attributes().clone(), read.data().to_owned());
        prop_assert_eq!(again.body(), built.body());
        prop_assert_eq!(built.binary_headers().len(), built.attribute_pairs().count());
    }
}
