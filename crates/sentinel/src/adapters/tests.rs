use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn said(adapter: &str, generation: i64, reported: i64) -> Said {
    Said { adapter: adapter.to_owned(), generation: Some(generation), at: Some(at(reported)) }
}

fn published(seconds: i64, attempts: u32) -> Published {
    Published { generation: Some(3), at: at(seconds), attempts }
}

fn names<'a>(silent: &[&'a Said]) -> Vec<&'a str> {
    silent.iter().map(|said| said.adapter.as_str()).collect()
}

#[test]
fn what_each_adapter_said_is_read_off_its_own_condition_and_the_summary_names_who_said_nothing() {
    let json = r#"{"id":"a","status":{"conditions":[
        {"type":"Reconciled","status":"False","last_updated_time":"2026-01-01T00:00:01Z","message":
         "Required adapters not reporting Available=True: [dns, gcp-pull, quota]. Currently reporting: [dns, validation]"},
        {"type":"LastKnownReconciled","status":"True"},
        {"type":"ValidationSuccessful","observed_generation":3,"last_updated_time":"2026-01-01T00:00:02Z"},
        {"type":"GcpDnsSuccessful","last_updated_time":"soon"}]}}"#;
    let none = |adapter: &str, generation| Said { adapter: adapter.to_owned(), generation, at: None };
    assert_eq!(
        read(json),
        [
            Said {
                adapter: "validation".to_owned(),
                generation: Some(3),
                at: Some("2026-01-01T00:00:02Z".parse().unwrap())
            },
            none("gcp-dns", Some(0)),
            none("gcp-pull", None),
            none("quota", None),
        ]
    );
}

#[test]
fn other_words_and_other_shapes_name_nobody() {
    let summary = |ty: &str, message: &str| {
        read(&format!(r#"{{"status":{{"conditions":[{{"type":"{ty}","message":"{message}"}}]}}}}"#))
    };
    assert_eq!(summary("Ready", "wanted: [dns]. reporting: []").len(), 1, "the older name");
    for (ty, message) in
        [("Reconciled", "all is well"), ("Reconciled", "not [dns]"), ("Reconciled", "[dns [a]"), ("Other", "[dns] []")]
    {
        assert_eq!(summary(ty, message), [], "{ty} {message}");
    }
    for json in ["", "[]", "{}", r#"{"status":{"conditions":{}}}"#, r#"{"status":{"conditions":[{"type":7}]}}"#] {
        assert_eq!(read(json), [], "{json}");
    }
    let long = "x".repeat(100_000);
    assert_eq!(summary("Ready", &format!("[{long}] []"))[0].adapter.len(), 63);
}

#[test]
fn silent_is_who_has_not_reported_since_our_event_and_for_a_minute_once_it_had_the_time() {
    let all = [said("validation", 3, 101), said("dns", 3, 40), said("quota", 4, 99)];
    assert_eq!(names(&silent(&all, published(100, 1), at(159))), [""; 0], "a refresh of a moment ago");
    assert_eq!(names(&silent(&all, published(100, 1), at(160))), ["dns", "quota"]);
    assert_eq!(names(&silent(&all, published(100, ASKED), at(110))), ["dns"], "the others have just reported");
    assert_eq!(names(&silent(&all, published(100, ASKED), at(158))), ["dns"]);
    assert_eq!(names(&silent(&all, published(100, ASKED), at(159))), ["dns", "quota"]);
    // A report in the second of our event may be an answer to it.
    assert_eq!(names(&silent(&[said("dns", 3, 100)], published(100, 1), at(500))), [""; 0]);
    assert_eq!(names(&silent(&[said("dns", 3, 99)], published(100, 1), at(500))), ["dns"]);
    assert_eq!(names(&silent(&[said("dns", 3, 40)], published(100, ASKED), at(99))), [""; 0]);
    assert_eq!(names(&silent(&[said("dns", 3, 40)], published(100, ASKED), at(100))), ["dns"]);
}

#[test]
fn silent_is_who_never_reported_or_not_on_this_generation_once_it_had_the_time() {
    let all = [said("dns", 2, 105), Said { adapter: "quota".to_owned(), generation: None, at: None }];
    assert_eq!(names(&silent(&all, published(100, ASKED - 1), at(159))), [""; 0]);
    assert_eq!(names(&silent(&all, published(100, 1), at(160))), ["dns", "quota"]);
    assert_eq!(names(&silent(&all, published(100, ASKED), at(101))), ["dns", "quota"]);
    let undated = [Said { at: None, ..said("dns", 3, 0) }];
    assert_eq!(names(&silent(&undated, published(100, ASKED), at(101))), ["dns"]);
    // The oldest dialect has no generations.
    let old = Published { generation: None, ..published(100, ASKED) };
    assert_eq!(names(&silent(&[said("dns", 0, 100)], old, at(500))), [""; 0]);
}

#[test]
fn each_change_is_told_once() {
    let (mut roster, mut waiting) = (Roster::default(), Waiting::default());
    let (dns, quota) = (said("dns", 1, 0), said("quota", 1, 0));
    let first = roster.enter(&[&dns], "a");
    waiting.begin(first);
    assert_eq!(roster.changes(&waiting), [Change::Silent { adapter: "dns", resources: 1, example: "a" }]);
    let both = roster.enter(&[&quota, &dns], "b");
    waiting.begin(both);
    assert_eq!(roster.changes(&waiting), [Change::Silent { adapter: "quota", resources: 1, example: "b" }]);
    assert_eq!(waiting.resources(), 2);
    assert_eq!(roster.changes(&waiting), []);
    waiting.end(first);
    assert_eq!(roster.changes(&waiting), []);
    waiting.end(both);
    assert_eq!(waiting.resources(), 0);
    assert_eq!(roster.changes(&waiting), [Change::Reports { adapter: "dns" }, Change::Reports { adapter: "quota" }]);
    waiting.begin(roster.enter(&[&dns], "c"));
    assert_eq!(roster.changes(&waiting), [Change::Silent { adapter: "dns", resources: 1, example: "c" }]);
}

#[test]
fn beyond_its_capacity_an_adapter_is_left_out() {
    let mut roster = Roster::default();
    let all: Vec<_> = (0..=Roster::CAPACITY).map(|index| said(&format!("a{index}"), 1, 0)).collect();
    let set = roster.enter(&all.iter().collect::<Vec<_>>(), "a");
    assert_eq!(set.places().count(), Roster::CAPACITY);
    assert_eq!(roster.enter(&[&all[Roster::CAPACITY]], "a"), Set::default());
}
