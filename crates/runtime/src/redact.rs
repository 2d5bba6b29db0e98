//! Secrets in what people read: `config show`, logs, errors.

use serde::Serialize;
use url::Url;

/// What stands in a secret's place.
pub const REDACTED: &str = "<redacted>";

/// The URL of an API as it may be shown: without userinfo, query and fragment, any of which may be a secret.
pub fn address(url: &Url) -> String {
    format!("{}{}", host(url), url.path())
}

/// The URL of a subscriber as it may be shown: the path of a webhook is often the secret.
pub fn host(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{host}{port}", url.scheme())
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

    #[test]
    fn of_an_address_only_what_is_no_secret_is_shown() {
        let url = Url::parse("https://t0ken:p%40ss@collector:4318/v1/traces?api-key=s3cret#f").unwrap();
        assert_eq!(address(&url), "https://collector:4318/v1/traces");
        assert_eq!(host(&url), "https://collector:4318");
        assert_eq!(address(&Url::parse("http://[::1]").unwrap()), "http://[::1]/");
    }
}
