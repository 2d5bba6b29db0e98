//! `watchfire crds`: the definitions of Watchfire's own Kubernetes objects.

use anyhow::Context;
use kube::CustomResourceExt;
use watchfire_sentinel::object::SentinelConfig;

/// Renders them as YAML, ready for `kubectl apply`.
pub(crate) fn print() -> anyhow::Result<String> {
    let text = serde_saphyr::to_string(&SentinelConfig::crd()).context("print the definition of SentinelConfig")?;
    Ok(text.trim_end().to_owned())
}
