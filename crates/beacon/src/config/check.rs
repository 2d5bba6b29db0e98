//! Checks what was read: raw in, checked out, every problem told at its place.

use std::collections::HashMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use url::Url;
use watchfire_delivery::retry::Backoff;
use watchfire_delivery::sink::Error;
use watchfire_delivery::sink::http as sink;
use watchfire_delivery::worker;
use watchfire_runtime::admin::Paths;
use watchfire_runtime::config::{Env, Origin, Problems};
use watchfire_runtime::duration::GoDuration;
use watchfire_runtime::http::{Authorities, read_identity};
use watchfire_runtime::telemetry::{LogFormat, check_level};
use watchfire_runtime::{SecretSource, chain};

use super::raw::{
    RawConfig, RawEndpoint, RawHandshake, RawHealth, RawMetrics, RawResource, RawRetry, RawStorage, RawTls, RawWorker,
};
use super::{App, BeaconConfig, Entry, Ports, Reconciliation, Retention, Storage};
use crate::episode::{Allowed, Rule};
use crate::notice::Envelope;
use crate::storage::Thresholds;

/// Headers that say how a request is sent, or how its body is written.
const OF_THE_CONNECTION: [&str; 11] = [
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Kinds that the API server serves in two groups, each object in both.
const SERVED_TWICE: [(&str, [&str; 2]); 1] = [("Event", ["", "events.k8s.io"])];

/// Whatever comes again and again does not come more often than this.
const SHORTEST: Duration = Duration::from_millis(10);

/// More requests at a time than this are no use to any endpoint.
const MAX_CONCURRENCY: u32 = 1_000;

pub(super) fn check(raw: RawConfig, env: &Env, problems: &mut Problems) -> Option<BeaconConfig> {
    for name in env.garbled().filter(|name| name.starts_with("ENDPOINT_") || *name == "DB_PATH") {
        problems
            .leave_out(Origin::env(name), "is not UTF-8, so that it cannot be read as it is; set it anew, in UTF-8");
    }
    for (list, keys) in [("annotations", &raw.payload.annotations), ("labels", &raw.payload.labels)] {
        for (n, key) in keys.iter().flatten().enumerate().filter(|(_, key)| !is_annotation_key(key)) {
            problems
                .push(format!("payload.{list}[{n}]"), format!("{key:?} is no name: write it as name or domain/name"));
        }
    }
    let (app, typed) = (app(&raw, problems), raw.clone());
    let entries = entries(&raw.resources, problems);
    let key = raw.annotation.key.unwrap_or_else(|| "bakerapps.net.maas".to_owned());
    if !is_annotation_key(&key) {
        problems
            .push("annotation.key", format!("{key:?} is no name of an annotation: write it as name or domain/name"));
    }
    if raw.annotation.values.as_ref().is_some_and(Vec::is_empty) {
        problems
            .push("annotation.values", "is empty, so that nothing would be announced; leave it out to take any value");
    }
    let rule = Rule { key, values: raw.annotation.values.map(|values| values.into_iter().collect()) };
    let allowed = Allowed { annotations: raw.payload.annotations.unwrap_or_default(), labels: raw.payload.labels };
    let envelope = Envelope {
        source: text("cloudEvents.source", raw.cloud_events.source, "/beacon", problems),
        type_prefix: text(
            "cloudEvents.typePrefix",
            raw.cloud_events.type_prefix,
            "net.bakerapps.beacon.resource",
            problems,
        ),
    };
    let concurrency = concurrency(&raw.worker, problems);
    let version = app.as_ref().map(|app| app.version.clone()).unwrap_or_default();
    let endpoint = endpoint(raw.endpoint.clone(), concurrency, &version, env, problems);
    let worker = worker(&raw.worker, &raw.endpoint.retry, concurrency, problems);
    let reconciliation = raw.reconciliation;
    let on_startup = reconciliation.on_startup.unwrap_or(true);
    let reconciliation = reconciliation.enabled.unwrap_or(true).then_some(Reconciliation {
        interval: positive("reconciliation.interval", reconciliation.interval, 15 * 60, problems),
        timeout: positive("reconciliation.timeout", reconciliation.timeout, 10 * 60, problems),
    });
    let retention = raw.retention.enabled.unwrap_or(true).then_some(Retention {
        every: positive("retention.cleanupInterval", raw.retention.cleanup_interval, 60 * 60, problems),
        keep: raw.retention.retention_period.unwrap_or(GoDuration::from_secs(48 * 60 * 60)).get(),
    });
    let storage = storage(raw.storage, env, problems);
    let ports = ports(raw.metrics, raw.health, problems);
    Some(BeaconConfig {
        app: app?,
        entries: entries?,
        rule,
        allowed,
        envelope,
        endpoint: endpoint?,
        worker,
        reconciliation,
        on_startup,
        retention,
        storage,
        ports,
        raw: typed,
    })
}

fn ports(metrics: RawMetrics, health: RawHealth, problems: &mut Problems) -> Ports {
    let given = [
        ("health.livenessPath", health.liveness_path.unwrap_or_else(|| "/healthz".to_owned())),
        ("health.readinessPath", health.readiness_path.unwrap_or_else(|| "/ready".to_owned())),
        ("metrics.path", metrics.path.unwrap_or_else(|| "/metrics".to_owned())),
    ];
    let of_a_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.');
    for (at, (key, path)) in given.iter().enumerate() {
        if path.len() < 2 || !path.starts_with('/') || !path.chars().all(of_a_path) {
            problems.push(*key, format!("{path:?} is no path: write it like /healthz"));
        } else if let Some((other, _)) = given.iter().take(at).find(|(_, other)| other == path) {
            problems.push(*key, format!("{path:?} is {other} already"));
        }
    }
    let [liveness, readiness, served] = given.map(|(_, path)| path);
    // Who knows the other services looks there.
    let usual = Some("/readyz".to_owned()).filter(|usual| ![&liveness, &readiness, &served].contains(&usual));
    let readiness = [readiness].into_iter().chain(usual).collect();
    let served = metrics.enabled.unwrap_or(true).then_some(served);
    Ports {
        metrics: metrics.port.unwrap_or(8080),
        health: health.port.unwrap_or(8080),
        paths: Paths { liveness, readiness, metrics: served },
    }
}

fn storage(raw: RawStorage, env: &Env, problems: &mut Problems) -> Storage {
    let ledger = env.get("DB_PATH").map(PathBuf::from).or(raw.db_path).unwrap_or_else(|| "/data/events.db".into());
    let folder =
        ledger.parent().filter(|folder| !folder.as_os_str().is_empty()).map_or_else(|| ".".into(), Path::to_owned);
    let thresholds =
        Thresholds { warning: raw.warning_threshold.unwrap_or(80), critical: raw.critical_threshold.unwrap_or(90) };
    for (key, threshold) in [("warningThreshold", thresholds.warning), ("criticalThreshold", thresholds.critical)] {
        if !(1..=100).contains(&threshold) {
            problems.push(format!("storage.{key}"), format!("{threshold} is not from 1 to 100 percent"));
        }
    }
    if thresholds.warning > thresholds.critical {
        let Thresholds { warning, critical } = thresholds;
        let by_default = if raw.critical_threshold.is_none() { ", which is the default" } else { "" };
        problems
            .push("storage.warningThreshold", format!("{warning} is above criticalThreshold, {critical}{by_default}"));
    }
    if ledger.file_name().is_none() || ledger.is_dir() {
        problems.push(
            "storage.dbPath",
            format!("{:?} is no file: write it like /data/events.db", ledger.display().to_string()),
        );
    }
    if let Some(volume) = raw.volume_path.as_deref().filter(|volume| !volume.is_dir()) {
        problems.warn(
            "storage.volumePath",
            format!("{} is no folder here: how full it is cannot be told", volume.display()),
        );
    }
    Storage {
        ledger,
        volume: raw.volume_path.unwrap_or(folder),
        every: positive("storage.monitorInterval", raw.monitor_interval, 60, problems),
        thresholds,
    }
}

fn app(raw: &RawConfig, problems: &mut Problems) -> Option<App> {
    let level = raw.app.log_level.clone().unwrap_or_else(|| "info".to_owned());
    let level = problems.take("app.logLevel", check_level(&level).map(|()| level));
    let format = raw.app.log_format.as_deref().map_or(Ok(LogFormat::default()), str::parse);
    let format = problems.take("app.logFormat", format);
    Some(App {
        name: raw.app.name.clone().unwrap_or_else(|| "beacon".to_owned()),
        version: raw.app.version.clone().unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned()),
        log_level: level?,
        log_format: format?,
    })
}

fn entries(raw: &[RawResource], problems: &mut Problems) -> Option<Vec<Entry>> {
    if raw.is_empty() {
        problems.push("resources", "missing: name at least one kind, with apiVersion and kind");
        return None;
    }
    let before = problems.count();
    let entries: Vec<_> =
        raw.iter().enumerate().filter_map(|(at, raw)| Some((at, entry(at, raw, problems)?))).collect();
    let mut taken: HashMap<(String, String, String), usize> = HashMap::new();
    for (at, entry) in &entries {
        let twice =
            SERVED_TWICE.iter().find(|(kind, groups)| *kind == entry.kind && groups.contains(&entry.group.as_str()));
        let group = twice.map_or(entry.group.as_str(), |(_, groups)| groups[0]);
        let of = |namespace: &str| (group.to_owned(), entry.kind.clone(), namespace.to_owned());
        let all = vec![String::new()];
        for namespace in entry.namespaces.as_ref().unwrap_or(&all) {
            let alike = |((theirs, kind, place), _): &(&(String, String, String), &usize)| {
                (theirs.as_str(), kind) == (group, &entry.kind) && (place.is_empty() || namespace.is_empty())
            };
            let other = taken.get(&of(namespace)).copied().or_else(|| taken.iter().find(alike).map(|(_, at)| *at));
            // Twice in one entry is told of the entry.
            let other = other.filter(|other| other != at);
            if let Some(other) = other {
                let place =
                    if namespace.is_empty() { "in all namespaces".to_owned() } else { format!("in {namespace}") };
                problems.push(
                    format!("resources[{at}]"),
                    format!("{} {place} is watched by resources[{other}] already: leave one of them out", entry.kind),
                );
                break;
            }
            taken.insert(of(namespace), *at);
        }
    }
    (problems.count() == before).then(|| entries.into_iter().map(|(_, entry)| entry).collect())
}

fn entry(at: usize, raw: &RawResource, problems: &mut Problems) -> Option<Entry> {
    let key = |name: &str| format!("resources[{at}].{name}");
    let kind = raw.kind.clone().filter(|kind| !kind.is_empty());
    if kind.is_none() {
        problems.push(key("kind"), "missing: name the kind, such as Pod");
    }
    let version = raw.api_version.as_deref().map(|text| text.rsplit_once('/').unwrap_or(("", text)));
    let version = match version {
        Some((group, version)) if !version.is_empty() && !group.contains('/') => Some((group, version)),
        Some(_) => {
            problems.push(key("apiVersion"), "expected v1, or group and version as in apps/v1");
            None
        }
        None => {
            problems.push(key("apiVersion"), "missing: v1, or group and version as in apps/v1");
            None
        }
    };
    if raw.namespaces.as_ref().is_some_and(Vec::is_empty) {
        problems.push(key("namespaces"), "is empty, so that nothing would be watched; leave it out to watch all");
    }
    for (n, namespace) in raw.namespaces.iter().flatten().enumerate() {
        let here = key(&format!("namespaces[{n}]"));
        if namespace.is_empty() {
            problems.push(here, "is empty; leave out namespaces to watch all");
        } else if !is_label(namespace) {
            problems
                .push(here, format!("{namespace:?} is no name of a namespace: letters in lower case, digits and -"));
        } else if raw.namespaces.iter().flatten().take(n).any(|earlier| earlier == namespace) {
            problems.push(here, format!("{namespace} stands here twice"));
        }
    }
    if let Some(kind) = kind.as_deref().filter(|kind| !kind.chars().all(|c| c.is_ascii_alphanumeric())) {
        problems.push(key("kind"), format!("{kind:?} is no kind: write it like Pod"));
    }
    let of_a_version = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | '/');
    if let Some(version) = raw.api_version.as_deref().filter(|version| !version.chars().all(of_a_version)) {
        problems.push(key("apiVersion"), format!("{version:?} is none: write it like v1, or apps/v1"));
    }
    let of_a_plural = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if let Some(plural) = raw.resource.as_deref().filter(|it| it.is_empty() || !it.chars().all(of_a_plural)) {
        problems.push(key("resource"), format!("{plural:?} is no plural: write it like pods, or leave it out"));
    }
    let (group, version) = version?;
    Some(Entry {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: kind?,
        resource: raw.resource.clone(),
        namespaces: raw.namespaces.clone(),
    })
}

fn endpoint(
    raw: RawEndpoint,
    concurrency: NonZeroUsize,
    version: &str,
    env: &Env,
    problems: &mut Problems,
) -> Option<sink::Config> {
    let (given, origin) = match env.get("ENDPOINT_URL") {
        Some(given) => (Some(given.to_owned()), Origin::env("ENDPOINT_URL")),
        None => (raw.url, Origin::key("endpoint.url")),
    };
    let url = match given.filter(|url| !url.is_empty()).map(|url| Url::parse(&url)) {
        // The address is not repeated: it may hold a password.
        Some(Ok(url)) if matches!(url.scheme(), "http" | "https") => Some(url),
        Some(_) => {
            problems.push(origin, "is no address: write it as https://host/path");
            None
        }
        None => {
            problems.push(origin, "missing: where events are sent, as https://host/path, or ENDPOINT_URL");
            None
        }
    };
    let method = match raw.method.as_deref().unwrap_or("POST") {
        "POST" => Some(Method::POST),
        "PUT" => Some(Method::PUT),
        "PATCH" => Some(Method::PATCH),
        other => {
            problems.push("endpoint.method", format!("{other:?} is none of POST, PUT and PATCH"));
            None
        }
    };
    let timeout = positive("endpoint.timeout", raw.timeout, 30, problems);
    let mut headers = HeaderMap::new();
    for (name, value) in &raw.headers {
        let origin = format!("endpoint.headers.{name}");
        match (HeaderName::try_from(name.as_str()), HeaderValue::try_from(value.as_str())) {
            (Ok(name), Ok(_)) if name == http::header::CONTENT_TYPE => {
                problems.push(origin, "is what events are, application/cloudevents+json; leave it out");
            }
            (Ok(name), Ok(_)) if OF_THE_CONNECTION.contains(&name.as_str()) => {
                problems.push(origin, "is the connection's, and not an event's; leave it out");
            }
            (Ok(name), Ok(_)) if headers.contains_key(&name) => {
                problems.push(origin, "stands here twice: capitals make no difference");
            }
            (Ok(name), Ok(mut value)) => {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
            (Err(_), _) => problems.push(origin, "is no name of a header"),
            // The value is not repeated: many are secret.
            (_, Err(_)) => problems.push(origin, "has characters that a header cannot carry"),
        }
    }
    let tls = tls(&raw.tls, problems);
    let RawTls { insecure_skip_verify: skip, ca_file, cert_file, key_file } = &raw.tls;
    let of_tls = skip.unwrap_or(false) || [ca_file, cert_file, key_file].iter().any(|file| file.is_some());
    if of_tls && url.as_ref().is_some_and(|url| url.scheme() == "http") {
        problems.warn("endpoint.tls", "means nothing for an address that begins with http://; is https:// meant?");
    }
    let literal = |name: &str| env.get(name).map(|secret| SecretSource::literal(secret.trim()));
    let token = literal("ENDPOINT_AUTH_TOKEN");
    let token = token.or_else(|| raw.token_file.map(SecretSource::file));
    let signing = literal("ENDPOINT_SIGNING_SECRET");
    let signing = signing.or_else(|| raw.signing_secret_file.map(SecretSource::file));
    if token.is_some() && url.as_ref().is_some_and(|url| !url.username().is_empty()) {
        problems.push("endpoint.url", "has a user, and a token is given, too: leave one of them out");
    }
    if token.is_some() && headers.contains_key(http::header::AUTHORIZATION) {
        problems.push("endpoint.headers", "has Authorization, and a token is given, too: leave one of them out");
    }
    let ours = headers.keys().find(|name| name.as_str().starts_with("webhook-"));
    if let Some(name) = ours.filter(|_| signing.is_some() || raw.handshake.origin.is_some()) {
        problems.push(format!("endpoint.headers.{name}"), "is set by signing or handshake; leave it out");
    }
    let handshake = handshake(&raw.handshake, problems);
    let mut config = sink::Config::new(url?);
    config.method = method?;
    config.timeout = timeout;
    config.concurrency = concurrency;
    config.token = token;
    config.headers = headers;
    config.user_agent = format!("beacon/{version}");
    config.content_type = HeaderValue::from_static("application/cloudevents+json; charset=UTF-8");
    config.request_id = true;
    config.tls = tls?;
    config.signing = signing;
    config.handshake = handshake;
    let told = |error: Error| format!("{}; {}", chain(&error), error.hint());
    match sink::Http::new(config.clone()) {
        Ok(sink) => {
            // Of a file that is not there yet, such as a Secret's outside of its pod.
            if let Err(error) = sink.credentials() {
                problems.warn("endpoint", told(error));
            }
        }
        Err(error) => problems.push("endpoint", told(error)),
    }
    Some(config)
}

fn handshake(raw: &RawHandshake, problems: &mut Problems) -> Option<sink::Handshake> {
    let rate = raw.rate.and_then(|rate| {
        let most = NonZeroU32::new(rate);
        if most.is_none() {
            problems.push("endpoint.handshake.rate", "0 asks for nothing; leave it out to ask for no number");
        }
        most
    });
    let Some(origin) = &raw.origin else {
        if raw.rate.is_some() {
            problems.push("endpoint.handshake.rate", "needs origin beside it");
        }
        return None;
    };
    let of_a_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    if origin.is_empty() || !origin.chars().all(of_a_name) {
        let message = format!("{origin:?} is no DNS name: write it like fleet.example.com");
        problems.push("endpoint.handshake.origin", message);
    }
    Some(sink::Handshake { origin: HeaderValue::try_from(origin.as_str()).ok()?, rate })
}

fn tls(raw: &RawTls, problems: &mut Problems) -> Option<sink::Tls> {
    let insecure = raw.insecure_skip_verify.unwrap_or(false);
    if insecure {
        problems.warn("endpoint.tls.insecureSkipVerify", "takes whoever answers for the endpoint; use caFile instead");
    }
    let authorities = raw.ca_file.as_deref().map_or_else(|| Ok(Authorities::default()), Authorities::read);
    let authorities = problems.take("endpoint.tls.caFile", authorities);
    let identity = match (&raw.cert_file, &raw.key_file) {
        (None, None) => Some(None),
        (Some(certificate), Some(key)) => {
            problems.take("endpoint.tls.certFile", read_identity(certificate, key)).map(Some)
        }
        (Some(_), None) => {
            problems.push("endpoint.tls.certFile", "needs keyFile beside it");
            None
        }
        (None, Some(_)) => {
            problems.push("endpoint.tls.keyFile", "needs certFile beside it");
            None
        }
    };
    Some(sink::Tls { authorities: authorities?, identity: identity?, insecure })
}

fn concurrency(raw: &RawWorker, problems: &mut Problems) -> NonZeroUsize {
    let asked = raw.concurrency.unwrap_or(5);
    if !(1..=MAX_CONCURRENCY).contains(&asked) {
        problems.push("worker.concurrency", format!("{asked} is not from 1 to {MAX_CONCURRENCY}"));
    }
    NonZeroUsize::new(asked.clamp(1, MAX_CONCURRENCY) as usize).unwrap_or(NonZeroUsize::MIN)
}

fn worker(raw: &RawWorker, retry: &RawRetry, concurrency: NonZeroUsize, problems: &mut Problems) -> worker::Config {
    let multiplier = retry.backoff_multiplier.unwrap_or(2.0);
    if !(1.0..=100.0).contains(&multiplier) {
        problems.push("endpoint.retry.backoffMultiplier", format!("{multiplier} is not from 1 to 100"));
    }
    let jitter = retry.jitter.unwrap_or(0.1);
    if !(0.0..=1.0).contains(&jitter) {
        problems.push("endpoint.retry.jitter", format!("{jitter} is not from 0 to 1"));
    }
    let initial = positive("endpoint.retry.initialBackoff", retry.initial_backoff, 1, problems);
    let max = positive("endpoint.retry.maxBackoff", retry.max_backoff, 5 * 60, problems);
    if max < initial {
        problems.push("endpoint.retry.maxBackoff", format!("{max:?} is shorter than initialBackoff, {initial:?}"));
    }
    if raw.batch_size == Some(0) {
        problems.push("worker.batchSize", "0 events at a time would never be sent; write at least 1");
    }
    let max_attempts = retry.max_attempts.and_then(|most| {
        let most = NonZeroU32::new(most);
        if most.is_none() {
            problems.push("endpoint.retry.maxAttempts", "0 would send nothing; leave it out to try until it is taken");
        }
        most
    });
    worker::Config {
        lanes: concurrency,
        batch: raw.batch_size.and_then(|rows| NonZeroUsize::new(rows as usize)),
        poll: positive("worker.pollInterval", raw.poll_interval, 5, problems),
        backoff: Backoff { initial, multiplier, jitter, max },
        max_attempts,
        ..worker::Config::default()
    }
}

fn positive(key: &str, given: Option<GoDuration>, default: u64, problems: &mut Problems) -> Duration {
    let duration = given.map_or_else(|| Duration::from_secs(default), GoDuration::get);
    if duration < SHORTEST {
        problems.push(key, format!("{duration:?} is too short; write it like 5s"));
    }
    duration
}

fn text(key: &str, given: Option<String>, default: &str, problems: &mut Problems) -> String {
    let text = given.unwrap_or_else(|| default.to_owned());
    if text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        problems.push(key, format!("{text:?} has blanks, or nothing at all"));
    }
    text
}

/// As Kubernetes has the names of namespaces.
fn is_label(name: &str) -> bool {
    let of_a_label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&name.len()) && name.chars().all(of_a_label) && !name.starts_with('-') && !name.ends_with('-')
}

/// As Kubernetes has it: a name, or a domain and a name.
fn is_annotation_key(key: &str) -> bool {
    let (domain, name) = key.split_once('/').map_or((None, key), |(domain, name)| (Some(domain), name));
    let of_a_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_name = |name: &str| {
        (1..=63).contains(&name.len())
            && name.chars().all(of_a_name)
            && [name.chars().next(), name.chars().last()].iter().flatten().all(char::is_ascii_alphanumeric)
    };
    let is_domain = |domain: &str| {
        (1..=253).contains(&domain.len())
            && domain.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.'))
    };
    is_name(name) && domain.is_none_or(is_domain)
}
