//! What the cluster is asked for: what a kind is called, and the metadata of its objects.

use std::collections::BTreeMap;
use std::error::Error;

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PartialObjectMeta};
use kube::core::{GroupVersion, GroupVersionKind, ObjectMeta, Status};
use kube::discovery::{Scope as Reach, pinned_group, pinned_kind};
use kube::error::DiscoveryError;
use kube::runtime::watcher::Event;
use watchfire_runtime::chain;
use watchfire_runtime::config::nearest;

use crate::config::Entry;
use crate::episode::{Allowed, Object, Rule};

/// Of an object nothing else is asked for.
pub(crate) type Metadata = PartialObjectMeta<DynamicObject>;

/// Objects in one page of a list.
pub(crate) const PAGE: u32 = 100;

/// Why a kind cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum Unwatchable {
    /// The cluster does not serve it, or does not answer.
    #[error("ask the cluster for the kind")]
    Unknown(#[from] kube::Error),
    /// The cluster serves the group, and no such kind in it.
    #[error("the cluster serves no {kind} in {api_version}{meant}")]
    Missing {
        /// As written.
        kind: String,
        /// As written.
        api_version: String,
        /// What was probably meant.
        meant: String,
    },
    /// It has another plural than is written.
    #[error("the cluster calls it {theirs}, and resources has {ours}: correct it")]
    Plural {
        /// As written.
        ours: String,
        /// As the cluster has it.
        theirs: String,
    },
    /// It is not in namespaces.
    #[error("it has no namespaces: leave out those of its entry")]
    Namespaces,
}

/// Asks what a kind is called, and whether it can be watched in a namespace.
pub(crate) async fn discover(
    client: &Client,
    entry: &Entry,
    namespace: Option<&str>,
) -> Result<ApiResource, Unwatchable> {
    let Entry { group, version, kind, resource, .. } = entry;
    let (found, capabilities) = match pinned_kind(client, &GroupVersionKind::gvk(group, version, kind)).await {
        Err(kube::Error::Discovery(DiscoveryError::MissingKind(_))) => return Err(missing(client, entry).await),
        Err(kube::Error::Api(status)) if status.code == 404 => return Err(missing(client, entry).await),
        found => found?,
    };
    if let Some(ours) = resource.clone().filter(|ours| *ours != found.plural) {
        return Err(Unwatchable::Plural { ours, theirs: found.plural });
    }
    if capabilities.scope == Reach::Cluster && namespace.is_some() {
        return Err(Unwatchable::Namespaces);
    }
    Ok(found)
}

/// The objects of a kind, in a namespace or in all of them.
pub(crate) fn objects(client: &Client, namespace: Option<&str>, kind: &ApiResource) -> Api<Metadata> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, kind),
        None => Api::all_with(client.clone(), kind),
    }
}

/// Says that there is no such kind, and which one there is.
async fn missing(client: &Client, entry: &Entry) -> Unwatchable {
    let Entry { group, version, kind, .. } = entry;
    let served = pinned_group(client, &GroupVersion::gv(group, version)).await;
    let served: Vec<_> =
        served.iter().flat_map(|group| group.versioned_resources(version)).map(|it| it.0.kind).collect();
    let names: Vec<_> = served.iter().map(String::as_str).collect();
    let of_the_core = (group == "core").then_some(version.as_str());
    let meant = nearest(kind, &names).filter(|name| name != kind).or(of_the_core);
    let meant = meant.map(|name| format!(", did you mean {name}?")).unwrap_or_default();
    Unwatchable::Missing { kind: kind.clone(), api_version: entry.api_version(), meant }
}

/// Lists all objects, page after page.
pub(crate) async fn each(api: &Api<Metadata>, mut work: impl FnMut(Object)) -> Result<(), kube::Error> {
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let listed = api.list(&page).await?;
        listed.items.into_iter().for_each(|item| work(object(item.metadata)));
        match listed.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => page = page.continue_token(&next),
            None => return Ok(()),
        }
    }
}

/// What the cluster said, in its own words, and what to do about it.
pub(crate) fn told(error: &(dyn Error + 'static)) -> String {
    match status(error) {
        Some(status) if status.code == 403 => {
            format!("{}; `watchfire beacon role` prints the rights that are needed", status.message)
        }
        // Of an object, or of a path, of which the server does not say more.
        Some(status) if status.code == 404 && status.details.is_none() => {
            "the cluster does not serve the kind (any more)".to_owned()
        }
        Some(status) => format!("{} (status {})", status.message.trim(), status.code),
        None => chain(error),
    }
}

/// What the API server answered, where that is the cause.
fn status<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(found)) => Some(found),
        _ => error.source().and_then(status),
    }
}

/// Whether it says that there is no object of that name.
pub(crate) fn is_about(status: &Status, name: &str) -> bool {
    status.reason == "NotFound" && status.details.as_ref().is_some_and(|details| details.name == name)
}

/// What is needed of an event: many may wait, and annotations are large.
pub(crate) fn light(event: Event<Metadata>, rule: &Rule, allowed: &Allowed) -> Event<Object> {
    let light = |it: Metadata| {
        let mut object = object(it.metadata);
        object.annotations.retain(|key, _| *key == rule.key || allowed.annotations.contains(key));
        object
    };
    match event {
        Event::Apply(it) => Event::Apply(light(it)),
        Event::Delete(it) => Event::Delete(light(it)),
        Event::Init => Event::Init,
        Event::InitApply(it) => Event::InitApply(light(it)),
        Event::InitDone => Event::InitDone,
    }
}

pub(crate) fn object(metadata: ObjectMeta) -> Object {
    let maps = |map: Option<BTreeMap<String, String>>| map.unwrap_or_default();
    Object {
        namespace: metadata.namespace.unwrap_or_default(),
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        annotations: maps(metadata.annotations),
        labels: maps(metadata.labels),
        resource_version: metadata.resource_version.unwrap_or_default(),
    }
}
