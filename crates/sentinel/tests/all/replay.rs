//! What the service recorded replays to the very events that it published.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use watchfire_runtime::clock;
use watchfire_sentinel::SentinelConfig;
use watchfire_sentinel::recording::{By, Kept, Observed, Reader, Recorder, Scope, Writer};
use watchfire_sentinel::simulate::Simulation;
use watchfire_simulator::{Dialect, NewReport, NewResource, Patch, Simulator, Status};
use watchfire_testkit::eventually;

use crate::support::{Api, Bench, DEADLINE, Live, Memory, Refusal, minimal, parse, timeout};

/// An hour at a faster pace: every rule fires within seconds.
const PACE: &str = "poll_interval: 100ms\nmax_age_not_ready: 300ms\nmax_age_ready: 900ms\n";

fn start(folder: &Path, config: &str, sink: &Arc<Memory>) -> Live {
    let mut bench = Bench::new(config, Arc::<Memory>::clone(sink));
    let parsed = parse(config);
    let scope = Scope { by: By::Sentinel, max: 1 << 30, kept: Kept::read_by(&parsed) };
    let writer = Writer::open(folder, scope, &parsed, clock::now()).unwrap();
    bench.sentinel = bench.sentinel.record(Recorder::start(writer).unwrap());
    bench.run()
}

/// How often each event was published in a replay.
fn replay(folder: &Path, config: &SentinelConfig) -> BTreeMap<String, usize> {
    let mut reader = Reader::open(folder).unwrap();
    let mut simulation = Simulation::new("replay".into(), config.clone());
    let mut events = BTreeMap::new();
    while let Some(observed) = reader.read().unwrap() {
        assert!(!matches!(observed, Observed::Gap(_)), "{observed:?}");
        simulation.observe(&observed, &reader);
        for published in simulation.take_published() {
            *events.entry(published.event).or_default() += 1;
        }
    }
    assert!(reader.cuts.is_empty(), "{:?}", reader.cuts);
    events
}

/// A fleet at work: spec changes, reports, newcomers and deletions, each followed by an event.
async fn work(fleet: &Simulator, ids: &mut Vec<String>, sink: &Memory, rounds: usize) {
    for round in 0..rounds {
        let id = ids[round % ids.len()].clone();
        match round % 4 {
            0 => drop(fleet.patch("clusters", &id, Patch::spec(&json!({"round": round}))).unwrap()),
            3 => {
                ids.push(
                    fleet.create("clusters", NewResource::named(format!("new-{}", sink.events().len()))).unwrap().id,
                );
                fleet.force_delete("clusters", &ids.remove(0)).unwrap();
            }
            _ => {
                let generation = fleet.get("clusters", &id).unwrap().generation;
                for adapter in ["validation", "dns"] {
                    let report = NewReport::new(adapter, generation, Status::True, clock::now());
                    fleet.report("clusters", &id, report).unwrap();
                }
            }
        }
        let before = sink.events().len();
        eventually(DEADLINE, "events go on", async || (sink.events().len() > before).then_some(())).await;
    }
}

/// Records a sentinel through refusals, an outage of the broker and a restart, and replays it.
async fn recorded_and_replayed(more: &str) {
    let folder = tempfile::tempdir().unwrap();
    let api = Api::start(Dialect::Hyperfleet).await;
    let mut ids: Vec<_> =
        (0..12).map(|id| api.fleet.create("clusters", NewResource::named(format!("old-{id}"))).unwrap().id).collect();
    let config = format!("{}{PACE}{more}", minimal(&api.url));
    let sink = Arc::new(Memory::default());
    for position in [0, 1, 3] {
        sink.refuse(Refusal(vec![position, position + 4], timeout));
    }
    // Twice: a restart forgets, and a recording goes on.
    for _ in 0..2 {
        let live = start(folder.path(), &config, &sink);
        work(&api.fleet, &mut ids, &sink, 24).await;
        *sink.down.lock().unwrap() = true;
        live.complains("broker", "no answer").await;
        *sink.down.lock().unwrap() = false;
        work(&api.fleet, &mut ids, &sink, 8).await;
        live.stop().await;
    }
    let mut published = BTreeMap::new();
    for event in sink.events() {
        *published.entry(event.id().to_owned()).or_default() += 1;
    }
    assert!(published.len() > 100, "{} events", published.len());
    assert_eq!(replay(folder.path(), &parse(&config)), published);

    // It can tell a difference: another configuration's events are others.
    let other = parse(&config.replace("max_age_not_ready: 300ms", "max_age_not_ready: 700ms"));
    assert_ne!(replay(folder.path(), &other), published);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_recorded_replays_to_the_events_that_were_published() {
    recorded_and_replayed("refresh_spread: 20%\nno_progress_after: 500ms\nmax_age_no_progress: 800ms\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_expression_decided_on_replays_too() {
    recorded_and_replayed("decision: expression\n").await;
}
