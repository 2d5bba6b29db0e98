//! Counts what is logged as a warning or an error, so that an alert can ask for a human to read, and what becomes of
//! spans.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SeverityLabel {
    level: &'static str,
}

#[derive(Clone, Debug)]
pub(super) struct Counts(Family<SeverityLabel, Counter>);

impl Default for Counts {
    fn default() -> Self {
        let counts = Family::default();
        for level in ["warn", "error"] {
            drop(counts.get_or_create(&SeverityLabel { level }));
        }
        Self(counts)
    }
}

impl Counts {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("watchfire_log_events", "Warnings and errors that were logged", self.0.clone());
    }

    pub(super) fn layer(&self) -> CountLayer {
        let of = |level| self.0.get_or_create(&SeverityLabel { level }).clone();
        CountLayer { warnings: of("warn"), errors: of("error") }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

/// Spans by what became of them.
#[derive(Clone, Debug)]
pub(super) struct SpanCounts {
    family: Family<OutcomeLabel, Counter>,
    pub(super) sent: Counter,
    pub(super) failed: Counter,
    pub(super) dropped: Counter,
}

impl Default for SpanCounts {
    fn default() -> Self {
        let family = Family::default();
        let of = |outcome| family.get_or_create_owned(&OutcomeLabel { outcome });
        let (sent, failed, dropped) = (of("sent"), of("failed"), of("dropped"));
        Self { family, sent, failed, dropped }
    }
}

impl SpanCounts {
    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Spans by what became of them: sent, failed with the request that held them, or dropped since the \
                    collector was too slow";
        registry.register("watchfire_spans", help, self.family.clone());
    }
}

pub(super) struct CountLayer {
    warnings: Counter,
    errors: Counter,
}

impl<S: Subscriber> Layer<S> for CountLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        match *event.metadata().level() {
            Level::WARN => {
                self.warnings.inc();
            }
            Level::ERROR => {
                self.errors.inc();
            }
            _ => {}
        }
    }
}
