//! Secrets that an object names, read by name and only then.

use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::Api;
use secrecy::SecretString;

use super::{Problem, answered, told};
use crate::config::SecretValues;
use crate::object::{SecretKey, is_object_name};

/// The Secrets of a namespace.
pub(super) struct Secrets(Api<Secret>);

impl Secrets {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self(Api::namespaced(client, namespace))
    }

    /// Reads each of them.
    pub(super) async fn read(&self, keys: impl IntoIterator<Item = &SecretKey>) -> Result<SecretValues, Problem> {
        let mut values = SecretValues::new();
        for key in keys {
            let value = self.value(key).await.map_err(|message| Problem { reason: "SecretUnavailable", message })?;
            values.insert(key.clone(), value);
        }
        Ok(values)
    }

    async fn value(&self, SecretKey { name, key }: &SecretKey) -> Result<SecretString, String> {
        // It becomes part of an address.
        if !is_object_name(name) {
            return Err(format!(
                "{name:?} is no name of a Secret: lower case letters, digits, '-' and '.'; correct it"
            ));
        }
        let found = answered(self.0.get_opt(name)).await.map_err(|error| match &error {
            kube::Error::Api(status) if status.code == 403 => {
                format!("the Secret {name} may not be read; allow the ServiceAccount to get secrets of this name")
            }
            _ => format!("read the Secret {name}: {}", told(&error)),
        })?;
        let Some(secret) = found else {
            return Err(format!(
                "the Secret {name} is not there; create it in this namespace, or correct the reference"
            ));
        };
        let Some(bytes) = secret.data.as_ref().and_then(|data| data.get(key)) else {
            return Err(format!(
                "the Secret {name} has no key {key}; write the value under it, or correct the reference"
            ));
        };
        match std::str::from_utf8(&bytes.0).map(str::trim) {
            Ok(text) if !text.is_empty() => Ok(text.into()),
            Ok(_) | Err(_) => Err(format!("the key {key} of the Secret {name} is empty, or no text; write the value")),
        }
    }
}
