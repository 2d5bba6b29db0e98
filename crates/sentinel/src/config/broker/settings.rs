//! The broker's settings by name, wherever they were written.
//!
//! A setting has one name here, that of the `BROKER_*` variable. Today's HyperFleet has other names for some of them,
//! in its environment and in its `broker.yaml`; they are the same settings.

use std::collections::BTreeMap;

use watchfire_runtime::config::{Env, Origin, Problems};

/// Settings that `broker.yaml` has: the name here, and the key there. Its variable is the key in capitals.
pub const SHARED: [(&str, &str); 8] = [
    ("BROKER_TYPE", "broker.type"),
    ("BROKER_URL", "broker.rabbitmq.url"),
    ("BROKER_EXCHANGE", "broker.rabbitmq.exchange"),
    ("BROKER_EXCHANGE_TYPE", "broker.rabbitmq.exchange_type"),
    ("BROKER_ROUTING_KEY", "broker.rabbitmq.routing_key"),
    ("BROKER_RABBITMQ_PUBLISHER_CONFIRM", "broker.rabbitmq.publisher_confirm"),
    ("BROKER_PROJECT_ID", "broker.googlepubsub.project_id"),
    ("BROKER_GOOGLEPUBSUB_CREATE_TOPIC_IF_MISSING", "broker.googlepubsub.create_topic_if_missing"),
];

/// Settings that only `BROKER_*` variables give.
pub const OURS: [&str; 14] = [
    "BROKER_TOPIC",
    "BROKER_HOST",
    "BROKER_PORT",
    "BROKER_VHOST",
    "BROKER_TLS",
    "BROKER_USER",
    "BROKER_PASSWORD",
    "BROKER_PASSWORD_FILE",
    "BROKER_HTTP_SUBSCRIBERS",
    "BROKER_HTTP_STORE",
    "BROKER_CONFIG",
    "BROKER_CONFIG_FILE",
    "BROKER_SUBSCRIPTION_ID",
    EMULATOR,
];

/// Keys of `broker.yaml` that only consumers read. They share the file, so they are no mistake.
pub const ADAPTERS: [&str; 18] = [
    "log_config",
    "subscriber.parallelism",
    "broker.rabbitmq.queue",
    "broker.rabbitmq.prefetch_count",
    "broker.rabbitmq.prefetch_size",
    "broker.rabbitmq.consumer_tag",
    "broker.googlepubsub.create_subscription_if_missing",
    "broker.googlepubsub.ack_deadline_seconds",
    "broker.googlepubsub.message_retention_duration",
    "broker.googlepubsub.expiration_ttl",
    "broker.googlepubsub.retry_min_backoff",
    "broker.googlepubsub.retry_max_backoff",
    "broker.googlepubsub.dead_letter_max_attempts",
    "broker.googlepubsub.dead_letter_topic",
    "broker.googlepubsub.enable_message_ordering",
    "broker.googlepubsub.max_outstanding_messages",
    "broker.googlepubsub.max_outstanding_bytes",
    "broker.googlepubsub.num_goroutines",
];

/// What says where events go.
const TOPICS: [&str; 2] = ["BROKER_TOPIC", "BROKER_EXCHANGE"];

/// Google's own name, so that one emulator serves every client.
const EMULATOR: &str = "PUBSUB_EMULATOR_HOST";

/// The variable that stands for a key of `broker.yaml`.
pub fn variable(key: &str) -> String {
    key.replace('.', "_").to_uppercase()
}

/// Whether the value of a setting is never shown.
pub(super) fn is_secret(name: &str) -> bool {
    name == "BROKER_PASSWORD"
}

/// Whether a variable is about the broker at all.
pub(crate) fn is_ours(name: &str) -> bool {
    name.starts_with("BROKER_") || name == EMULATOR
}

/// What was written, and where.
#[derive(Debug, Clone)]
struct Setting {
    value: String,
    origin: Origin,
}

/// Settings by name. `Debug` is left out: values may be secret.
#[derive(Clone, Default)]
pub struct Settings {
    set: BTreeMap<String, Setting>,
    /// Where those stand whose values could not be taken.
    left_out: BTreeMap<String, Origin>,
    /// Where those would stand that are not set, if not in variables.
    places: BTreeMap<String, Origin>,
    /// Where those stand that another name of the same setting stands above, and where that one does.
    overruled: Vec<(Origin, Origin)>,
}

/// The same settings, wherever they stand.
impl PartialEq for Settings {
    fn eq(&self, other: &Self) -> bool {
        let values = |settings: &Self| -> Vec<(String, String)> {
            settings.set.iter().map(|(name, setting)| (name.clone(), setting.value.clone())).collect()
        };
        values(self) == values(other)
    }
}

impl From<&Env> for Settings {
    fn from(env: &Env) -> Self {
        Self::of(env, |name| Origin::env(name))
    }
}

impl Settings {
    /// Takes what is about the broker of variables, or of what is kept like them: `origin` says where each stands.
    pub(super) fn of(env: &Env, origin: impl Fn(&str) -> Origin) -> Self {
        let mut settings = Self::default();
        let ours = env.names("").filter(|name| is_ours(name));
        for (name, value) in ours.filter_map(|name| Some((name, env.get(name)?))) {
            settings.set(name, value, origin(name));
        }
        settings.by_our_names()
    }

    /// Returns these settings with one name for each: where both are set, the one of this document counts.
    pub(super) fn by_our_names(mut self) -> Self {
        let renamed = SHARED.map(|(name, key)| (name, variable(key)));
        for (name, theirs) in renamed.into_iter().filter(|(name, theirs)| theirs != name) {
            if let Some(setting) = self.set.remove(&theirs) {
                match self.set.get(name) {
                    Some(ours) if ours.value != setting.value => {
                        self.overruled.push((setting.origin, ours.origin.clone()));
                    }
                    Some(_) => {}
                    None => self.set(name, &setting.value, setting.origin),
                }
            }
            if let Some(origin) = self.left_out.remove(&theirs) {
                self.left_out.entry(name.to_owned()).or_insert(origin);
            }
        }
        self
    }

    /// Sets one; what is blank counts as not set.
    pub fn set(&mut self, name: &str, value: &str, origin: Origin) {
        let value = value.trim();
        if !value.is_empty() {
            self.set.insert(name.to_owned(), Setting { value: value.to_owned(), origin });
        }
    }

    /// Says where one would stand, unless that was said.
    pub(in crate::config) fn place(&mut self, name: &str, origin: Origin) {
        self.places.entry(name.to_owned()).or_insert(origin);
    }

    /// Notes that one stands there and could not be taken, which was told: it is not missing.
    pub(super) fn leave_out(&mut self, name: &str, origin: Origin) {
        self.left_out.insert(name.to_owned(), origin);
    }

    /// Whether one stands there, and nothing of it could be taken.
    pub(super) fn is_left_out(&self, name: &str) -> bool {
        !self.set.contains_key(name) && self.left_out.contains_key(name)
    }

    /// Whether there is none at all.
    pub(super) fn is_empty(&self) -> bool {
        self.set.is_empty() && self.left_out.is_empty()
    }

    /// Returns these settings, and those of `fallback` where these have none.
    #[must_use]
    pub fn or(mut self, fallback: Self) -> Self {
        for (name, setting) in fallback.set {
            self.set.entry(name).or_insert(setting);
        }
        for (name, origin) in fallback.left_out {
            self.left_out.entry(name).or_insert(origin);
        }
        self.overruled.extend(fallback.overruled);
        self
    }

    /// Warns of settings of a file that others, from elsewhere, stand above; no value is shown, since it may be secret.
    pub fn warn_of_overruled(&self, file: &Self, problems: &mut Problems) {
        for (name, theirs) in &file.set {
            let Some(ours) = self.set.get(name).filter(|ours| ours.value != theirs.value) else { continue };
            problems.warn(theirs.origin.clone(), not_used(&ours.origin));
        }
    }

    /// Warns of settings that stand there under two of their names, and differ.
    pub(super) fn warn_of_two_names(&self, problems: &mut Problems) {
        for (theirs, ours) in &self.overruled {
            problems.warn(theirs.clone(), not_used(ours));
        }
    }

    /// Sets the topic that the sentinel's own configuration names: in its file, it stands below a variable, and it is
    /// warned about where the two differ.
    pub fn prefer_topic(&mut self, topic: &str, origin: &Origin, problems: &mut Problems) {
        let mut named = Self::default();
        named.set("BROKER_TOPIC", topic, origin.clone());
        if matches!(origin, Origin::Key(_)) {
            self.warn_of_overruled(&named, problems);
            *self = std::mem::take(self).or(named);
        } else {
            *self = named.or(std::mem::take(self));
        }
    }

    /// Returns these settings but for those that say where events go.
    #[must_use]
    pub fn without_topic(mut self) -> Self {
        self.set.retain(|name, _| !TOPICS.contains(&name.as_str()));
        self
    }

    /// Returns these settings alone, of all that there are.
    #[must_use]
    pub(in crate::config) fn only(mut self, names: &[&str]) -> Self {
        self.set.retain(|name, _| names.contains(&name.as_str()));
        self
    }

    /// Returns what was written, if anything was.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.set.get(name).map(|setting| setting.value.as_str())
    }

    /// What was written, by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.set.iter().map(|(name, setting)| (name.as_str(), setting.value.as_str()))
    }

    /// Where a setting stands; where one would write it, if it stands nowhere.
    pub(super) fn origin(&self, name: &str) -> Origin {
        let set = self.set.get(name).map(|setting| &setting.origin);
        let place = set.or_else(|| self.left_out.get(name)).or_else(|| self.places.get(name));
        place.cloned().unwrap_or_else(|| Origin::env(name))
    }

    /// Whether one says where events go, or would if its value could be taken.
    pub fn names_a_topic(&self) -> bool {
        TOPICS.iter().any(|name| self.get(name).is_some() || self.is_left_out(name))
    }

    /// Warns of settings that nobody reads.
    pub(super) fn warn_of_unknown(&self, problems: &mut Problems) {
        let theirs: Vec<_> = SHARED.iter().map(|(_, key)| *key).chain(ADAPTERS).map(variable).collect();
        let shared = SHARED.iter().map(|(name, _)| *name);
        let known: Vec<_> = shared.chain(OURS).filter(|name| *name != EMULATOR).collect();
        for (name, setting) in &self.set {
            let is_known = known.contains(&name.as_str()) || theirs.contains(name) || name == EMULATOR;
            // Kubernetes adds BROKER_SERVICE_HOST, BROKER_PORT_5672_TCP and the like for a Service called broker.
            let address = name.ends_with("_PORT") && setting.value.contains("://");
            if !is_known && !name.contains("_SERVICE_") && !name.contains("_PORT_") && !address {
                let message = format!("not a setting; known are {}", known.join(", "));
                problems.warn(setting.origin.clone(), message);
            }
        }
    }
}

fn not_used(above: &Origin) -> String {
    format!("not used: {above} says something else, and takes precedence")
}
