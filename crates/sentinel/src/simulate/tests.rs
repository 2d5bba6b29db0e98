use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use watchfire_runtime::config::{Document, Env};

use super::*;
use crate::config::{RawConfig, check};
use crate::recording::{Fate, Scope, Writer};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn config(more: &str) -> SentinelConfig {
    let text = format!("resource_type: clusters\n{more}\nhyperfleet_api:\n  endpoint: http://api\n");
    let (config, problems) = check(Document::<RawConfig>::parse("test.yaml", &text).unwrap(), &Env::default());
    problems.finish().unwrap();
    config.unwrap()
}

/// A resource as the API shows it; `report` is a time in the recording.
#[derive(Debug, Clone)]
struct Shown {
    id: usize,
    generation: i64,
    observed: i64,
    ready: bool,
    report: Option<i64>,
}

impl Shown {
    fn json(&self) -> String {
        let Self { id, generation, observed, ready, report } = self;
        let report =
            report.map(|report| format!(r#","last_updated_time":"{0}","last_transition_time":"{0}""#, at(report)));
        let (status, report) = (if *ready { "True" } else { "False" }, report.unwrap_or_default());
        format!(
            r#"{{"id":"{id}","kind":"Cluster","generation":{generation},"labels":{{"odd":"{}"}},"status":{{"conditions":[{{"type":"Reconciled","status":"{status}"{report}}},{{"type":"DnsSuccessful","status":"{status}","observed_generation":{observed}}}]}}}}"#,
            id % 2
        )
    }
}

fn writer(folder: &Path, config: &SentinelConfig, by: By) -> Writer {
    Writer::open(folder, Scope { by, max: 1 << 30, kept: Kept::everything() }, config, at(0)).unwrap()
}

/// What a configuration publishes over a recording.
fn published(recording: &Path, config: &SentinelConfig, thorough: bool) -> Vec<Published> {
    let mut reader = Reader::open(recording).unwrap();
    let mut simulation = Simulation::new("test".into(), config.clone());
    simulation.thorough |= thorough;
    while let Some(observed) = reader.read().unwrap() {
        simulation.observe(&observed, &reader);
    }
    assert!(reader.cuts.is_empty(), "{:?}", reader.cuts);
    simulation.take_published()
}

/// One resource that is reported on every 1,800 s for a day, polled every 5 s; its spec changes once.
fn day(folder: &Path, config: &SentinelConfig) {
    let mut writer = writer(folder, config, By::Onlooker);
    for poll in (0..86_400).step_by(5) {
        let changed = poll >= 40_000;
        let seen = poll >= 40_030;
        let report = poll / 1800 * 1800 + i64::from(seen) * 25;
        let generation = 1 + i64::from(changed);
        let shown =
            Shown { id: 1, generation, observed: 1 + i64::from(seen), ready: true, report: Some(report.min(poll)) };
        writer.page(at(poll), [shown.json().as_str()].into_iter()).unwrap();
        writer.end(at(poll), true).unwrap();
    }
    writer.close().unwrap();
}

#[test]
fn a_day_has_its_events_latencies_and_peaks() {
    let folder = tempfile::tempdir().unwrap();
    let half_an_hour = config("max_age_ready: 30m");
    day(folder.path(), &half_an_hour);
    let configs = vec![("a".to_owned(), half_an_hour), ("b".to_owned(), config("max_age_ready: 10m"))];
    let report = run(folder.path(), configs, 5).unwrap();
    let [a, b] = report.runs.as_slice() else { panic!("two runs") };
    assert_eq!((a.polls, a.resources, a.from), (17_280, 1, Some(at(0))));
    assert_eq!(a.by_reason["generation changed - new spec to reconcile"], 3, "and every 10 s until it is seen");
    assert!(a.by_reason.get("max age expired (ready)").copied().unwrap_or(0) <= 48, "{a:?}");
    let ready = b.by_reason["max age expired (ready)"];
    assert!((90..=144).contains(&ready), "two or three each half an hour: {ready}");
    let latency = a.latency.as_ref().unwrap();
    assert_eq!((latency.count, latency.max), (1, 0.0), "in the poll that showed it");
    assert_eq!((a.peak_second.events, b.busiest[0].id.as_str(), b.busiest[0].events), (1, "1", b.events));
    let difference = report.difference.unwrap();
    assert!(difference.only_b >= difference.only_a && difference.first.len() == SHOWN, "{difference:?}");
    assert!(a.notes.is_empty() && report.cuts.is_empty());
}

#[test]
fn a_longer_poll_interval_polls_less_often_and_new_specs_wait_for_it() {
    let folder = tempfile::tempdir().unwrap();
    day(folder.path(), &config(""));
    let report = run(folder.path(), vec![("slow".to_owned(), config("poll_interval: 60s"))], 5).unwrap();
    let run = &report.runs[0];
    assert_eq!(run.polls, 1440);
    let latency = run.latency.as_ref().unwrap();
    assert!((1.0..=60.0).contains(&latency.max), "{latency:?}");
}

#[test]
fn what_the_recording_does_not_hold_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = config("resource_selector: [{label: odd, value: '1'}]");
    let kept = Kept::read_by(&recorded);
    let kept = kept.redact(".labels.owner", &recorded.selector).unwrap();
    let scope = Scope { by: By::Onlooker, max: 1 << 30, kept };
    let mut writer = Writer::open(folder.path(), scope, &recorded, at(0)).unwrap();
    writer.page(at(0), std::iter::empty()).unwrap();
    writer.end(at(0), true).unwrap();
    writer.close().unwrap();
    let other =
        config("poll_interval: 1s\nmessage_data: {size: .spec.size}\nresource_selector: [{label: owner, value: a}]");
    let report = run(folder.path(), vec![("other".to_owned(), other)], 5).unwrap();
    let notes = report.runs[0].notes.join("\n");
    for part in ["only what odd=1 selects", ".spec", "taken out of the recording: .metadata.labels.owner", "every 5s"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    // The folder goes on after a restart with another configuration.
    let other = config("resource_selector: [{label: odd, value: '0'}]");
    let scope = Scope { by: By::Onlooker, max: 1 << 30, kept: Kept::everything() };
    let mut writer = Writer::open(folder.path(), scope, &other, at(10)).unwrap();
    writer.page(at(10), std::iter::empty()).unwrap();
    writer.end(at(10), true).unwrap();
    writer.close().unwrap();
    let notes = &run(folder.path(), vec![("first".to_owned(), recorded)], 5).unwrap().runs[0].notes;
    assert!(notes.len() == 1 && notes[0].contains("only what odd=0 selects"), "{notes:?}");
    let mut wrong = config("");
    wrong.api.resource_type = "nodepools".to_owned();
    let error = run(folder.path(), vec![("wrong".to_owned(), wrong)], 5).unwrap_err();
    assert!(error.to_string().ends_with("it is of clusters, not of nodepools"), "{error}");
}

#[test]
fn a_refused_event_is_decided_again_and_a_restart_forgets() {
    let folder = tempfile::tempdir().unwrap();
    let config = config("");
    let shown = Shown { id: 1, generation: 1, observed: 0, ready: false, report: None };
    let first = {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = writer(folder.path(), &config, By::Onlooker);
        writer.page(at(0), [shown.json().as_str()].into_iter()).unwrap();
        writer.end(at(0), true).unwrap();
        writer.close().unwrap();
        published(folder.path(), &config, false).remove(0)
    };
    let fate = |seconds, refused: Option<&str>| Fate {
        id: first.event.clone(),
        resource: "1".into(),
        reason: first.reason.into(),
        generation: Some(1),
        at: at(seconds),
        refused: refused.map(str::to_owned),
    };
    for (begin, outcomes) in [(0, [Some(Some("no route")), Some(None), None]), (15, [Some(None), None, None])] {
        let mut writer = writer(folder.path(), &config, By::Sentinel);
        for (poll, outcome) in (0..).zip(outcomes) {
            let seconds = begin + poll * 5;
            writer.page(at(seconds), [shown.json().as_str()].into_iter()).unwrap();
            if let Some(refused) = outcome {
                writer.fate(fate(seconds, refused)).unwrap();
            }
            writer.end(at(seconds), true).unwrap();
        }
        writer.close().unwrap();
    }
    let events = published(folder.path(), &config, false);
    let times: Vec<_> = events.iter().map(|it| it.at).collect();
    // Refused at 0, so again; confirmed, so not for 10 s; forgotten, so again; and then its max age.
    assert_eq!(times, [at(5), at(15), at(25)]);
    assert!(events[..2].iter().all(|it| it.event == first.event) && events[2].event != first.event);
}

/// What happens between two polls; `Back` sets the clock back by so many.
#[derive(Debug, Clone)]
enum Step {
    Spec(usize),
    Report { id: usize, ready: bool, seen: bool, late: i64 },
    Gone(usize),
    Back(i64),
    Nothing,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..4usize).prop_map(Step::Spec),
        6 => (0..4usize, any::<bool>(), any::<bool>(), -20..40i64)
            .prop_map(|(id, ready, seen, late)| Step::Report { id, ready, seen, late }),
        1 => (0..4usize).prop_map(Step::Gone),
        1 => (1..40i64).prop_map(Step::Back),
        8 => Just(Step::Nothing),
    ]
}

#[test]
fn leaving_out_what_is_not_due_changes_nothing() {
    let policies = [
        "max_age_not_ready: 10s\nmax_age_ready: 60s",
        "max_age_not_ready: 7s\nmax_age_ready: 30s\nrefresh_spread: 50%\nno_progress_after: 30s\nmax_age_no_progress: 25s",
        "decision: time_only\nmax_age_not_ready: 10s\nmax_age_ready: 40s",
        "republish: always\nmax_age_not_ready: 10s\nmax_age_ready: 40s",
        "resource_selector: [{label: odd, value: '1'}]",
        "decision: expression\nmax_age_not_ready: 10s\nmax_age_ready: 40s",
        "decision: expression\nrepublish: always\nmax_age_not_ready: 10s\nmax_age_ready: 40s",
    ];
    let mut runner = TestRunner::new(Config { cases: 80, failure_persistence: None, ..Config::default() });
    let steps = (0..policies.len(), proptest::collection::vec(step(), 1..80));
    let result = runner.run(&steps, |(policy, steps)| {
        let (folder, config) = (tempfile::tempdir().unwrap(), config(policies[policy]));
        let mut writer = writer(folder.path(), &config, By::Onlooker);
        let mut fleet: Vec<Option<Shown>> =
            (0..4).map(|id| Some(Shown { id, generation: 1, observed: 0, ready: false, report: None })).collect();
        let mut back = 0;
        for (poll, step) in (0..).zip(steps) {
            back += if let Step::Back(polls) = step { polls } else { 0 };
            let seconds = (poll - back) * 5;
            match step {
                Step::Spec(id) => {
                    let anew = Shown { id, generation: 0, observed: 0, ready: false, report: None };
                    fleet[id].get_or_insert(anew).generation += 1;
                }
                Step::Report { id, ready, seen, late } => {
                    if let Some(shown) = &mut fleet[id] {
                        shown.ready = ready;
                        shown.report = Some(seconds - late);
                        shown.observed = if seen { shown.generation } else { shown.observed };
                    }
                }
                Step::Gone(id) => fleet[id] = None,
                Step::Back(_) | Step::Nothing => {}
            }
            let items: Vec<_> = fleet.iter().flatten().map(Shown::json).collect();
            writer.page(at(seconds), items.iter().map(String::as_str)).unwrap();
            writer.end(at(seconds), true).unwrap();
        }
        writer.close().unwrap();
        prop_assert_eq!(published(folder.path(), &config, false), published(folder.path(), &config, true));
        Ok(())
    });
    result.unwrap();
}
