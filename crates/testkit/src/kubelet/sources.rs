//! What a pod's environment and files are made from. Where something is missing, the answer is the words of a kubelet.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount, ServiceAccountTokenProjection};
use kube::api::{Api, PostParams};

use super::pod::{ADDRESS, Pod};

/// What has keys with values.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    ConfigMap,
    Secret,
}

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }
}

pub(super) type Keys = BTreeMap<String, Vec<u8>>;

impl Pod {
    /// Everything in a ConfigMap or Secret; nothing where it may be missing, and is.
    pub(super) async fn keys(&self, kind: Kind, name: &str, optional: Option<bool>) -> Result<Keys, String> {
        let binary = |data: Option<BTreeMap<String, ByteString>>| {
            data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect::<Keys>()
        };
        let found = match kind {
            Kind::ConfigMap => {
                let all: Api<ConfigMap> = Api::namespaced(self.client(), self.namespace());
                all.get_opt(name).await.map(|found| {
                    found.map(|it| {
                        let text = it.data.into_iter().flatten().map(|(key, value)| (key, value.into_bytes()));
                        text.chain(binary(it.binary_data)).collect()
                    })
                })
            }
            Kind::Secret => {
                let all: Api<Secret> = Api::namespaced(self.client(), self.namespace());
                all.get_opt(name).await.map(|found| found.map(|it| binary(it.data)))
            }
        };
        match found.map_err(|e| e.to_string())? {
            Some(keys) => Ok(keys),
            None if optional == Some(true) => Ok(Keys::new()),
            None => Err(format!("{} {name:?} not found", kind.as_str())),
        }
    }

    /// A field of the pod itself, by its path.
    pub(super) fn field(&self, path: &str) -> Result<String, String> {
        let metadata = &self.object.metadata;
        let in_map = |map: &Option<BTreeMap<String, String>>, key: &str| {
            map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default()
        };
        let keyed = path.strip_suffix("']").and_then(|path| path.split_once("['"));
        Ok(match (path, keyed) {
            ("metadata.name", _) => self.name().to_owned(),
            ("metadata.namespace", _) => self.namespace().to_owned(),
            ("metadata.uid", _) => metadata.uid.clone().unwrap_or_default(),
            ("spec.nodeName", _) => self.kubelet().node.clone(),
            ("spec.serviceAccountName", _) => self.spec.service_account_name.clone().unwrap_or_default(),
            ("status.podIP" | "status.hostIP", _) => ADDRESS.to_owned(),
            (_, Some(("metadata.labels", key))) => in_map(&metadata.labels, key),
            (_, Some(("metadata.annotations", key))) => in_map(&metadata.annotations, key),
            _ => return Err(format!("a process node does not know the field {path}")),
        })
    }

    /// A token of its ServiceAccount that is worth nothing without the pod. It is not renewed.
    pub(super) async fn token(&self, wanted: &ServiceAccountTokenProjection) -> Result<String, String> {
        let of_pod = BoundObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            name: self.object.metadata.name.clone(),
            uid: self.object.metadata.uid.clone(),
        };
        let spec = TokenRequestSpec {
            audiences: wanted.audience.iter().cloned().collect(),
            bound_object_ref: Some(of_pod),
            expiration_seconds: wanted.expiration_seconds,
        };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), self.namespace());
        let account = self.spec.service_account_name.as_deref().unwrap_or("default");
        let token = accounts.create_token_request(account, &PostParams::default(), &request).await;
        Ok(token.map_err(|e| e.to_string())?.status.ok_or("no token was given")?.token)
    }
}
