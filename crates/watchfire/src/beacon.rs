//! `watchfire beacon`: announces annotated objects of a cluster.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, anyhow};
use kube::{Client, Config};
use tracing::{info, warn};
use watchfire_beacon::config::{App, Entry};
use watchfire_beacon::metrics::Metrics;
use watchfire_beacon::rights::{self, ServiceAccount};
use watchfire_beacon::verify::{Finding, Findings, verify};
use watchfire_beacon::{Beacon, BeaconConfig};
use watchfire_delivery::metrics::Metrics as DeliveryMetrics;
use watchfire_runtime::config::{Env, Text};
use watchfire_runtime::tasks::Stage;
use watchfire_runtime::telemetry::{LogConfig, LogOutput, Telemetry};
use watchfire_runtime::{crypto, one_line, redact};

use crate::cli::Format;
use crate::cli::beacon::{BeaconArgs, BeaconCli, BeaconQuestion};
use crate::failure::{Failure, say, tell};
use crate::ground::Ground;

/// How long telemetry may take to send what it still holds.
const FLUSH: std::time::Duration = std::time::Duration::from_secs(2);

/// Longer than the API server keeps a watch in which nothing happens; a connection that says nothing for so long is
/// dead.
const SILENCE: std::time::Duration = std::time::Duration::from_mins(5);

pub(crate) fn run(cli: &BeaconCli) -> Result<(), Failure> {
    match &cli.question {
        None => run_service(&cli.serve),
        Some(BeaconQuestion::Verify { file, output }) => verify_all(&file.config, output.format),
        Some(BeaconQuestion::Role { file, service_account, output }) => {
            print_role(&file.config, service_account, output.format)
        }
    }
}

/// Compares cluster, ledger and what was delivered.
fn verify_all(config: &Path, format: Format) -> Result<(), Failure> {
    let (config, _) = BeaconConfig::read(&Text::read(config)?, &Env::from_process())?;
    crypto::install_crypto_provider();
    let findings = tokio::runtime::Runtime::new().context("start the async runtime")?.block_on(async {
        let found = verify(&config, &connect().await?).await;
        found.context("look into the ledger").map_err(Failure::from)
    })?;
    match format {
        Format::Text => tell(&told(&findings))?,
        Format::Json => say(&serde_json::to_string_pretty(&findings).context("print what was found")?)?,
    }
    if findings.holds() { Ok(()) } else { Err(anyhow!("cluster, ledger and deliveries are not alike").into()) }
}

/// Prints the roles that a configuration needs.
fn print_role(config: &Path, account: &ServiceAccount, format: Format) -> Result<(), Failure> {
    let (config, _) = BeaconConfig::read(&Text::read(config)?, &Env::from_process())?;
    crypto::install_crypto_provider();
    let runtime = tokio::runtime::Runtime::new().context("start the async runtime")?;
    let plurals = runtime.block_on(plurals(&config.entries))?;
    let rights = rights::rights(&config.entries, &plurals, account);
    match format {
        Format::Text => {
            let documents: Result<Vec<_>, _> = rights.iter().map(redact::to_yaml).collect();
            say(&documents.context("print the roles")?.join("---\n"))
        }
        Format::Json => {
            let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": rights});
            say(&serde_json::to_string_pretty(&list).context("print the roles")?)
        }
    }
}

/// What the kinds are called. The cluster is asked only about those of which it is not written.
async fn plurals(entries: &[Entry]) -> Result<Vec<String>, Failure> {
    let (mut plurals, mut client) = (Vec::new(), None);
    for (at, entry) in entries.iter().enumerate() {
        if let Some(written) = &entry.resource {
            plurals.push(written.clone());
            continue;
        }
        let client = match &mut client {
            Some(client) => client,
            none => none.insert(connect().await?),
        };
        let found = rights::plural(entry, client).await;
        let ask = || format!("ask what {} is called; write resources[{at}].resource, and nobody is asked", entry.kind);
        plurals.push(found.with_context(ask)?);
    }
    Ok(plurals)
}

fn told(findings: &Findings) -> String {
    let Findings { objects, unannounced, vanished, pending, dead, discarded, unwatched, unanswered } = findings;
    let asked = if unanswered.is_empty() { "" } else { " where the cluster answers" };
    let mut text = format!(
        "{objects} annotated objects{asked}; {pending} events wait, {dead} are dead letters, {discarded} were discarded"
    );
    for (what, found) in [("not announced", unannounced), ("announced, and gone", vanished)] {
        for Finding { kind, namespace, name, uid } in found {
            // Writing to a String cannot fail.
            let _infallible = write!(text, "\n{what}: {kind} {namespace}/{name} ({uid})");
        }
    }
    for place in unwatched {
        let _infallible = write!(text, "\nnot watched any more: {}", one_line(place.trim()));
    }
    for scope in unanswered {
        let _infallible = write!(text, "\nnot compared: {}", one_line(scope));
    }
    text
}

pub(crate) async fn connect() -> Result<Client, Failure> {
    let cluster = Config::infer().await;
    let cluster = cluster.context("find the cluster by KUBECONFIG, ~/.kube/config or the pod's ServiceAccount");
    let mut cluster = cluster.map_err(Failure::Configuration)?;
    cluster.read_timeout = Some(SILENCE);
    Ok(Client::try_from(cluster).context("make the client of the API server")?)
}

fn run_service(args: &BeaconArgs) -> Result<(), Failure> {
    let env = Env::from_process();
    let (config, warnings) = BeaconConfig::read(&Text::read(&args.file.config)?, &env)?;
    crypto::install_crypto_provider();
    tokio::runtime::Runtime::new().context("start the async runtime")?.block_on(async {
        let telemetry = telemetry(&config.app, &env)?;
        for warning in warnings {
            warn!(%warning, "legal, but probably not meant");
        }
        let served = serve(config, args, &env, &telemetry).await;
        // However it ended: what was traced until then may say why.
        telemetry.shutdown(FLUSH).await;
        served
    })
}

fn telemetry(app: &App, env: &Env) -> Result<Telemetry, Failure> {
    let log = LogConfig {
        component: "beacon".to_owned(),
        version: app.version.clone(),
        level: app.log_level.clone(),
        format: app.log_format,
        output: LogOutput::default(),
    };
    Telemetry::init(&log, env).map_err(|error| Failure::Configuration(anyhow::Error::new(error)))
}

async fn serve(config: BeaconConfig, args: &BeaconArgs, env: &Env, telemetry: &Telemetry) -> Result<(), Failure> {
    let client = connect().await?;
    let delivery = DeliveryMetrics::default();
    let own = Metrics::new(delivery.store.clone());
    let [health_port, metrics_port] = [config.ports.health, config.ports.metrics].map(|port| format!(":{port}"));
    let addresses = args.process.addresses(&health_port, &metrics_port);
    // Not `component`, as others have it: families of the original have a label of that name.
    let labels = [("version", config.app.version.as_str())];
    let ground = Ground::new(labels, addresses, env, telemetry, |registry| {
        delivery.register(registry);
        own.register(registry);
    });
    let Ground { health, mut tasks, admin } = ground.await?;
    let admin = admin.at(config.ports.paths.clone());
    let (name, ledger) = (config.app.name.clone(), config.storage.ledger.clone());
    let beacon = Beacon::open(config, client, (&own, &delivery), &health).await.context("start the beacon")?;
    info!(
        name,
        ledger = %ledger.display(),
        health = %admin.health_addr(),
        metrics = %admin.metrics_addr(),
        "beacon started"
    );
    beacon.spawn(&mut tasks);
    tasks.essential_at(Stage::Admin, "admin", admin.run(tasks.stage_token(Stage::Admin)));
    tasks.drain(health);
    Ok(tasks.run(args.process.grace_period.get()).await.context("run the beacon")?)
}
