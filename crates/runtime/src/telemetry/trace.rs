//! Spans over OTLP: where they go, which are kept, and what is told when they can't be sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter as OtlpExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, Span as SdkSpan, SpanData, SpanExporter,
    SpanProcessor,
};
use reqwest::header::{HeaderName, HeaderValue};
use tokio::runtime::Handle;
use tracing::level_filters::LevelFilter;
use tracing::{Span, Subscriber, info, warn};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;
use url::Url;

use super::count::SpanCounts;
use super::{LogConfig, TelemetryError};
use crate::config::Env;
use crate::redact::address;

/// How long one batch may take; the queue drops spans meanwhile, nobody waits.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Spans that wait to be sent, unless `OTEL_BSP_MAX_QUEUE_SIZE` says otherwise.
const MAX_QUEUE: usize = 2048;

/// Where collectors take OTLP over gRPC by custom.
const GRPC_PORT: u16 = 4317;

/// Returns a span in the form of the W3C header `traceparent`, for the request or the event that carries it on.
///
/// Nothing when traces are not sent. The span is exported when it ends, if its trace is sampled, as the last digit
/// says.
pub fn traceparent(span: &Span) -> Option<String> {
    let context = span.context();
    let span = context.span().span_context().clone();
    span.is_valid().then(|| format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8()))
}

/// Makes the provider if a collector is named; with warnings about settings that are not followed.
pub(super) fn provider(
    config: &LogConfig,
    hostname: &str,
    env: &Env,
    counts: SpanCounts,
) -> Result<(Option<SdkTracerProvider>, Vec<String>), TelemetryError> {
    let Some(url) = endpoint(env) else { return Ok((None, Vec::new())) };
    let url = url.parse::<Url>().ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let url = url.ok_or(TelemetryError::Endpoint)?;
    let runtime = Handle::try_current().map_err(TelemetryError::NoRuntime)?;
    let mut warnings = unspoken(&url, env);
    let sampler = sampler(env).unwrap_or_else(|warning| {
        warnings.push(warning);
        Sampler::ParentBased(Box::new(Sampler::AlwaysOn))
    });
    let limit = env.get("OTEL_BSP_MAX_QUEUE_SIZE").and_then(|size| size.parse().ok()).unwrap_or(MAX_QUEUE);
    let waiting = Arc::new(AtomicUsize::new(0));
    let exporter = Exporter {
        inner: Arc::new(exporter(&url)?),
        runtime,
        endpoint: address(&url),
        failing: AtomicBool::new(false),
        waiting: Arc::clone(&waiting),
        counts: counts.clone(),
    };
    let queue = BatchSpanProcessor::builder(exporter)
        .with_batch_config(BatchConfigBuilder::default().with_max_queue_size(limit).build())
        .build();
    let provider = SdkTracerProvider::builder()
        .with_span_processor(Bounded { queue, waiting, limit, counts })
        .with_sampler(sampler)
        .with_resource(resource(config, hostname, env))
        .build();
    Ok((Some(provider), warnings))
}

/// Warns of what the collector at `url` may be meant to be spoken to in, and is not.
fn unspoken(url: &Url, env: &Env) -> Vec<String> {
    let mut warnings = Vec::new();
    let protocol = env.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL").or_else(|| env.get("OTEL_EXPORTER_OTLP_PROTOCOL"));
    if let Some(protocol) = protocol.filter(|protocol| *protocol != "http/protobuf") {
        warnings.push(format!("OTLP protocol {protocol:?} is not spoken, http/protobuf is used (port 4318 by custom)"));
    }
    if url.port() == Some(GRPC_PORT) {
        warnings.push(format!(
            "{} is where collectors take OTLP over gRPC, which is not spoken: name their port for http/protobuf, by \
             custom 4318",
            address(url)
        ));
    }
    warnings
}

/// What posts spans to `url`.
fn exporter(url: &Url) -> Result<OtlpExporter, TelemetryError> {
    crate::install_crypto_provider();
    let client = crate::http::client_for(url.as_str())
        .connect_timeout(EXPORT_TIMEOUT)
        .timeout(EXPORT_TIMEOUT)
        .build()
        .map_err(TelemetryError::Client)?;
    // A request of the client's own, which has a header instead of user and password. The exporter would drop them.
    let request = client.post(url.clone()).build().map_err(|error| TelemetryError::Client(error.without_url()))?;
    let header = |(name, value): (&HeaderName, &HeaderValue)| Some((name.to_string(), value.to_str().ok()?.to_owned()));
    OtlpExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(request.url().as_str())
        .with_headers(request.headers().iter().filter_map(header).collect())
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(EXPORT_TIMEOUT)
        .build()
        // Without what the library says: it quotes the address, with what may be secret in it.
        .map_err(|_| TelemetryError::Exporter { endpoint: address(url) })
}

/// Who sends the spans.
fn resource(config: &LogConfig, hostname: &str, env: &Env) -> Resource {
    let name = env.get("OTEL_SERVICE_NAME").unwrap_or(&config.component).to_owned();
    let attributes = [("service.version", config.version.clone()), ("host.name", hostname.to_owned())];
    Resource::builder()
        .with_attributes(attributes.map(|(key, value)| KeyValue::new(key, value)))
        .with_service_name(name)
        .build()
}

/// The URL that spans are posted to, if they are wanted at all.
fn endpoint(env: &Env) -> Option<String> {
    let off = env.get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        || env.get("OTEL_TRACES_EXPORTER") == Some("none");
    if off {
        return None;
    }
    let whole = env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").map(ToOwned::to_owned);
    whole.or_else(|| {
        let base = env.get("OTEL_EXPORTER_OTLP_ENDPOINT")?;
        Some(format!("{}/v1/traces", base.trim_end_matches('/')))
    })
}

/// The sampler that `OTEL_TRACES_SAMPLER` names; by default everything, unless the parent says otherwise.
pub(super) fn sampler(env: &Env) -> Result<Sampler, String> {
    let name = env.get("OTEL_TRACES_SAMPLER").unwrap_or("parentbased_always_on");
    let (parent_based, name) = name.strip_prefix("parentbased_").map_or((false, name), |name| (true, name));
    let sampler = match name {
        "always_on" => Sampler::AlwaysOn,
        "always_off" => Sampler::AlwaysOff,
        "traceidratio" => {
            let ratio = env.get("OTEL_TRACES_SAMPLER_ARG").unwrap_or("1");
            let ratio = ratio.parse::<f64>().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
            Sampler::TraceIdRatioBased(ratio.ok_or("OTEL_TRACES_SAMPLER_ARG is no number from 0 to 1, all are kept")?)
        }
        _ => return Err("OTEL_TRACES_SAMPLER is not known, all are kept".to_owned()),
    };
    Ok(if parent_based { Sampler::ParentBased(Box::new(sampler)) } else { sampler })
}

/// The layer that turns our own spans into traces.
pub(super) fn layer<S>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'s> LookupSpan<'s> + Send + Sync,
{
    // A task's span lasts as long as the process; with it as their root, all units of work would be one trace.
    let ours = Targets::new()
        .with_target("watchfire", LevelFilter::INFO)
        .with_target("watchfire_runtime::tasks", LevelFilter::OFF);
    // Where in our code a span stands says nothing to whoever reads a trace.
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("watchfire"))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_target(false)
        .with_level(false)
        .with_filter(ours)
}

/// Keeps at most so many spans waiting, and counts the others: the queue behind it tells nobody what it drops.
#[derive(Debug)]
struct Bounded {
    queue: BatchSpanProcessor,
    waiting: Arc<AtomicUsize>,
    limit: usize,
    counts: SpanCounts,
}

impl SpanProcessor for Bounded {
    fn on_start(&self, span: &mut SdkSpan, context: &Context) {
        self.queue.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) < self.limit {
            self.queue.on_end(span);
        } else {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.counts.dropped.inc();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.queue.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.queue.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.queue.set_resource(resource);
    }
}

/// Sends batches from the async runtime, and tells once when that begins to fail and once when it works again.
#[derive(Debug)]
struct Exporter {
    inner: Arc<OtlpExporter>,
    runtime: Handle,
    endpoint: String,
    failing: AtomicBool,
    waiting: Arc<AtomicUsize>,
    counts: SpanCounts,
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let inner = Arc::clone(&self.inner);
        let spans = batch.len();
        self.waiting.fetch_sub(spans, Ordering::Relaxed);
        // The processor's thread has no runtime, the HTTP client needs one. The request has its own timeout.
        let sent = self.runtime.spawn(async move { inner.export(batch).await }).await;
        let sent = sent.unwrap_or_else(|error| Err(OTelSdkError::InternalFailure(error.to_string())));
        let failed = sent.is_err();
        let count = if failed { &self.counts.failed } else { &self.counts.sent };
        count.inc_by(spans as u64);
        if self.failing.swap(failed, Ordering::Relaxed) != failed {
            let endpoint = self.endpoint.as_str();
            if let Err(error) = &sent {
                warn!(endpoint, %error, "traces can't be sent, spans are dropped until they can");
            } else {
                info!(endpoint, "traces are sent again");
            }
        }
        sent
    }

    fn set_resource(&mut self, resource: &Resource) {
        // Called before the first export, when nobody else holds the exporter.
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.set_resource(resource);
        }
    }
}
