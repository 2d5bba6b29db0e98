//! The environment of a container.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVarSource};

use super::pod::Pod;
use super::sources::Kind;

/// What a container finds without having asked for it.
fn given(pod: &Pod) -> BTreeMap<String, String> {
    let api_server = pod.kubelet().api_server;
    BTreeMap::from([
        ("PATH".into(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()),
        ("HOSTNAME".into(), pod.hostname().into()),
        ("KUBERNETES_SERVICE_HOST".into(), api_server.ip().to_string()),
        ("KUBERNETES_SERVICE_PORT".into(), api_server.port().to_string()),
        ("KUBERNETES_SERVICE_PORT_HTTPS".into(), api_server.port().to_string()),
    ])
}

pub(super) async fn of(pod: &Pod, container: &Container) -> Result<BTreeMap<String, String>, String> {
    let mut all = given(pod);
    for from in container.env_from.iter().flatten() {
        let keys = if let Some(map) = &from.config_map_ref {
            pod.keys(Kind::ConfigMap, &map.name, map.optional).await?
        } else if let Some(secret) = &from.secret_ref {
            pod.keys(Kind::Secret, &secret.name, secret.optional).await?
        } else {
            continue;
        };
        let prefix = from.prefix.as_deref().unwrap_or_default();
        all.extend(keys.into_iter().map(|(key, value)| (format!("{prefix}{key}"), text(&value))));
    }
    for variable in container.env.iter().flatten() {
        let value = match &variable.value_from {
            Some(from) => value_from(pod, from).await?,
            None => Some(expand(variable.value.as_deref().unwrap_or_default(), &all)),
        };
        all.extend(value.map(|value| (variable.name.clone(), value)));
    }
    Ok(all)
}

async fn value_from(pod: &Pod, from: &EnvVarSource) -> Result<Option<String>, String> {
    let (kind, name, key, optional) = if let Some(field) = &from.field_ref {
        return pod.field(&field.field_path).map(Some);
    } else if let Some(map) = &from.config_map_key_ref {
        (Kind::ConfigMap, &map.name, &map.key, map.optional)
    } else if let Some(secret) = &from.secret_key_ref {
        (Kind::Secret, &secret.name, &secret.key, secret.optional)
    } else {
        return Err("a process node takes values from fields, configmaps and secrets".to_owned());
    };
    match pod.keys(kind, name, optional).await?.get(key) {
        Some(value) => Ok(Some(text(value))),
        None if optional == Some(true) => Ok(None),
        None => Err(format!("couldn't find key {key} in {} {}/{name}", kind.as_str(), pod.namespace())),
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// Puts the values of variables into a text: `$(NAME)`, where there is one of that name; `$$` is a `$`.
pub(super) fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded += before;
        let reference = after.strip_prefix('(').and_then(|after| after.split_once(')'));
        if let Some((value, after)) = reference.and_then(|(name, after)| Some((variables.get(name)?, after))) {
            expanded += value;
            rest = after;
        } else {
            expanded.push('$');
            rest = after.strip_prefix('$').unwrap_or(after);
        }
    }
    expanded + rest
}
