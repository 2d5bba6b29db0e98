//! A configuration as it is in effect, for `config show`: every key with its value, secrets redacted.

use watchfire_runtime::duration::GoDuration;
use watchfire_runtime::redact::{REDACTED, host};
use watchfire_runtime::telemetry::LogFormat;

use super::raw::{
    RawAnnotation, RawApp, RawCloudEvents, RawConfig, RawEndpoint, RawHealth, RawMetrics, RawPayload,
    RawReconciliation, RawRetention, RawRetry, RawStorage, RawWorker,
};
use super::{BeaconConfig, Reconciliation, Retention};

impl BeaconConfig {
    /// The file that would say the same, with every key in it.
    pub fn shown(&self) -> RawConfig {
        let Self { app, rule, allowed, envelope, endpoint, worker, storage, ports, .. } = self;
        let (typed, duration) = (self.raw.clone(), |it| Some(GoDuration::from(it)));
        let values = rule.values.as_ref().map(|values| {
            let mut values: Vec<_> = values.iter().cloned().collect();
            values.sort();
            values
        });
        let log_format = if app.log_format == LogFormat::Json { "json" } else { "text" };
        let (reconciliation, retention) = (&self.reconciliation, &self.retention);
        let lanes = u32::try_from(worker.lanes.get()).ok();
        RawConfig {
            app: RawApp {
                name: Some(app.name.clone()),
                version: Some(app.version.clone()),
                log_level: Some(app.log_level.clone()),
                log_format: Some(log_format.to_owned()),
            },
            resources: typed.resources,
            annotation: RawAnnotation { key: Some(rule.key.clone()), values },
            payload: RawPayload { annotations: Some(allowed.annotations.clone()), labels: allowed.labels.clone() },
            cloud_events: RawCloudEvents {
                source: Some(envelope.source.clone()),
                type_prefix: Some(envelope.type_prefix.clone()),
            },
            endpoint: RawEndpoint {
                // The path of a webhook is often the secret.
                url: Some(host(&endpoint.url)),
                method: Some(endpoint.method.to_string()),
                timeout: duration(endpoint.timeout),
                headers: typed.endpoint.headers.into_keys().map(|name| (name, REDACTED.to_owned())).collect(),
                token_file: typed.endpoint.token_file,
                signing_secret_file: typed.endpoint.signing_secret_file,
                handshake: typed.endpoint.handshake,
                retry: RawRetry {
                    max_attempts: worker.max_attempts.map(Into::into),
                    initial_backoff: duration(worker.backoff.initial),
                    max_backoff: duration(worker.backoff.max),
                    backoff_multiplier: Some(worker.backoff.multiplier),
                    jitter: Some(worker.backoff.jitter),
                },
                tls: typed.endpoint.tls,
            },
            worker: RawWorker {
                poll_interval: duration(worker.poll),
                batch_size: u32::try_from(worker.rows()).ok(),
                concurrency: lanes,
            },
            reconciliation: RawReconciliation {
                enabled: Some(reconciliation.is_some()),
                on_startup: Some(self.on_startup),
                interval: reconciliation.and_then(|Reconciliation { interval, .. }| duration(interval)),
                timeout: reconciliation.and_then(|Reconciliation { timeout, .. }| duration(timeout)),
            },
            retention: RawRetention {
                enabled: Some(retention.is_some()),
                cleanup_interval: retention.and_then(|Retention { every, .. }| duration(every)),
                retention_period: retention.and_then(|Retention { keep, .. }| duration(keep)),
            },
            storage: RawStorage {
                db_path: Some(storage.ledger.clone()),
                volume_path: Some(storage.volume.clone()),
                monitor_interval: duration(storage.every),
                warning_threshold: Some(storage.thresholds.warning),
                critical_threshold: Some(storage.thresholds.critical),
            },
            metrics: RawMetrics {
                enabled: Some(ports.paths.metrics.is_some()),
                port: Some(ports.metrics),
                path: ports.paths.metrics.clone(),
            },
            health: RawHealth {
                liveness_path: Some(ports.paths.liveness.clone()),
                readiness_path: ports.paths.readiness.first().cloned(),
                port: Some(ports.health),
            },
        }
    }
}
