//! Compares cluster, ledger and what was delivered, and changes nothing; beside the service, or while it is stopped.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use kube::Client;
use rusqlite::Connection;
use serde::Serialize;
use tokio::time::sleep;
use watchfire_delivery::outbox;
use watchfire_delivery::store::{self, open_beside};

use crate::config::{BeaconConfig, Entry};
use crate::episode::{Object, Rule};
use crate::ledger::{self, ScopeKey};
use crate::objects::{Unwatchable, discover, each, objects, told};
use crate::service::SINK;

/// What differs twice, so long apart, differs.
const MEANWHILE: Duration = Duration::from_secs(1);

/// What the comparison found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Annotated objects of the cluster.
    pub objects: u64,
    /// Of these, those that the ledger lacks.
    pub unannounced: Vec<Finding>,
    /// What the ledger takes to be there, and the cluster does not have.
    pub vanished: Vec<Finding>,
    /// Events that wait for their delivery.
    pub pending: i64,
    /// Events that the endpoint will never take.
    pub dead: i64,
    /// Events that somebody discarded, so that the endpoint does not know of them.
    pub discarded: i64,
    /// Where there is something that was announced and is not watched any more, so that nobody knows what became of it.
    pub unwatched: Vec<String>,
    /// Scopes about which the cluster does not say anything, and why.
    pub unanswered: Vec<String>,
}

/// An object of which cluster and ledger differ.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Finding {
    /// The kind.
    pub kind: String,
    /// Empty where the kind has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
}

impl Findings {
    /// Whether everything in the cluster was announced, and everything that was announced is taken.
    pub fn holds(&self) -> bool {
        let Self { objects: _, unwatched: _, unannounced, vanished, pending, dead, discarded, unanswered } = self;
        let waits = pending + dead + discarded;
        unannounced.is_empty() && vanished.is_empty() && waits == 0 && unanswered.is_empty()
    }
}

/// Why a scope cannot be compared.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0}")]
    Kind(#[from] Unwatchable),
    #[error("list its objects")]
    List(#[from] kube::Error),
    #[error("read the ledger's objects")]
    Ledger(#[from] store::Error),
}

/// Compares all scopes of a configuration. Fails if the ledger cannot be read; a scope that cannot be listed is a
/// finding.
pub async fn verify(config: &BeaconConfig, client: &Client) -> Result<Findings, store::Error> {
    let connection = open_beside(&config.storage.ledger, &[outbox::MODULE, ledger::MODULE])?;
    let mut findings = Findings::default();
    for entry in &config.entries {
        for namespace in entry.places() {
            match compare(&connection, entry, namespace, &config.rule, client).await {
                Ok((objects, differ)) => {
                    findings.objects += objects;
                    for (finding, lacks) in differ {
                        match lacks {
                            Lacks::Ledger => findings.unannounced.push(finding),
                            Lacks::Cluster => findings.vanished.push(finding),
                        }
                    }
                }
                Err(Error::Ledger(error)) => return Err(error),
                Err(error) => {
                    let place = namespace.unwrap_or_default();
                    findings.unanswered.push(format!("{} {place}: {}", entry.name(), told(&error)));
                }
            }
        }
    }
    if let Some(sink) = outbox::find(&connection, SINK)? {
        let stats = outbox::stats(&connection, sink)?;
        (findings.pending, findings.dead) = (stats.pending, stats.dead);
    }
    for (kind, group, namespace) in ledger::open_places(&connection)? {
        if !config.entries.iter().any(|entry| entry.covers(&kind, &group, &namespace)) {
            findings.unwatched.push(format!("{kind} {group} {namespace}"));
        }
    }
    findings.discarded = ledger::discarded(&connection)?;
    Ok(findings)
}

type Objects = BTreeMap<(String, String), String>;

/// How many annotated objects a scope has, and what of it differs, twice: a service beside may be about to note, or to
/// hear, what has just happened.
async fn compare(
    connection: &Connection,
    entry: &Entry,
    namespace: Option<&str>,
    rule: &Rule,
    client: &Client,
) -> Result<(u64, Vec<(Finding, Lacks)>), Error> {
    let (key, objects) = listed(entry, namespace, rule, client).await?;
    let count = objects.len() as u64;
    let mut found = differ(connection, &key, objects)?;
    if !found.is_empty() {
        sleep(MEANWHILE).await;
        let (key, objects) = listed(entry, namespace, rule, client).await?;
        let still: HashSet<_> = differ(connection, &key, objects)?.into_iter().collect();
        found.retain(|it| still.contains(it));
    }
    Ok((count, found))
}

/// The UIDs of the annotated objects of a scope, by namespace and name.
async fn listed(
    entry: &Entry,
    namespace: Option<&str>,
    rule: &Rule,
    client: &Client,
) -> Result<(ScopeKey, Objects), Error> {
    let resource = discover(client, entry, namespace).await?;
    let key = ScopeKey::of(&resource, namespace);
    let api = objects(client, namespace, &resource);
    let mut found = Objects::new();
    let keep = |Object { namespace, name, uid, annotations, .. }: Object| {
        if rule.value(&annotations).is_some() {
            found.insert((namespace, name), uid);
        }
    };
    each(&api, keep).await?;
    Ok((key, found))
}

/// Where an object is missing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Lacks {
    Ledger,
    Cluster,
}

/// What of a scope differs, and how.
fn differ(
    connection: &Connection,
    key: &ScopeKey,
    mut objects: Objects,
) -> Result<Vec<(Finding, Lacks)>, store::Error> {
    let finding = |(namespace, name): (String, String), uid| Finding { kind: key.kind.clone(), namespace, name, uid };
    let mut differ = Vec::new();
    if let Some((scope, _)) = ledger::find(connection, key)? {
        ledger::each_open(connection, scope, |known| {
            let at = (known.namespace, known.name);
            if objects.get(&at) == Some(&known.uid) {
                objects.remove(&at);
            } else {
                differ.push((finding(at, known.uid), Lacks::Cluster));
            }
        })?;
    }
    differ.extend(objects.into_iter().map(|(at, uid)| (finding(at, uid), Lacks::Ledger)));
    Ok(differ)
}
