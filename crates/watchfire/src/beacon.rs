//! `watchfire beacon`: announces annotated objects of a cluster.

use anyhow::Context;
use kube::{Client, Config};
use tracing::{info, warn};
use watchfire_beacon::config::App;
use watchfire_beacon::{Beacon, BeaconConfig};
use watchfire_delivery::metrics::Metrics as DeliveryMetrics;
use watchfire_runtime::config::{Env, Text};
use watchfire_runtime::health::Health;
use watchfire_runtime::tasks::{Stage, Tasks};
use watchfire_runtime::telemetry::{LogConfig, LogOutput, Telemetry};
use watchfire_runtime::{Admin, AdminConfig, crypto, metrics, parse_bind_address, roots};

use crate::cli::BeaconArgs;
use crate::failure::Failure;

/// How long telemetry may take to send what it still holds.
const FLUSH: std::time::Duration = std::time::Duration::from_secs(2);

pub(crate) fn run(args: &BeaconArgs) -> Result<(), Failure> {
    let env = Env::from_process();
    let (config, warnings) = BeaconConfig::read(&Text::read(&args.config)?, &env)?;
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
    if roots::are_built_in(env) {
        warn!("the system has no certificates of authorities, trusting those built into this program");
    }
    let cluster = Config::infer().await;
    let cluster = cluster.context("find the cluster by KUBECONFIG, ~/.kube/config or the pod's ServiceAccount");
    let client =
        Client::try_from(cluster.map_err(Failure::Configuration)?).context("make the client of the API server")?;
    let (health, mut tasks) = (Health::new(), Tasks::new());
    tasks.listen().context("start the beacon")?;
    let mut registry = metrics::registry("beacon", &config.app.version);
    tasks.register(&mut registry);
    telemetry.register(&mut registry);
    let delivery = DeliveryMetrics::default();
    delivery.register(&mut registry);
    let [health_port, metrics_port] = [config.ports.health, config.ports.metrics].map(|port| format!(":{port}"));
    let ports = args.process.addresses(&health_port, &metrics_port);
    let [health_address, metrics_address] = ports.map(|(flag, text)| {
        parse_bind_address(text).with_context(|| format!("read --{flag}")).map_err(Failure::Configuration)
    });
    let addresses = AdminConfig { health: health_address?, metrics: metrics_address? };
    let admin = Admin::bind(addresses, health.clone(), registry).await.context("start the admin server")?;
    info!(
        name = config.app.name,
        ledger = %config.store.display(),
        health = %admin.health_addr(),
        metrics = %admin.metrics_addr(),
        "beacon started"
    );
    let beacon = Beacon::open(config, client, &delivery, &health).await.context("start the beacon")?;
    beacon.spawn(&mut tasks);
    tasks.essential_at(Stage::Admin, "admin", admin.run(tasks.stage_token(Stage::Admin)));
    tasks.drain(health);
    Ok(tasks.run(args.process.grace_period.get()).await.context("run the beacon")?)
}
