//! Takes what is due to the broker: in windows, each event with its own outcome.
//!
//! What may pass is tried again within its cycle, alone: nothing is published twice because a neighbour failed. When a
//! broker takes nothing of a window and keeps taking nothing, the rest of the cycle is counted as failed without
//! waiting for each window again; the next cycle decides anew.
//!
//! While the list is still being read, an event waits up to [`LINGER`] for others to fill its window. What became of a
//! window is told while the next one is on its way: a thousand lines of the log take as long as a tenth of a window.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, debug, error, info, warn};
use watchfire_delivery::retry::{Backoff, Verdict};
use watchfire_delivery::{CloudEvent, EventSink, sink};
use watchfire_runtime::chain;
use watchfire_runtime::clock;
use watchfire_runtime::health::{Dependency, Heartbeat};

use crate::ceiling::Ceiling;
use crate::decision::Reason;
use crate::engine::{About, Due};
use crate::metrics::Metrics;
use crate::notices::{Kind, Notices};
use crate::trace::{self, Destination};

/// So many events go out without waiting for more: what fills one request to a broker.
const ENOUGH: usize = 1000;

/// How long an event waits for the rest of its window: a small one costs the broker a round trip like a full one. Long
/// enough for the next pages to come in, which take milliseconds, and nothing against a poll interval of seconds.
const LINGER: Duration = Duration::from_millis(50);

/// Nothing due for so long, and a broker that answers is not called away any more for what it did not take.
const QUIET: Duration = Duration::from_mins(5);

/// The kind of the one error that is about the broker's routes.
const UNROUTABLE: &str = "unroutable";

/// The kind of a broker's no to one event. That every event gets it is about the broker: a queue that is full.
const REFUSED: &str = "refused";

/// What became of events behind a window of which the broker took none.
const NOT_TRIED: &str = "not tried: the broker took none of the events before it";

/// Attempts for one event within one cycle.
const ATTEMPTS: u32 = 4;

/// A broker that asks for more time than this gets it: the next cycle decides anew.
const MAX_WAIT: Duration = Duration::from_secs(10);

const BACKOFF: Backoff =
    Backoff { initial: Duration::from_millis(200), multiplier: 2.0, jitter: 0.1, max: Duration::from_secs(2) };

/// Publishes the events of one sentinel.
#[derive(Clone)]
pub(crate) struct Publisher {
    sink: Arc<dyn EventSink>,
    destination: Destination,
    metrics: Metrics,
    ceiling: Option<Arc<Ceiling>>,
    /// What the broker's last failure was; told once per change.
    state: Arc<Mutex<Option<Failing>>>,
    /// Which refusals of single events have been told.
    notices: Arc<Mutex<Notices>>,
}

/// The broker does not take events.
#[derive(Clone, Copy)]
struct Failing {
    kind: &'static str,
    /// When that was last seen.
    at: Instant,
}

/// An event of which it is known what became of it, for this cycle.
pub(crate) struct Settled {
    pub(crate) due: Due,
    /// When that was known.
    pub(crate) at: Timestamp,
    /// Why the broker did not take it; nothing if it confirmed.
    pub(crate) refused: Option<String>,
}

/// What one attempt at a window came to.
#[derive(Default)]
struct Round {
    /// The first error that is about the broker or its routes, not about one event.
    told: Option<sink::Error>,
    /// The first refusal by the broker of one event.
    refused: Option<sink::Error>,
    /// Nothing was taken, and every error was about the broker as a whole.
    sink_wide: bool,
    /// The longest wait that was asked for.
    wait: Option<Duration>,
}

/// What became of a cycle's events.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcome {
    pub(crate) published: u64,
    pub(crate) failed: u64,
    /// The broker answered when the cycle began.
    pub(crate) answers: bool,
    /// The last word about the broker was that it does not take events, whether or not any was due.
    pub(crate) broker_away: bool,
}

impl Publisher {
    pub(crate) fn new(sink: Arc<dyn EventSink>, metrics: Metrics, ceiling: Option<Ceiling>) -> Self {
        let destination = Destination::new(sink.kind(), metrics.topic());
        let ceiling = ceiling.map(Arc::new);
        Self { sink, destination, metrics, ceiling, state: Arc::default(), notices: Arc::default() }
    }

    /// Stays below a ceiling that others stay below as well.
    pub(crate) fn share(&mut self, ceiling: Arc<Ceiling>) {
        self.ceiling = Some(ceiling);
    }

    /// How many events go out together at the most.
    pub(crate) fn window(&self) -> usize {
        let most = self.sink.window();
        self.ceiling.as_ref().map_or(most, |ceiling| ceiling.window().min(most))
    }

    /// Waits until a window may go out.
    async fn turn(&self, events: usize) {
        if let Some(ceiling) = &self.ceiling {
            self.metrics.held_back(ceiling.turn(events).await);
        }
    }

    /// Publishes until the channel closes; `settled` hears of each event, with others, that it is confirmed, or why it
    /// is given up for this cycle. Told to stop, it finishes the window in hand and leaves the rest to the next start.
    pub(crate) async fn run(
        &self,
        due: mpsc::Receiver<Due>,
        broker: &Dependency,
        heartbeat: &Heartbeat,
        token: &CancellationToken,
        mut settled: impl FnMut(Vec<Settled>),
    ) -> Outcome {
        let (sender, mut known) = mpsc::channel::<(Span, Vec<Settled>)>(1);
        // First the windows: each is on its way before there is time to tell of the one before.
        let (outcome, ()) = join(self.publish(due, broker, heartbeat, token, sender), async {
            while let Some((span, events)) = known.recv().await {
                span.in_scope(|| self.tell_published(&events));
                settled(events);
            }
        })
        .await;
        outcome
    }

    async fn publish(
        &self,
        mut due: mpsc::Receiver<Due>,
        broker: &Dependency,
        heartbeat: &Heartbeat,
        token: &CancellationToken,
        known: mpsc::Sender<(Span, Vec<Settled>)>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let (mut down, mut refused) = (false, None);
        // It may have to wait for other sentinels of the process; a stop does not.
        match token.run_until_cancelled(heartbeat.during(self.sink.check())).await {
            Some(Ok(())) => {
                outcome.answers = true;
                self.answers(broker);
            }
            Some(Err(error)) => self.tell(broker, &error),
            None => {}
        }
        // Whoever hears of it lives as long as this does.
        let settle = async |span, events: Vec<Settled>| drop(known.send((span, events)).await);
        let size = self.window();
        let mut window = Vec::with_capacity(size);
        while fill(&mut due, &mut window, size).await {
            if token.is_cancelled() {
                break;
            }
            if down {
                let at = clock::now();
                self.give_up(&mut outcome, window.len());
                let untried = |due: Due| Settled { due, at, refused: Some(NOT_TRIED.to_owned()) };
                settle(Span::none(), window.drain(..).map(untried).collect()).await;
                continue;
            }
            down = true;
            for attempt in 0.. {
                let turn = heartbeat.during(self.turn(window.len()));
                if token.run_until_cancelled(turn).await.is_none() {
                    return outcome;
                }
                let before = outcome.published;
                let span = self.destination.publish(&window);
                let trying = heartbeat.during(self.attempt(&span, attempt, &mut window, &mut outcome, token));
                let (round, done) = trying.await;
                settle(span, done).await;
                // One event that is taken, or refused for what it is, shows that the broker is there.
                down &= round.sink_wide;
                match &round.told {
                    Some(error) => self.tell(broker, error),
                    None if outcome.published > before => self.recovered(broker),
                    None => self.answers(broker),
                }
                refused = refused.or(round.refused);
                if window.is_empty() {
                    break;
                }
                self.metrics.retried(window.len());
                let pause = heartbeat.during(sleep(BACKOFF.delay(attempt, rand::random(), round.wait)));
                if token.run_until_cancelled(pause).await.is_none() {
                    return outcome;
                }
            }
        }
        // One event may be refused for what it is.
        if let Some(error) = refused.filter(|_| outcome.published == 0 && outcome.failed > 1) {
            self.tell(broker, &error);
        }
        outcome.broker_away = self.failing().is_some();
        outcome
    }

    /// Tries a window once.
    async fn attempt(
        &self,
        span: &Span,
        attempt: u32,
        window: &mut Vec<Due>,
        outcome: &mut Outcome,
        token: &CancellationToken,
    ) -> (Round, Vec<Settled>) {
        if attempt == 0 {
            self.destination.stamp(span, window);
        }
        let (events, abouts): (Vec<_>, Vec<_>) = window.drain(..).map(|due| (due.event, due.about)).unzip();
        let begun = Instant::now();
        let results = sink::publish_all(&*self.sink, &events).instrument(span.clone()).await;
        self.metrics.window(begun.elapsed());
        let last = attempt + 1 == ATTEMPTS || token.is_cancelled();
        let results = events.into_iter().zip(abouts).zip(results);
        let (round, settled) = span.in_scope(|| self.settle(results, last, window, outcome));
        if let Some(error) = &round.told {
            trace::failed(span, error.kind(), error);
        }
        (round, settled)
    }

    /// Settles each event of a window by its own result; what is to be tried again goes back into it.
    fn settle(
        &self,
        results: impl ExactSizeIterator<Item = ((CloudEvent, About), Result<(), sink::Error>)>,
        last: bool,
        window: &mut Vec<Due>,
        outcome: &mut Outcome,
    ) -> (Round, Vec<Settled>) {
        let now = clock::now();
        let mut round = Round { sink_wide: true, ..Round::default() };
        let mut settled = Vec::with_capacity(results.len());
        let mut published = [0; Reason::ALL.len()];
        for ((event, about), result) in results {
            let due = Due { event, about };
            let (event, about) = (&due.event, &due.about);
            let Err(error) = result else {
                published[about.reason as usize] += 1;
                settled.push(Settled { due, at: now, refused: None });
                continue;
            };
            debug!(id = about.id, event = event.id(), error = %chain(&error), "event refused");
            round.sink_wide &= error.is_sink_wide();
            // Another replica publishes it, which is as it should be.
            if matches!(error, sink::Error::Standby) {
                settled.push(Settled { due, at: now, refused: Some(chain(&error)) });
                continue;
            }
            let told = error.is_sink_wide() || error.kind() == UNROUTABLE;
            if !told && self.is_news(&about.id) {
                warn!(id = about.id, error = %chain(&error), hint = error.hint(),
                    "an event is refused for what it is, deciding again every poll interval");
            }
            match error.verdict() {
                // Where nothing is routed, a moment changes nothing; the next cycle decides again.
                Verdict::Retry { after } if !last && after <= Some(MAX_WAIT) && error.kind() != UNROUTABLE => {
                    round.wait = round.wait.max(after);
                    window.push(due);
                }
                Verdict::Retry { .. } | Verdict::Permanent | Verdict::Provisional | Verdict::Pause => {
                    settled.push(Settled { due, at: now, refused: Some(chain(&error)) });
                    self.give_up(outcome, 1);
                }
            }
            if told {
                round.told.get_or_insert(error);
            } else if error.kind() == REFUSED {
                round.refused.get_or_insert(error);
            }
        }
        for (reason, count) in Reason::ALL.into_iter().zip(published).filter(|(_, count)| *count > 0) {
            self.metrics.published(reason, count);
            outcome.published += count;
            round.sink_wide = false;
        }
        (round, settled)
    }

    /// Says of each event that is confirmed that it is.
    fn tell_published(&self, settled: &[Settled]) {
        for Settled { due: Due { event, about }, at, .. } in settled.iter().filter(|it| it.refused.is_none()) {
            let About { reason, id, generation, changed, .. } = about;
            if let Some(changed) = changed {
                self.metrics.spec_published(at.duration_since(*changed));
            }
            info!(id, generation, decision_reason = reason.as_str(), event = event.id(), "event published");
        }
    }

    /// Whether no refusal of this resource's events was told yet.
    fn is_news(&self, id: &str) -> bool {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).is_news(Kind::Refused, id)
    }

    fn failing(&self) -> Option<&'static str> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).map(|failing| failing.kind)
    }

    fn give_up(&self, outcome: &mut Outcome, events: usize) {
        outcome.failed += events as u64;
        self.metrics.broker_errors(events as u64);
    }

    /// Says what is wrong with the broker: to readiness always, to the log once per change.
    fn tell(&self, broker: &Dependency, error: &sink::Error) {
        broker.down(format!("{}; {}", chain(error), error.hint()));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let failing = Failing { kind: error.kind(), at: Instant::now() };
        if state.replace(failing).is_none_or(|before| before.kind != failing.kind) {
            error!(error = %chain(error), hint = error.hint(), "the broker does not take events, deciding again every poll interval");
        }
    }

    /// The broker answers, which ends what is about the broker as a whole. Only an event that is taken shows that there
    /// is a route again, or room in a queue.
    fn answers(&self, broker: &Dependency) {
        if !matches!(self.failing(), Some(UNROUTABLE | REFUSED)) {
            self.recovered(broker);
        }
    }

    /// The broker answers, and nothing is due that would show whether there is a route again, or room: after a while
    /// nobody is kept from their sleep for it.
    pub(crate) fn nothing_due(&self, broker: &Dependency, outcome: &mut Outcome) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if outcome.answers && state.take_if(|failing| failing.at.elapsed() >= QUIET).is_some() {
            broker.up();
            outcome.broker_away = false;
            info!("nothing is due any more that the broker did not take; whether it takes events is not known");
        }
    }

    fn recovered(&self, broker: &Dependency) {
        broker.up();
        if self.state.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            info!("the broker takes events again");
        }
    }
}

/// Gathers a window: what is there, if that is enough, else as much as comes within the linger of the first.
async fn fill(due: &mut mpsc::Receiver<Due>, window: &mut Vec<Due>, size: usize) -> bool {
    if due.recv_many(window, size).await == 0 {
        return false;
    }
    let enough = size.min(ENOUGH);
    let gathering = async { while window.len() < enough && due.recv_many(window, size - window.len()).await > 0 {} };
    // Over: what has come goes out.
    timeout(LINGER, gathering).await.ok();
    true
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;
    use prometheus_client::registry::Registry;
    use serde_json::value::RawValue;
    use watchfire_delivery::event::Attributes;
    use watchfire_runtime::health::Health;

    use super::*;
    use crate::adapters::Set;
    use crate::metrics::{Families, Shard};

    const WINDOW: usize = 2 * ENOUGH;

    fn due(id: usize) -> Due {
        let attributes = Attributes {
            id: id.to_string(),
            source: "test".to_owned(),
            ty: "test".to_owned(),
            subject: None,
            time: None,
            extensions: Vec::new(),
        };
        let about = About {
            reason: Reason::MaxAgeReady,
            id: id.to_string(),
            generation: None,
            silent: Set::default(),
            changed: None,
        };
        Due { event: CloudEvent::new(attributes, RawValue::NULL.to_owned()), about }
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_waits_for_more_but_not_for_long() {
        let (sender, mut receiver) = mpsc::channel(2 * WINDOW);
        let mut window = Vec::new();
        let later = async {
            sender.send(due(0)).await.unwrap();
            sleep(LINGER / 2).await;
            sender.send(due(1)).await.unwrap();
            sleep(LINGER).await;
            sender.send(due(2)).await.unwrap();
        };
        let begun = Instant::now();
        let gathered = async {
            assert!(fill(&mut receiver, &mut window, WINDOW).await);
            (std::mem::take(&mut window).len(), begun.elapsed())
        };
        let ((), (gathered, took)) = tokio::join!(later, gathered);
        assert_eq!(gathered, 2);
        assert!((LINGER..2 * LINGER).contains(&took), "{took:?}");
    }

    /// Refuses every event for the moment, and notes when it was asked.
    #[derive(Default)]
    struct Busy(Mutex<Vec<Instant>>);

    impl EventSink for Busy {
        fn kind(&self) -> &'static str {
            "busy"
        }

        fn publish_all<'a>(&'a self, events: &'a [CloudEvent]) -> BoxFuture<'a, Vec<Result<(), sink::Error>>> {
            self.0.lock().unwrap().push(Instant::now());
            let refusal = |_| Err(sink::Error::Timeout { target: "busy".to_owned(), after: Duration::ZERO });
            async move { events.iter().map(refusal).collect() }.boxed()
        }

        fn check(&self) -> BoxFuture<'_, Result<(), sink::Error>> {
            async { Ok(()) }.boxed()
        }
    }

    fn publisher(sink: &Arc<Busy>) -> Publisher {
        let shard = Shard {
            resource_type: "clusters".to_owned(),
            resource_selector: "all".to_owned(),
            shard: "all".to_owned(),
        };
        let metrics = Families::register(&mut Registry::default()).of(&shard, "busy", "topic".to_owned());
        Publisher::new(Arc::clone(sink) as Arc<dyn EventSink>, metrics, None)
    }

    /// The reports come without the events: nothing is due that could show that there is room again.
    #[tokio::test(start_paused = true)]
    async fn what_a_broker_did_not_take_is_not_told_of_for_ever_where_nothing_is_due_any_more() {
        let (publisher, health) = (publisher(&Arc::default()), Health::new());
        let broker = health.dependency("broker");
        let away = |answers| {
            let mut outcome = Outcome { answers, broker_away: true, ..Outcome::default() };
            publisher.nothing_due(&broker, &mut outcome);
            (outcome.broker_away, health.readiness().checks["broker"].message.is_empty())
        };
        let unroutable = || sink::Error::Refused { target: "busy".into(), detail: "the queue is full".into() };
        publisher.tell(&broker, &unroutable());
        tokio::time::advance(QUIET.saturating_sub(Duration::from_secs(1))).await;
        publisher.tell(&broker, &unroutable());
        tokio::time::advance(QUIET.saturating_sub(Duration::from_secs(1))).await;
        assert_eq!(away(true), (true, false), "not for long enough");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(away(false), (true, false), "it does not answer");
        assert_eq!(away(true), (false, true));
        assert_eq!(publisher.failing(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn each_attempt_waits_twice_as_long_as_the_one_before() {
        let (sink, health) = (Arc::new(Busy::default()), Health::new());
        let publisher = publisher(&sink);
        let (sender, receiver) = mpsc::channel(1);
        sender.send(due(0)).await.unwrap();
        drop(sender);
        let (broker, heartbeat) = (health.dependency("broker"), health.heartbeat("poll", Duration::MAX));
        let outcome = publisher.run(receiver, &broker, &heartbeat, &CancellationToken::new(), |_| {}).await;
        assert_eq!((outcome.published, outcome.failed), (0, 1));
        let asked = sink.0.lock().unwrap().clone();
        let pauses: Vec<_> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses.len(), 3, "{pauses:?}");
        for (pause, pure) in pauses.iter().zip([200, 400, 800]) {
            // A tenth of it is jitter; the timer is a millisecond wide.
            let (least, most) = (Duration::from_millis(pure * 9 / 10), Duration::from_millis(pure * 11 / 10 + 1));
            assert!((least..=most).contains(pause), "{pauses:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_enough_for_a_window_waits_for_nothing() {
        let (sender, mut receiver) = mpsc::channel(2 * WINDOW);
        for id in 0..WINDOW + ENOUGH {
            sender.send(due(id)).await.unwrap();
        }
        drop(sender);
        let (mut window, begun) = (Vec::new(), Instant::now());
        for size in [WINDOW, ENOUGH] {
            assert!(fill(&mut receiver, &mut window, WINDOW).await);
            assert_eq!(std::mem::take(&mut window).len(), size);
        }
        assert!(!fill(&mut receiver, &mut window, WINDOW).await);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
