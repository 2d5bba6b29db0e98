//! Reads a SentinelConfig object: its spec is the file, and Secrets hold what must not stand in it.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use watchfire_runtime::config::{Env, Origin, Problems};
use watchfire_runtime::duration::GoDuration;
use watchfire_runtime::secret::SecretSource;

use super::broker::Settings;
use super::raw::{RawApi, RawConfig, RawExpression, RawLabelSelector, RawPolicy, RawSelector};
use super::setting::{Overrides, Whole};
use super::{Form, Reading, check};
use crate::object::{Broker, BrokerType, SecretKey, SentinelConfigSpec, ShardSelector};

/// The values of the Secrets that an object names.
pub type SecretValues = BTreeMap<SecretKey, SecretString>;

/// What variables say about brokers in general, whatever an object says about its own. Credentials are not among them:
/// whoever may write an object would have them sent to an address of their choice.
const GENERAL: [&str; 4] = [
    "BROKER_EXCHANGE_TYPE",
    "BROKER_ROUTING_KEY",
    "BROKER_GOOGLEPUBSUB_CREATE_TOPIC_IF_MISSING",
    "PUBSUB_EMULATOR_HOST",
];

/// Reads what an object says, and where its events go. Flags and variables of the process are no one object's.
pub fn read_object(spec: &SentinelConfigSpec, secrets: &SecretValues, env: &Env) -> (Reading, Settings) {
    let mut problems = Problems::without_file();
    let whole = Whole { config: raw(spec, &mut problems), ..Whole::default() };
    if spec.broker.topic.trim().is_empty() {
        problems.push("spec.broker.topic", "missing; write the topic that the adapters listen on");
    }
    let mut reading = check::check(Form::Object, whole, &Overrides::default(), &Env::default(), problems);
    if let Some(token) = spec.hyperfleet_api.token_secret_ref.as_ref().and_then(|key| secrets.get(key))
        && let Some(sentinel) = &mut reading.sentinel
    {
        sentinel.api.token = Some(SecretSource::literal(token.clone()));
    }
    (reading, settings(&spec.broker, secrets).or(Settings::from(env).only(&GENERAL)))
}

fn raw(spec: &SentinelConfigSpec, problems: &mut Problems) -> RawConfig {
    let mut duration = |key: &str, text: &str| match text.parse::<GoDuration>() {
        Ok(duration) => Some(duration),
        Err(error) => {
            problems.leave_out(Origin::key(Form::Object.key(key)), error.to_string());
            None
        }
    };
    let plural = spec.resource_type.as_str();
    RawConfig {
        resource_type: Some(plural.to_owned()),
        poll_interval: duration("poll_interval", &spec.poll_interval),
        max_age_not_ready: duration("max_age_not_ready", &spec.backoff_not_ready),
        max_age_ready: duration("max_age_ready", &spec.backoff_ready),
        resource_selector: spec.shard_selector.as_ref().map(selector),
        hyperfleet_api: Some(RawApi {
            endpoint: Some(spec.hyperfleet_api.url.clone()),
            timeout: duration("hyperfleet_api.timeout", &spec.hyperfleet_api.timeout),
            ..RawApi::default()
        }),
        // As the operator's consumers know it.
        message_data: Some(json!({"resourceType": format!("{plural:?}"), "resourceId": ".id", "reason": "reason"})),
        decision: Some(RawPolicy::TimeOnly),
        ..RawConfig::default()
    }
}

fn selector(shard: &ShardSelector) -> RawSelector {
    let expressions = shard.match_expressions.iter().map(|expression| RawExpression {
        key: expression.key.clone(),
        operator: expression.operator.clone(),
        values: expression.values.clone(),
    });
    RawSelector::Kubernetes(RawLabelSelector {
        match_labels: shard.match_labels.clone(),
        match_expressions: expressions.collect(),
    })
}

fn settings(broker: &Broker, secrets: &SecretValues) -> Settings {
    let mut settings = Settings::default();
    let mut set = |name: &str, key: &str, value: Option<&str>| {
        settings.place(name, Origin::key(format!("spec.broker.{key}")));
        settings.set(name, value.unwrap_or_default(), Origin::key(format!("spec.broker.{key}")));
    };
    set("BROKER_TYPE", "type", Some(broker.kind.as_str()));
    set("BROKER_TOPIC", "topic", Some(&broker.topic));
    match broker.kind {
        BrokerType::GcpPubsub => set("BROKER_PROJECT_ID", "projectID", broker.project_id.as_deref()),
        BrokerType::Rabbitmq => {
            set(
                "BROKER_EXCHANGE",
                "exchange",
                Some(broker.exchange.as_deref().filter(|exchange| !exchange.is_empty()).unwrap_or(&broker.topic)),
            );
            set("BROKER_URL", "url", broker.url.as_deref());
            let secret = broker.url_secret_ref.as_ref().and_then(|key| secrets.get(key));
            set("BROKER_URL", "urlSecretRef", secret.map(ExposeSecret::expose_secret));
            // Who has no user is told where one would stand: in the address.
            settings.place("BROKER_USER", Origin::key("spec.broker.url"));
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use watchfire_runtime::config::ConfigError;

    use super::*;
    use crate::config::broker::{self, BrokerConfig};

    fn spec(change: impl FnOnce(&mut Value)) -> SentinelConfigSpec {
        let mut spec = json!({
            "resourceType": "clusters",
            "hyperfleetAPI": {"url": "http://api", "tokenSecretRef": {"name": "s", "key": "token"}},
            "broker": {"type": "rabbitmq", "topic": "events", "url": "amqp://me:hidden@broker:5672/%2f"},
        });
        change(&mut spec);
        serde_json::from_value(spec).unwrap()
    }

    fn problems(spec: &SentinelConfigSpec) -> Vec<String> {
        let (mut reading, settings) = read_object(spec, &SecretValues::new(), &Env::default());
        broker::check(&settings, &mut reading.problems);
        let found = reading.problems.finish().err();
        found.iter().flat_map(ConfigError::problems).map(ToString::to_string).collect()
    }

    #[test]
    fn an_object_is_read_with_its_defaults_and_its_secrets() {
        let key = SecretKey { name: "s".into(), key: "token".into() };
        let secrets = [(key, SecretString::from("secret"))].into();
        let (mut reading, settings) = read_object(&spec(|_| {}), &secrets, &Env::default());
        let sentinel = reading.sentinel.unwrap();
        assert_eq!(sentinel.form, Form::Object);
        assert_eq!(sentinel.effective.decision, Some(RawPolicy::TimeOnly));
        assert_eq!((sentinel.poll_interval.as_secs(), sentinel.rules.max_age.ready.as_secs()), (5, 1800));
        assert_eq!(sentinel.api.token.unwrap().current().unwrap().expose_secret(), "secret");
        match broker::check(&settings, &mut reading.problems) {
            Some(BrokerConfig::RabbitMq(rabbitmq)) => {
                assert_eq!((&*rabbitmq.exchange, &*rabbitmq.host), ("events", "broker"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once_by_the_keys_of_the_object() {
        let found = problems(&spec(|spec| {
            spec["pollInterval"] = json!("0s");
            spec["backoffReady"] = json!("soon");
            spec["hyperfleetAPI"]["url"] = json!("ftp://api");
            spec["shardSelector"] = json!({"matchLabels": {"-": "x"}});
            spec["broker"]["url"] = json!("http://broker");
        }));
        let keys = ["backoffReady", "pollInterval", "hyperfleetAPI.url", "shardSelector.matchLabels.-", "broker.url"];
        for key in keys {
            assert!(found.iter().any(|problem| problem.starts_with(&format!("spec.{key}: "))), "{key}: {found:#?}");
        }
        assert_eq!(found.len(), keys.len(), "{found:#?}");
    }

    #[test]
    fn no_password_is_shown() {
        let shown = format!("{:?}", spec(|_| {}));
        assert!(!shown.contains("hidden") && shown.contains("events"), "{shown}");
    }
}
