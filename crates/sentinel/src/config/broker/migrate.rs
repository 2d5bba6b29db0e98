//! Turns a `broker.yaml` into the variables that say the same, and back.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value};
use url::Url;
use watchfire_runtime::config::{ConfigError, Origin, Problem, Problems, Text, Warning};
use watchfire_runtime::redact::to_yaml;

use super::file::{self, Shape};
use super::settings::{SHARED, Settings, is_secret};
use crate::config::{Form, Migrated};

/// What an address is put together from.
const ADDRESS: [&str; 4] = ["BROKER_HOST", "BROKER_PORT", "BROKER_TLS", "BROKER_VHOST"];

/// Whether a text is the broker's settings, not the sentinel's.
pub fn is_broker(text: &Text) -> Result<bool, ConfigError> {
    Ok(Shape::of(text)?.is_some())
}

/// Writes the broker's settings anew: variables, one a line, or a `broker.yaml`; by default what they are not.
/// Passwords are never written; the notes say where they belong.
pub fn migrate(text: &Text, to: Option<Form>) -> Result<Migrated, ConfigError> {
    let mut problems = Problems::without_file();
    let settings = file::parse(text, &mut problems)?;
    let odd = problems.finish()?;
    let is_yaml = Shape::of(text)? == Some(Shape::BrokerYaml);
    Ok(write(&settings, to.unwrap_or(if is_yaml { Form::Flat } else { Form::HyperFleet })).with(&odd, &settings))
}

/// As [`migrate`], of a folder with one file for each setting; by default into a `broker.yaml`.
pub fn migrate_folder(path: &Path, to: Option<Form>) -> Result<Migrated, ConfigError> {
    let mut problems = Problems::without_file();
    let settings = file::read(path, &mut problems)?;
    let odd = problems.finish()?;
    Ok(write(&settings, to.unwrap_or(Form::HyperFleet)).with(&odd, &settings))
}

impl Migrated {
    /// Adds what is odd about the settings, and why they are refused; what is missing may stand elsewhere.
    fn with(mut self, odd: &[Warning], settings: &Settings) -> Self {
        let mut problems = Problems::without_file();
        super::check(settings, &mut problems);
        let refused = problems.finish().err();
        let here = |problem: &&Problem| matches!(problem.origin(), Origin::Beside { .. });
        self.notes.extend(odd.iter().map(ToString::to_string));
        self.refused(refused.iter().flat_map(ConfigError::problems).filter(here));
        self
    }
}

fn write(settings: &Settings, to: Form) -> Migrated {
    let mut notes = Vec::new();
    let settings: Vec<_> = settings.iter().map(|(name, value)| (name, public(name, value, &mut notes))).collect();
    let text = match to {
        Form::Flat | Form::Object => variables(&settings),
        Form::HyperFleet => broker_yaml(&settings, &mut notes),
    };
    Migrated { text, notes }
}

/// A value without what is secret in it.
fn public(name: &str, value: &str, notes: &mut Vec<String>) -> Option<String> {
    if is_secret(name) {
        notes.push(format!("{name} is secret and not written here: set the variable from a Secret"));
        return None;
    }
    // Users and passwords, and keys in path and query.
    if name == "BROKER_HTTP_SUBSCRIBERS" {
        notes.push(format!("{name} may hold passwords and is not written here: keep the variable"));
        return None;
    }
    if !["BROKER_URL", "BROKER_HOST"].contains(&name) || !value.contains('@') {
        return Some(value.to_owned());
    }
    let Some((user, url)) = without_userinfo(value) else {
        // Where the password ends only its owner knows: one with `#`, `/` or `?` in it is cut at the wrong place.
        notes.push(format!(
            "{name} has an @ and is not written here, since the password in it cannot be told apart: write it anew \
             without user and password, and set BROKER_USER and BROKER_PASSWORD from a Secret"
        ));
        return None;
    };
    notes.push(format!(
        "the user {user:?} and the password of {name} are not written here: set BROKER_USER and BROKER_PASSWORD, or for \
         the Go sentinel BROKER_RABBITMQ_URL as a whole, from a Secret"
    ));
    Some(url)
}

/// The user of an address, and the address without user and password; nothing where an `@` is left.
fn without_userinfo(address: &str) -> Option<(String, String)> {
    let mut url = Url::parse(address).ok()?;
    let user = url.username().to_owned();
    url.set_username("").and_then(|()| url.set_password(None)).ok()?;
    Some((user, url.to_string())).filter(|(_, rest)| !rest.contains('@'))
}

fn variables(settings: &[(&str, Option<String>)]) -> String {
    let mut text = String::new();
    for (name, value) in settings {
        if let Some(value) = value {
            // Writing to a String cannot fail.
            let _infallible = writeln!(text, "{name}={value}");
        }
    }
    text
}

fn broker_yaml(settings: &[(&str, Option<String>)], notes: &mut Vec<String>) -> String {
    let get = |name: &str| settings.iter().find(|(known, _)| *known == name).and_then(|(_, value)| value.clone());
    let mut tree = Value::Object(Map::new());
    for (name, value) in settings {
        let Some(value) = value else { continue };
        match SHARED.iter().find(|(known, _)| known == name) {
            Some((_, key)) => set(&mut tree, key, value.as_str().into()),
            // A part of an address goes before what BROKER_URL says of it, and alone makes none.
            None if ADDRESS.contains(name) && (get("BROKER_URL").is_some() || get("BROKER_HOST").is_none()) => {
                notes
                    .push(format!("{name} goes before broker.rabbitmq.url and is not written here: keep the variable"));
            }
            None if *name == "BROKER_HOST" => {
                let scheme = if get("BROKER_TLS").as_deref() == Some("true") { "amqps" } else { "amqp" };
                let port = get("BROKER_PORT").map(|port| format!(":{port}")).unwrap_or_default();
                let vhost = get("BROKER_VHOST").unwrap_or_default().replace('/', "%2f");
                let path = if vhost.is_empty() { String::new() } else { format!("/{vhost}") };
                set(&mut tree, "broker.rabbitmq.url", format!("{scheme}://{value}{port}{path}").into());
            }
            None if ADDRESS.contains(name) => {}
            None if *name == "BROKER_TOPIC" => {
                notes.push(format!("the topic stands in the sentinel's file: write clients.broker.topic: {value}"));
            }
            None => notes.push(format!("{name} has no key in broker.yaml: keep the variable")),
        }
    }
    to_yaml(&tree).unwrap_or_default()
}

fn set(tree: &mut Value, key: &str, value: Value) {
    let leaf = key.split('.').fold(tree, |at, part| &mut at[part]);
    *leaf = value;
}
