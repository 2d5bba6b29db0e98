use super::*;

fn read(text: &str, env: &[(&str, &str)]) -> Result<BeaconConfig, Vec<String>> {
    let env: Env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let read = BeaconConfig::read(&Text::new("beacon.yaml", text), &env);
    read.map(|(config, _)| config).map_err(|error| error.to_string().lines().map(str::to_owned).collect())
}

const LEAST: &str = "
resources:
  - apiVersion: v1
    kind: Pod
endpoint:
  url: https://example.com/events
";

#[test]
fn defaults_are_those_of_the_reference() {
    let config = read(LEAST, &[]).unwrap();
    let seconds = Duration::from_secs;
    assert_eq!((config.app.name.as_str(), config.app.log_level.as_str()), ("beacon", "info"));
    assert_eq!((config.rule.key.as_str(), config.rule.values), ("bakerapps.net.maas", None));
    assert_eq!(config.allowed, Allowed::default());
    assert_eq!(config.envelope.source, "/beacon");
    assert_eq!(config.envelope.type_prefix, "net.bakerapps.beacon.resource");
    assert_eq!((config.endpoint.timeout, config.endpoint.method.as_str()), (seconds(30), "POST"));
    assert_eq!((config.worker.lanes.get(), config.worker.poll, config.worker.max_attempts), (5, seconds(5), None));
    let backoff = config.worker.backoff;
    assert_eq!((backoff.initial, backoff.max), (seconds(1), seconds(300)));
    assert!((backoff.multiplier - 2.0).abs() < f64::EPSILON && (backoff.jitter - 0.1).abs() < f64::EPSILON);
    assert_eq!(config.reconciliation, Some(Reconciliation { interval: seconds(900), timeout: seconds(600) }));
    assert_eq!(config.retention, Some(Retention { every: seconds(3600), keep: seconds(48 * 3600) }));
    let thresholds = Thresholds { warning: 80, critical: 90 };
    let (ledger, volume) = ("/data/events.db".into(), "/data".into());
    assert_eq!(config.storage, Storage { ledger, volume, every: seconds(60), thresholds });
    assert_eq!((config.ports.metrics, config.ports.health), (8080, 8080));
    let Paths { liveness, readiness, metrics } = config.ports.paths;
    assert_eq!(
        (liveness.as_str(), readiness[0].as_str(), metrics.as_deref()),
        ("/healthz", "/ready", Some("/metrics"))
    );
}

#[test]
fn setting_one_key_of_a_section_never_flips_another() {
    let config =
        read(&format!("{LEAST}reconciliation: {{interval: 5m}}\nretention: {{cleanupInterval: 1m}}\n"), &[]).unwrap();
    assert_eq!(config.reconciliation.unwrap().interval, Duration::from_mins(5));
    assert_eq!(config.retention.unwrap().every, Duration::from_mins(1));
    let config =
        read(&format!("{LEAST}reconciliation: {{enabled: false}}\nretention: {{enabled: false}}\n"), &[]).unwrap();
    assert_eq!((config.reconciliation, config.retention), (None, None));
    let config = read(&format!("{LEAST}  retry: {{jitter: 0}}\n"), &[]).unwrap();
    assert!(config.worker.backoff.jitter.abs() < f64::EPSILON);
}

#[test]
fn the_environment_takes_precedence() {
    let env = [("ENDPOINT_URL", "http://other/x"), ("DB_PATH", "/tmp/x.db"), ("ENDPOINT_AUTH_TOKEN", "hunter2")];
    let config = read(LEAST, &env).unwrap();
    assert_eq!((config.endpoint.url.as_str(), config.storage.ledger), ("http://other/x", PathBuf::from("/tmp/x.db")));
    assert!(!format!("{:?}", config.endpoint).contains("hunter2"));
    assert!(config.endpoint.token.is_some());
    assert!(read("resources: [{apiVersion: v1, kind: Pod}]\n", &env).is_ok(), "it may be the only one that says where");
}

#[test]
fn everything_that_is_wrong_is_told_at_once_with_its_line() {
    let wrong = "
resources:
  - apiVersion: v1
    kind: Pod
  - apiVersion: v1
    kind: Pod
    namespaces: [a]
  - kind: Node
  - apiVersion: a/b/c
    kind: X
  - {apiVersion: v1, kind: Event}
  - {apiVersion: events.k8s.io/v1, kind: Event}
  - {apiVersion: v1, kind: Secret, namespaces: [\"b/secrets?x=\", b, b]}
  - {apiVersion: \"v 1\", kind: \"Po d\"}
endpoint:
  url: not an address
  method: GET
  timeout: 0s
  headers: {\"a b\": x, Content-Type: text/plain, Content-Length: \"5\", X-A: \"1\", x-a: \"2\"}
  retry: {maxAttempts: 0, jitter: 2, initialBackoff: 10m}
annotation: {key: \"no name\", values: []}
worker: {concurrency: 0, batchSize: 0, pollInterval: -5s}
surprise: true
app: {logLevel: loud}
storage: {warningThreshold: 95, criticalThreshold: 101}
health: {livenessPath: healthz, readinessPath: /x}
metrics: {path: /x}
";
    let told = read(wrong, &[]).unwrap_err();
    let text = told.join("\n");
    for part in [
        "beacon.yaml:5:5: resources[1]: Pod in a is watched by resources[0] already",
        "beacon.yaml:8:5: resources[2].apiVersion: missing",
        "resources[3].apiVersion: expected v1",
        "endpoint.url: is no address",
        "endpoint.method: \"GET\" is none of POST, PUT and PATCH",
        "endpoint.timeout: 0ns is too short",
        "endpoint.headers.a b: is no name of a header",
        "resources[5]: Event in all namespaces is watched by resources[4] already",
        "resources[6].namespaces[0]: \"b/secrets?x=\" is no name of a namespace",
        "resources[6].namespaces[2]: b stands here twice",
        "resources[7].kind: \"Po d\" is no kind",
        "resources[7].apiVersion: \"v 1\" is none",
        "endpoint.headers.Content-Length: is the connection's",
        "endpoint.headers.x-a: stands here twice",
        "endpoint.headers.Content-Type: is what events are",
        "endpoint.retry.maxAttempts: 0 would send nothing",
        "endpoint.retry.jitter: 2 is not from 0 to 1",
        "endpoint.retry.maxBackoff: 300s is shorter than initialBackoff",
        "annotation.key: \"no name\" is no name of an annotation",
        "annotation.values: is empty",
        "worker.concurrency: 0 is not from 1 to 1000",
        "worker.batchSize: 0 events",
        "worker.pollInterval: ",
        "surprise: unknown key",
        "app.logLevel: ",
        "health.livenessPath: \"healthz\" is no path",
        "metrics.path: \"/x\" is health.readinessPath already",
        "storage.criticalThreshold: 101 is not from 1 to 100",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert!(!text.contains("not an address"), "it may hold a password: {text}");
}

#[test]
fn what_tls_is_told_means_nothing_without_it() {
    let warned = |url: &str, tls: &str| {
        let text = LEAST.replace("https://example.com/events", &format!("{url}\n  tls: {tls}"));
        let (_, warnings) = BeaconConfig::read(&Text::new("beacon.yaml", &text), &Env::default()).unwrap();
        warnings.iter().any(|warning| warning.to_string().contains("means nothing"))
    };
    assert!(warned("http://example.com/events", "{insecureSkipVerify: true}"));
    assert!(!warned("http://example.com/events", "{insecureSkipVerify: false}"));
    assert!(!warned("https://example.com/events", "{insecureSkipVerify: true}"));
}

#[test]
fn a_user_and_a_token_exclude_each_other() {
    let text = LEAST.replace("https://", "https://user:hunter2@");
    assert!(read(&text, &[]).is_ok());
    let told = read(&text, &[("ENDPOINT_AUTH_TOKEN", "t")]).unwrap_err().join("\n");
    assert!(told.contains("endpoint.url: has a user, and a token") && !told.contains("hunter2"), "{told}");
}
