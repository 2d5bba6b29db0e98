//! Secrets in what people read: `config show`, logs, errors.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use url::Url;

/// What stands in a secret's place.
pub const REDACTED: &str = "<redacted>";

/// A URL whose password prints and serialises as `<redacted>`.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(Url);

impl SecretUrl {
    /// Yields the URL with its password, for the one place that connects.
    pub fn expose(&self) -> &Url {
        &self.0
    }

    /// Says whether the URL carries a password.
    pub fn has_password(&self) -> bool {
        self.0.password().is_some()
    }
}

impl From<Url> for SecretUrl {
    fn from(url: Url) -> Self {
        Self(url)
    }
}

/// Fails without repeating the text, which may hold a password.
impl FromStr for SecretUrl {
    type Err = url::ParseError;

    fn from_str(text: &str) -> Result<Self, url::ParseError> {
        Url::parse(text).map(Self)
    }
}

impl<'de> Deserialize<'de> for SecretUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(password) = self.0.password() else { return f.write_str(self.0.as_str()) };
        // The password sits between the first `:` after the scheme's `//` and the `@`; the URL type has it verbatim.
        let full = self.0.as_str();
        let start = self.0.scheme().len() + "://".len() + self.0.username().len() + ":".len();
        write!(f, "{}{REDACTED}{}", &full[..start], &full[start + password.len()..])
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for SecretUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Writes effective values as YAML, for `config show`; what is not set is left out.
pub fn to_yaml(value: &impl Serialize) -> Result<String, serde_saphyr::SerializeError> {
    let tree = to_json(value).map_err(|error| error.to_string())?;
    serde_saphyr::to_string(&tree)
}

/// The same as a tree, for programs.
pub fn to_json(value: &impl Serialize) -> serde_json::Result<serde_json::Value> {
    let mut tree = serde_json::to_value(value)?;
    prune(&mut tree);
    Ok(tree)
}

fn prune(value: &mut serde_json::Value) {
    if let Some(map) = value.as_object_mut() {
        map.values_mut().for_each(prune);
        map.retain(|_, value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Debug)]
    struct Shown {
        broker: SecretUrl,
    }

    #[test]
    fn no_secret_reaches_yaml_or_debug() {
        let broker = Url::parse("amqp://user:p%40ss:word@rabbit:5672/vhost").unwrap().into();
        let shown = Shown { broker };
        assert_eq!(to_yaml(&shown).unwrap(), "broker: amqp://user:<redacted>@rabbit:5672/vhost\n");
        let debug = format!("{shown:?}");
        assert!(!debug.contains("p%40ss"), "{debug}");
        assert!(shown.broker.has_password());
    }

    #[test]
    fn a_bad_url_is_refused_without_being_repeated() {
        let error = serde_json::from_str::<SecretUrl>("\"//user:s3cret@rabbit\"").unwrap_err().to_string();
        assert!(error.contains("relative URL") && !error.contains("s3cret"), "{error}");
        assert!(serde_json::from_str::<SecretUrl>("\"amqp://user:s3cret@rabbit\"").unwrap().has_password());
    }

    #[test]
    fn a_url_without_password_is_shown_as_it_is() {
        for text in ["amqp://user@rabbit:5672/", "http://api:8080/path?q=a:b@c", "http://:@h/"] {
            let url = Url::parse(text).unwrap();
            assert_eq!(SecretUrl::from(url.clone()).to_string(), url.as_str());
        }
        assert_eq!(SecretUrl::from(Url::parse("amqp://:pw@h/").unwrap()).to_string(), "amqp://:<redacted>@h/");
    }
}
