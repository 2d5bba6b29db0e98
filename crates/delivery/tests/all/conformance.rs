//! What every sink promises, asked of every sink. A new sink is one function in `far.rs` and one line at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use watchfire_delivery::retry::Verdict;
use watchfire_delivery::sink::Error;

use crate::far::{Far, event, events};

/// Larger than any sink takes.
const LARGE: usize = 17 << 20;

fn kinds(outcomes: &[Result<(), Error>]) -> Vec<&'static str> {
    outcomes.iter().map(|outcome| outcome.as_ref().map_or_else(Error::kind, |()| "ok")).collect()
}

async fn the_body_arrives_byte_for_byte_and_every_attribute_beside_it(mut far: Far) {
    let sent = event("id-1", 0);
    assert_eq!(kinds(&far.sink.publish_all(std::slice::from_ref(&sent)).await), ["ok"]);
    let arrived = far.arrived(1).await;
    assert_eq!(arrived.len(), 1);
    assert_eq!(String::from_utf8_lossy(&arrived[0].body), String::from_utf8_lossy(sent.body()));
    let pairs: BTreeMap<_, _> = sent.attribute_pairs().map(|(n, v)| (n.to_owned(), v.into_owned())).collect();
    assert_eq!(arrived[0].attributes, pairs);
}

async fn a_window_of_2500_arrives_whole_and_each_event_once(mut far: Far) {
    let sent = events("w", 2_500);
    let outcomes = far.sink.publish_all(&sent).await;
    assert_eq!(outcomes.len(), sent.len());
    assert!(outcomes.iter().all(Result::is_ok), "{:?}", outcomes.iter().find(|outcome| outcome.is_err()));
    let arrived = far.arrived(2_500).await;
    assert_eq!(arrived.len(), 2_500);
    let bodies: BTreeSet<_> = arrived.iter().map(|message| message.body.as_slice()).collect();
    assert_eq!(bodies, sent.iter().map(|event| event.body().as_ref()).collect());
}

async fn an_empty_window_is_no_work(far: Far) {
    far.proxy.down().await;
    assert!(far.sink.publish_all(&[]).await.is_empty());
}

async fn one_event_that_cannot_be_taken_does_not_touch_its_neighbours(mut far: Far) {
    let mut window = events("n", 5);
    window[2] = event("poison", LARGE);
    let outcomes = far.sink.publish_all(&window).await;
    let poisoned = outcomes[2].as_ref().unwrap_err();
    assert_eq!(poisoned.verdict(), Verdict::Permanent, "{poisoned:?}");
    assert_eq!(kinds(&outcomes), ["ok", "ok", poisoned.kind(), "ok", "ok"]);
    let arrived = far.arrived(4).await;
    let bodies: BTreeSet<_> = arrived.iter().map(|message| message.body.as_slice()).collect();
    assert_eq!(bodies, [0, 1, 3, 4].map(|i: usize| window[i].body().as_ref()).into());
}

async fn a_far_side_that_is_down_fails_each_event_and_takes_them_when_it_is_back(mut far: Far) {
    let sent = events("d", 3);
    assert_eq!(kinds(&far.sink.publish_all(&sent[..1]).await), ["ok"]);
    far.proxy.down().await;
    let outcomes = far.sink.publish_all(&sent).await;
    assert_eq!(outcomes.len(), 3);
    for outcome in &outcomes {
        let error = outcome.as_ref().unwrap_err();
        assert!(matches!(error.kind(), "connect" | "timeout"), "{error:?}");
        assert_eq!(error.verdict(), Verdict::Retry { after: None });
    }
    assert!(far.sink.check().await.is_err());
    far.proxy.up().await;
    far.sink.check().await.unwrap();
    assert_eq!(kinds(&far.sink.publish_all(&sent).await), ["ok"; 3]);
    let arrived = far.arrived(4).await;
    let bodies: BTreeSet<_> = arrived.iter().map(|message| message.body.as_slice()).collect();
    assert_eq!(bodies, sent.iter().map(|event| event.body().as_ref()).collect());
}

macro_rules! conformance {
    ($($sink:ident)*) => { $(
        mod $sink {
            conformance! { @tests $sink
                the_body_arrives_byte_for_byte_and_every_attribute_beside_it, 30;
                a_window_of_2500_arrives_whole_and_each_event_once, 30;
                an_empty_window_is_no_work, 30;
                one_event_that_cannot_be_taken_does_not_touch_its_neighbours, 30;
                a_far_side_that_is_down_fails_each_event_and_takes_them_when_it_is_back, 4;
            }
        }
    )* };
    (@tests $sink:ident $($test:ident, $seconds:literal;)*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            let name = concat!("conformance::", stringify!($sink), "::", stringify!($test));
            let timeout = super::Duration::from_secs($seconds);
            let Some(far) = crate::far::$sink(name, timeout).await else { return };
            super::$test(far).await;
        }
    )* };
}

conformance! { memory http http_binary rabbitmq pubsub }

/// Its `Ok` means stored: it takes events of any size, whether or not its subscribers are there.
mod embedded {
    conformance! { @tests embedded
        the_body_arrives_byte_for_byte_and_every_attribute_beside_it, 30;
        a_window_of_2500_arrives_whole_and_each_event_once, 30;
        an_empty_window_is_no_work, 30;
    }
}
