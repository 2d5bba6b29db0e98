//! Several sentinels on one exchange, each with its own selector and its own pace.

use std::collections::{HashMap, HashSet};

use jiff::SignedDuration;
use watchfire_simulator::{Dialect, NewResource};

use crate::far::{Far, over_both};
use crate::support::{Api, Bench, minimal};

async fn two_sentinels_share_an_exchange_and_each_resource_is_published_by_its_own_at_its_own_pace(far: Far) {
    let inbox = far.listen().await;
    let api = Api::start(Dialect::Hyperfleet).await;
    let mut regions = HashMap::new();
    for index in 0..8 {
        let region = if index % 2 == 0 { "us-east" } else { "us-west" };
        let new = NewResource::named(format!("c-{index}")).label("region", region).label("cluster-type", "hypershift");
        regions.insert(api.fleet.create("clusters", new).unwrap().id, region);
    }
    // Nobody's: the API filters by the region, and only we by the label with a hyphen.
    for (region, kind) in [("eu-west", "hypershift"), ("us-east", "standalone")] {
        let new = NewResource::named(format!("{kind}-{region}")).label("region", region).label("cluster-type", kind);
        api.fleet.create("clusters", new).unwrap();
    }
    let ages = [("us-east", 1), ("us-west", 3)];
    let lives = ages.map(|(region, seconds)| {
        let labels =
            format!("  - label: region\n    value: {region}\n  - label: cluster-type\n    value: hypershift\n");
        // A literal field tells who sent it.
        let fields = format!("message_data:\n  id: .id\n  generation: .generation\n  by: '{{{{ \"{region}\" }}}}'\n");
        let pace = format!("poll_interval: 100ms\nmax_age_not_ready: {seconds}s\n");
        Bench::new(&format!("{}{pace}resource_selector:\n{labels}{fields}", minimal(&api.url)), far.sink()).run()
    });
    let count = |all: &[crate::far::Arrived], id: &str| all.iter().filter(|event| event.resource() == id).count();
    let all = inbox
        .wait_until("each resource is published again and again", |all| {
            regions.iter().all(|(id, region)| count(all, id) >= if *region == "us-east" { 4 } else { 2 })
        })
        .await;
    for event in &all {
        let owner = regions.get(event.resource()).expect("published though nobody selects it");
        assert_eq!(event.event["data"]["by"], *owner, "published by the other sentinel");
    }
    for (region, seconds) in ages {
        let age = SignedDuration::from_secs(seconds);
        for id in regions.iter().filter(|(_, of)| **of == region).map(|(id, _)| id) {
            let events = inbox.about(id);
            for pair in events.windows(2) {
                // An event's time is when it became due: one max age after the one before was confirmed.
                let apart = pair[1].time().duration_since(pair[0].time());
                assert!(apart >= age, "{region}: {apart:?}");
            }
            // The first became due when the resource was created; from then on only polling and load are between.
            for pair in events[1..].windows(2) {
                let apart = pair[1].time().duration_since(pair[0].time());
                assert!(apart < age + SignedDuration::from_secs(2), "{region}: {apart:?}");
            }
        }
    }
    for (live, (region, _)) in lives.iter().zip(ages) {
        let ours = all.iter().filter(|event| event.event["data"]["by"] == region).count();
        let label = format!("region:{region}");
        let counted = live.metric("hyperfleet_sentinel_events_published_total", &[&label, "generation changed"]);
        assert!(counted.is_some_and(|counted| counted >= 4.0 && ours >= 4), "{counted:?} of {ours}");
    }
    let ids: HashSet<_> = all.iter().map(|event| event.id().to_owned()).collect();
    assert_eq!(ids.len(), all.len(), "each event once");
    for live in lives {
        live.stop().await;
    }
}

over_both! {
    two_sentinels_share_an_exchange_and_each_resource_is_published_by_its_own_at_its_own_pace
}
