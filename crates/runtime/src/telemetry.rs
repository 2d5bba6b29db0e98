//! Logs and traces: one JSON or text line per event, and OTLP spans when a collector is named.
//!
//! Log lines go to standard output, or standard error, and carry `timestamp level message component version hostname`,
//! then the spans' and the event's own fields, flat. Spans go to `OTEL_EXPORTER_OTLP_ENDPOINT` over HTTP, from a
//! bounded queue on a thread of their own: a collector that is away costs spans, never time, and one line in the log.

mod count;
mod format;
#[cfg(test)]
mod tests;
mod trace;

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use prometheus_client::registry::Registry;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::level_filters::LevelFilter;
use tracing::{Dispatch, Level, Metadata};
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::config::Env;

pub use trace::traceparent;

/// The target of spans that are for traces only: their fields stand in no log line, and without a collector they cost
/// nothing.
pub const TRACE: &str = "watchfire_trace";

/// Libraries that would tell too much: lapin logs whole returned messages, and with each connection that breaks two or
/// three errors, which reach us as errors of its calls and are told once, here; OpenTelemetry each failed batch (which
/// is told once, here), the HTTP stack each connection. `RUST_LOG` can name them to hear them all the same.
const TAMED: &str = "watchfire_trace=off,lapin=off,kube_client=off,kube_runtime=off,\
opentelemetry=off,opentelemetry_sdk=off,opentelemetry_otlp=off,opentelemetry_http=off,\
h2=warn,hyper=warn,hyper_util=warn,reqwest=warn,rustls=warn,tower=warn";

/// How a log line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One JSON object per line.
    #[default]
    Json,
    /// `timestamp LEVEL [component] [version] [hostname] message key=value`.
    Text,
}

impl FromStr for LogFormat {
    type Err = TelemetryError;

    fn from_str(text: &str) -> Result<Self, TelemetryError> {
        match text {
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            _ => Err(TelemetryError::Format(text.to_owned())),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Json => "json",
            Self::Text => "text",
        })
    }
}

/// Where log lines go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogOutput {
    /// Standard output.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
}

impl FromStr for LogOutput {
    type Err = TelemetryError;

    fn from_str(text: &str) -> Result<Self, TelemetryError> {
        match text {
            "stdout" => Ok(Self::Stdout),
            "stderr" => Ok(Self::Stderr),
            _ => Err(TelemetryError::Output(text.to_owned())),
        }
    }
}

impl fmt::Display for LogOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        })
    }
}

/// What is logged, and how.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// The service's name: in each line, and the `service.name` of traces.
    pub component: String,
    /// The service's version.
    pub version: String,
    /// `off`, `error`, `warn`, `info`, `debug` or `trace`; directives as in `RUST_LOG` are understood too.
    pub level: String,
    /// How a line is written.
    pub format: LogFormat,
    /// Where lines go.
    pub output: LogOutput,
}

/// Why telemetry can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The level or `RUST_LOG` is not understood.
    #[error("log level {level:?}: write off, error, warn, info, debug, trace, or directives such as info,hyper=debug")]
    Level {
        /// What was written.
        level: String,
        /// What is wrong with it, where it is a directive.
        #[source]
        source: Option<tracing_subscriber::filter::ParseError>,
    },
    /// The format is not understood.
    #[error("log format {0:?}: write json or text")]
    Format(String),
    /// The output is not understood.
    #[error("log output {0:?}: write stdout or stderr")]
    Output(String),
    /// The collector's address is not understood. It is not repeated: it may hold a password.
    #[error("send traces to what is no address with http or https (see OTEL_EXPORTER_OTLP_ENDPOINT)")]
    Endpoint,
    /// The exporter of traces can't be made.
    #[error("send traces to {endpoint} (see OTEL_EXPORTER_OTLP_ENDPOINT)")]
    Exporter {
        /// The collector's URL, without what may be secret in it.
        endpoint: String,
    },
    /// The HTTP client of the exporter can't be made.
    #[error("make the client that sends traces")]
    Client(#[source] reqwest::Error),
    /// Traces are sent from the async runtime, and there is none here.
    #[error("set up traces outside of the async runtime")]
    NoRuntime(#[source] tokio::runtime::TryCurrentError),
    /// Telemetry was set up before.
    #[error("set up logging a second time")]
    AlreadySet(#[source] tracing::dispatcher::SetGlobalDefaultError),
}

/// Logs and traces of this process, until it is shut down.
#[derive(Debug)]
pub struct Telemetry {
    counts: count::Counts,
    spans: count::SpanCounts,
    traces: Option<opentelemetry_sdk::trace::SdkTracerProvider>,
}

impl Telemetry {
    /// Sets up logs and, where `OTEL_EXPORTER_OTLP_ENDPOINT` is set, traces; panics are logged from then on.
    ///
    /// `RUST_LOG` overrides the level. Call it once, from inside the async runtime.
    pub fn init(config: &LogConfig, env: &Env) -> Result<Self, TelemetryError> {
        let (telemetry, dispatch, warnings) = match config.output {
            LogOutput::Stdout => Self::build(config, env, io::stdout)?,
            LogOutput::Stderr => Self::build(config, env, io::stderr)?,
        };
        tracing::dispatcher::set_global_default(dispatch).map_err(TelemetryError::AlreadySet)?;
        std::panic::set_hook(Box::new(|panic| {
            let location = panic.location().map(ToString::to_string);
            tracing::error!(location, error = panic.payload_as_str(), "panic");
        }));
        for warning in warnings {
            tracing::warn!(warning, "trace settings");
        }
        Ok(telemetry)
    }

    fn build<W>(config: &LogConfig, env: &Env, writer: W) -> Result<(Self, Dispatch, Vec<String>), TelemetryError>
    where
        W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
    {
        check_level(&config.level)?;
        let filter = filter(env.get("RUST_LOG").unwrap_or(&config.level))?
            .and(filter_fn(shows_no_secret).with_max_level_hint(LevelFilter::TRACE));
        let hostname = env
            .get("HOSTNAME")
            .map_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned(), ToOwned::to_owned);
        let counts = count::Counts::default();
        let spans = count::SpanCounts::default();
        let (traces, warnings) = trace::provider(config, &hostname, env, spans.clone())?;
        let lines = format::Lines::new(config, hostname, writer);
        let subscriber = tracing_subscriber::registry()
            .with(lines.and_then(counts.layer()).with_filter(filter))
            .with(traces.as_ref().map(trace::layer));
        Ok((Self { counts, spans, traces }, Dispatch::new(subscriber), warnings))
    }

    /// Registers `watchfire_log_events`, warnings and errors that were logged, and `watchfire_spans`.
    pub fn register(&self, registry: &mut Registry) {
        self.counts.register(registry);
        self.spans.register(registry);
    }

    /// Sends the spans that are still queued, for at most `limit`.
    pub async fn shutdown(self, limit: Duration) {
        let Some(traces) = self.traces else { return };
        let flush = tokio::task::spawn_blocking(move || traces.shutdown_with_timeout(limit));
        // Spans that can't be delivered at the end are lost, as at any other time; the exporter has told so.
        drop(tokio::time::timeout(limit, flush).await);
    }
}

/// Leaves out what no level may show: lapin traces its frames, and that of the login holds the password.
fn shows_no_secret(line: &Metadata<'_>) -> bool {
    !(line.target().starts_with("lapin") && *line.level() == Level::TRACE)
}

/// Says whether a level, or directives, can be understood. A word alone has to be a level: as the directive for a
/// module of that name, which a mistyped level is, it would silence everything else.
pub fn check_level(level: &str) -> Result<(), TelemetryError> {
    let is_word = |directive: &&str| !directive.contains(['=', '[']);
    let mut words = level.split(',').map(str::trim).filter(is_word);
    if words.any(|word| word.parse::<LevelFilter>().is_err()) {
        return Err(TelemetryError::Level { level: level.to_owned(), source: None });
    }
    filter(level).map(drop)
}

/// The level, with the noisy libraries tamed unless it names them itself.
fn filter(level: &str) -> Result<EnvFilter, TelemetryError> {
    EnvFilter::builder()
        .parse(format!("{TAMED},{level}"))
        .map_err(|source| TelemetryError::Level { level: level.to_owned(), source: Some(source) })
}
