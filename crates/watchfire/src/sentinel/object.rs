//! The sentinel as an operator: its configuration is a SentinelConfig object, or all of a namespace.

use std::time::Duration;

use anyhow::{Context, anyhow};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use kube::{Client, Config};
use prometheus_client::registry::Registry;
use tracing::info;
use watchfire_runtime::config::Env;
use watchfire_runtime::lease::{self, Election, Leadership, Timing};
use watchfire_runtime::tasks::Stage;
use watchfire_runtime::telemetry::Telemetry;
use watchfire_sentinel::Feeds;
use watchfire_sentinel::object::{is_namespace, is_object_name};
use watchfire_sentinel::operator::{Operator, Parts, Scope};

use super::{FLUSH, explain, ground, poll, telemetry};
use crate::cli::{ObjectArgs, SentinelArgs};
use crate::config;
use crate::failure::Failure;
use crate::ground::Ground;

/// Which objects are served; nothing where the configuration is a file. Flags that are for the other are refused.
pub(super) fn scope(args: &SentinelArgs) -> Result<Option<Scope>, Failure> {
    let name = args.files.config.to_str().filter(|name| is_object(name) && !args.files.config.exists());
    let scope = if args.objects.all_configs { Some(Scope::All) } else { name.map(|name| Scope::One(name.to_owned())) };
    let refused = match scope {
        Some(_) if args.record.folder.is_some() => Some("--record is not for SentinelConfig objects; leave it out"),
        Some(_) if args.files.broker_config.is_some() => {
            Some("--broker-config, or BROKER_CONFIG, is not for SentinelConfig objects; write it into spec.broker")
        }
        None if args.objects.leader_elect => {
            Some("--leader-elect is for SentinelConfig objects; with a file, run one replica")
        }
        Some(_) | None => None,
    };
    match refused {
        Some(refused) => Err(Failure::Configuration(anyhow!(refused))),
        None => Ok(scope),
    }
}

/// Whether an object can be called so, and a file is not usually.
fn is_object(name: &str) -> bool {
    is_object_name(name) && ![".yaml", ".yml", ".json"].iter().any(|extension| name.ends_with(extension))
}

pub(super) async fn serve(scope: Scope, args: &SentinelArgs, env: &Env) -> Result<(), Failure> {
    let timing = timing(&args.objects).map_err(Failure::Configuration)?;
    args.settings.refuse_what_objects_say().map_err(Failure::Configuration)?;
    let process = config::process(&args.settings, env)?;
    let (client, namespace) = connect(&scope, args.objects.namespace.as_deref()).await?;
    let telemetry = telemetry(&process, env)?;
    let served = serve_objects(scope, args, env, &telemetry, (client, &namespace), timing).await;
    telemetry.shutdown(FLUSH).await;
    served
}

async fn serve_objects(
    scope: Scope,
    args: &SentinelArgs,
    env: &Env,
    telemetry: &Telemetry,
    (client, namespace): (Client, &str),
    timing: Timing,
) -> Result<(), Failure> {
    let election = args.objects.leader_elect.then(lease::Metrics::default);
    let register = |registry: &mut Registry| election.iter().for_each(|election| election.register(registry));
    let (ground, families, _) = ground(args.process.addresses(":8081", ":8080"), env, telemetry, register).await?;
    let Ground { health, mut tasks, admin } = ground;
    let leadership = if let Some(metrics) = &election {
        let lease = args.objects.leader_elect_lease_name.clone().unwrap_or_else(|| lease_name(&scope));
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let (election, leadership) = Election::new(leases, lease, identity(env), timing, &health, metrics);
        // After the sentinels, which finish what they hold as its leader.
        tasks.essential_at(Stage::Workers, "leader-election", election.run(tasks.stage_token(Stage::Workers)));
        leadership
    } else {
        Leadership::alone()
    };
    info!(
        ?scope,
        namespace,
        leader_election = args.objects.leader_elect,
        health = %admin.health_addr(),
        metrics = %admin.metrics_addr(),
        "serving SentinelConfig objects"
    );
    let sentinels = explain::Sentinels::default();
    let feeds = Feeds::default();
    let admin = admin.route("/sentinel/explain", explain::pages(sentinels.clone()));
    let admin = admin.route("/sentinel/poll", poll::pages(feeds.clone()));
    let parts = Parts {
        families,
        health: health.clone(),
        env: env.clone(),
        feeds,
        leadership,
        explain: Box::new(move |name, explainer| match explainer {
            Some(explainer) => sentinels.begins(explain::Asked { name: name.to_owned(), explainer, store: None }),
            None => sentinels.ends(name),
        }),
    };
    tasks.essential("sentinelconfigs", Operator::new(client, namespace, scope, parts).run(tasks.token()));
    tasks.essential_at(Stage::Admin, "admin", admin.run(tasks.stage_token(Stage::Admin)));
    tasks.drain(health);
    Ok(tasks.run(args.process.grace_period.get()).await.context("run the sentinel")?)
}

/// Finds the cluster as kubectl does, or that of the pod.
async fn connect(scope: &Scope, namespace: Option<&str>) -> Result<(Client, String), Failure> {
    let no_cluster = || match scope {
        Scope::One(name) => format!(
            "{name} is no file here, and so the name of a SentinelConfig; find its cluster by KUBECONFIG, \
             ~/.kube/config or the pod's ServiceAccount"
        ),
        Scope::All => "find the cluster by KUBECONFIG, ~/.kube/config or the pod's ServiceAccount".to_owned(),
    };
    let config = Config::infer().await.with_context(no_cluster).map_err(Failure::Configuration)?;
    let namespace = namespace.filter(|namespace| !namespace.is_empty()).unwrap_or(&config.default_namespace).to_owned();
    if !is_namespace(&namespace) {
        let message = format!("{namespace:?} is no name of a namespace; correct --namespace or POD_NAMESPACE");
        return Err(Failure::Configuration(anyhow!(message)));
    }
    let client = Client::try_from(config).context("make the client of the API server")?;
    Ok((client, namespace))
}

fn timing(args: &ObjectArgs) -> anyhow::Result<Timing> {
    let duration = args.leader_elect_lease_duration.get();
    let renew_deadline = args.leader_elect_renew_deadline.get();
    let retry_period = args.leader_elect_retry_period.get();
    // A Lease counts in seconds.
    let is_whole = duration >= Duration::from_secs(1) && duration.subsec_nanos() == 0;
    if !is_whole || renew_deadline >= duration || retry_period >= renew_deadline {
        return Err(anyhow!(
            "leader election needs a lease duration of whole seconds, a renew deadline below it, and a retry period below \
             that: these are {duration:?}, {renew_deadline:?} and {retry_period:?}"
        ));
    }
    Ok(Timing { duration, renew_deadline, retry_period })
}

fn lease_name(scope: &Scope) -> String {
    match scope {
        Scope::One(name) => format!("watchfire-sentinel-{name}"),
        Scope::All => "watchfire-sentinel".to_owned(),
    }
}

/// No two replicas, nor two lives of one, have the same.
fn identity(env: &Env) -> String {
    let host = env.get("HOSTNAME").unwrap_or("watchfire");
    format!("{host}_{}", uuid::Uuid::new_v4())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_told_from_a_file_by_its_name() {
        for name in ["cluster-sentinel-us-east", "a", "a.b-c.0"] {
            assert!(is_object(name), "{name}");
        }
        for name in ["", "config.yaml", "sentinel.yml", "./east", "/etc/config", "East", "a_b", "-a", "a-", "a..b"] {
            assert!(!is_object(name), "{name}");
        }
        assert!(!is_object(&"a".repeat(254)));
    }
}
