//! Asks cluster and endpoint whether a configuration can work, and changes nothing.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use tokio::time::timeout;
use watchfire_delivery::EventSink;
use watchfire_delivery::sink::http::Http;
use watchfire_runtime::chain;

use crate::config::{BeaconConfig, Entry};
use crate::objects::{discover, objects, told};
use crate::watch::PATIENCE;

/// Who was asked, and what came of it.
pub type Answer = (String, Result<String, String>);

/// Asks about each scope, whether it can be listed and watched, and whether the endpoint is there.
pub async fn ask(config: BeaconConfig, client: &Client) -> Vec<Answer> {
    let mut answers = Vec::new();
    for entry in &config.entries {
        for namespace in entry.places() {
            let place = namespace.map(|namespace| format!(".{namespace}")).unwrap_or_default();
            let answer = timeout(PATIENCE, scope(entry, namespace, client)).await;
            let answer = answer.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")));
            answers.push((format!("{}{place}", entry.name()), answer));
        }
    }
    answers.push(("endpoint".to_owned(), endpoint(config).await));
    answers
}

async fn scope(entry: &Entry, namespace: Option<&str>, client: &Client) -> Result<String, String> {
    let resource = discover(client, entry, namespace).await.map_err(|error| told(&error))?;
    let api = objects(client, namespace, &resource);
    api.list(&ListParams::default().limit(1)).await.map_err(|error| told(&error))?;
    for verb in ["watch", "get"] {
        let wanted = ResourceAttributes {
            group: Some(resource.group.clone()),
            namespace: namespace.map(str::to_owned),
            resource: Some(resource.plural.clone()),
            verb: Some(verb.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec =
            SelfSubjectAccessReviewSpec { resource_attributes: Some(wanted), ..SelfSubjectAccessReviewSpec::default() };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
        let answer = reviews.create(&PostParams::default(), &review).await.map_err(|error| told(&error))?;
        if !answer.status.is_some_and(|status| status.allowed) {
            let plural = &resource.plural;
            return Err(format!("may list {plural}, and not {verb} them; `watchfire beacon role` prints the rights"));
        }
    }
    let mut told = format!("{} may be listed and watched", resource.plural);
    if let Some(name) = namespace {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        // Whoever may not ask for it cannot be told.
        if let Ok(None) = namespaces.get_opt(name).await {
            told.push_str("; there is no such namespace yet");
        }
    }
    Ok(told)
}

async fn endpoint(config: BeaconConfig) -> Result<String, String> {
    let failed = |error: watchfire_delivery::sink::Error| format!("{}; {}", chain(&error), error.hint());
    let target = watchfire_runtime::redact::host(&config.endpoint.url);
    let sink = Http::new(config.endpoint).map_err(failed)?;
    sink.check().await.map_err(failed)?;
    Ok(format!("{target} answers; no event was sent"))
}
