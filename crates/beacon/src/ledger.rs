//! What is remembered about an object: its episodes, each with what was told of it.
//!
//! An episode's beginning and end go into one transaction with the event that tells of it, so that neither is there
//! without the other, whenever the process dies.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use kube::api::ApiResource;
use rusqlite::{Connection, OptionalExtension, Row};
use uuid::Uuid;
use watchfire_delivery::outbox::{self, Repeat, SinkId};
use watchfire_delivery::store::{Error, Module, Tx};

use crate::episode::{Snapshot, Source, Step};
use crate::notice::{Envelope, Order, What};

/// The ledger's tables, for [`Store::open`](watchfire_delivery::store::Store::open), behind those of the outbox.
pub const MODULE: Module = Module { name: "beacon", migrations: &[include_str!("ledger.sql")] };

/// A kind in a namespace, or in all of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScopeKey {
    /// The API group; empty for the core.
    pub group: String,
    /// The plural.
    pub resource: String,
    /// The namespace; empty for all.
    pub namespace: String,
    /// The kind.
    pub kind: String,
}

/// A scope as the ledger has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScopeId(i64);

/// A namespace and a name.
pub type Name = (String, String);

/// What the ledger needs to make an event of what it notes.
#[derive(Debug, Clone)]
pub struct Book {
    /// The scope.
    pub id: ScopeId,
    /// What it is.
    pub key: ScopeKey,
    /// The envelope.
    pub envelope: Envelope,
    /// Where events go.
    pub sink: SinkId,
    /// What keeps its order.
    pub order: Order,
}

impl ScopeKey {
    /// A kind as the cluster has it, in a namespace or in all of them.
    pub fn of(resource: &ApiResource, namespace: Option<&str>) -> Self {
        Self {
            group: resource.group.clone(),
            resource: resource.plural.clone(),
            namespace: namespace.unwrap_or_default().to_owned(),
            kind: resource.kind.clone(),
        }
    }
}

/// Finds a scope, and whether it was ever listed to the end.
pub fn find(connection: &Connection, key: &ScopeKey) -> Result<Option<(ScopeId, bool)>, Error> {
    let ScopeKey { group, resource, namespace, .. } = key;
    let sql = "SELECT id, listed FROM scopes WHERE api_group = ?1 AND resource = ?2 AND namespace = ?3";
    let found = |row: &Row<'_>| Ok((ScopeId(row.get(0)?), row.get(1)?));
    Ok(connection.prepare_cached(sql)?.query_row((group, resource, namespace), found).optional()?)
}

/// Makes a scope known; returns it, and whether it was ever listed to the end.
pub fn scope(connection: &Connection, key: &ScopeKey) -> Result<(ScopeId, bool), Error> {
    if let Some(found) = find(connection, key)? {
        return Ok(found);
    }
    let ScopeKey { group, resource, namespace, kind } = key;
    let sql = "INSERT INTO scopes (api_group, resource, namespace, kind) VALUES (?1, ?2, ?3, ?4)";
    connection.execute(sql, (group, resource, namespace, kind))?;
    find(connection, key)?.ok_or(Error::Sqlite(rusqlite::Error::QueryReturnedNoRows))
}

/// Takes over the open episodes of a kind that were noted for other namespaces than are configured now: of all of them,
/// or of one. An object stays the same one by whatever scope it is found.
pub fn adopt(connection: &Connection, scope: ScopeId, key: &ScopeKey) -> Result<usize, Error> {
    let ScopeKey { group, resource, namespace, .. } = key;
    let sql = "
        UPDATE episodes SET scope = ?1, episode = 1 + coalesce(
            (SELECT max(o.episode) FROM episodes o WHERE o.scope = ?1 AND o.uid = episodes.uid), 0)
        WHERE state = 'exists' AND (?4 = '' OR namespace = ?4) AND scope IN (
            SELECT id FROM scopes WHERE api_group = ?2 AND resource = ?3 AND id != ?1 AND (?4 = '' OR namespace = ''))
        AND NOT EXISTS (SELECT 1 FROM episodes o WHERE o.scope = ?1 AND o.uid = episodes.uid AND o.state = 'exists')";
    Ok(connection.prepare_cached(sql)?.execute((scope.0, group, resource, namespace))?)
}

/// Whether no scope was ever watched.
pub fn is_new(connection: &Connection) -> Result<bool, Error> {
    Ok(connection.query_row("SELECT NOT EXISTS (SELECT 1 FROM scopes)", [], |row| row.get(0))?)
}

/// Where there are open episodes, as kind, group and the objects' namespace.
pub fn open_places(connection: &Connection) -> Result<Vec<(String, String, String)>, Error> {
    let sql = "
        SELECT DISTINCT s.kind, s.api_group, o.namespace FROM episodes o JOIN scopes s ON s.id = o.scope
        WHERE o.state = 'exists'";
    let mut statement = connection.prepare(sql)?;
    let found = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    Ok(found.collect::<Result<_, _>>()?)
}

/// Notes that a whole list of a scope is in the ledger.
pub fn listed(connection: &Connection, scope: ScopeId, at: Timestamp) -> Result<(), Error> {
    connection.prepare_cached("UPDATE scopes SET listed = 1 WHERE id = ?1")?.execute([scope.0])?;
    reconciled(connection, scope, at)
}

/// Notes that a scope was compared with a whole list.
pub fn reconciled(connection: &Connection, scope: ScopeId, at: Timestamp) -> Result<(), Error> {
    let sql = "UPDATE scopes SET last_reconciled = ?2 WHERE id = ?1";
    connection.prepare_cached(sql)?.execute((scope.0, at.as_millisecond()))?;
    Ok(())
}

/// The episodes of a scope that are going on, by namespace and name, with the UIDs of their objects.
pub fn open_uids(connection: &Connection, scope: ScopeId) -> Result<HashMap<Name, String>, Error> {
    let sql = "SELECT namespace, name, uid FROM episodes WHERE scope = ?1 AND state = 'exists'";
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_map([scope.0], |row| Ok(((row.get(0)?, row.get(1)?), row.get(2)?)))?;
    Ok(found.collect::<Result<_, _>>()?)
}

/// The episodes of a scope that are going on, one after the other: there may be many.
pub fn each_open(connection: &Connection, scope: ScopeId, mut each: impl FnMut(Snapshot)) -> Result<(), Error> {
    let sql = "
        SELECT namespace, name, uid, annotation_value, annotations, labels, resource_version
        FROM episodes WHERE scope = ?1 AND state = 'exists'";
    let mut statement = connection.prepare_cached(sql)?;
    for found in statement.query_map([scope.0], snapshot)? {
        each(found?);
    }
    Ok(())
}

fn snapshot(row: &Row<'_>) -> rusqlite::Result<Snapshot> {
    // What is no map was edited by somebody, and is written anew with the next change.
    let map = |at| {
        row.get_ref(at).map(|text| serde_json::from_slice(text.as_bytes().unwrap_or_default()).unwrap_or_default())
    };
    Ok(Snapshot {
        namespace: row.get(0)?,
        name: row.get(1)?,
        uid: row.get(2)?,
        value: row.get(3)?,
        annotations: map(4)?,
        labels: map(5)?,
        resource_version: row.get(6)?,
    })
}

impl Book {
    /// Notes one step, with the event that tells of it. Returns namespace and name of the object, if that changed
    /// anything: what is noted already is not noted again.
    pub fn note(&self, tx: &Tx<'_>, step: &Step, now: Timestamp) -> Result<Option<Name>, Error> {
        match step {
            Step::Begin(snapshot, source) => self.begin(tx, snapshot, *source, now),
            Step::Change(snapshot) => change(tx, self.id, snapshot),
            Step::End(uid, source) => self.end(tx, uid, *source, now),
        }
    }

    fn begin(&self, tx: &Tx<'_>, snapshot: &Snapshot, source: Source, now: Timestamp) -> Result<Option<Name>, Error> {
        let sql = "
            INSERT INTO episodes (id, scope, uid, episode, namespace, name, annotation_value, state, detection_source,
                created_at, labels, annotations, resource_version)
            SELECT ?1, ?2, ?3, 1 + coalesce((SELECT max(episode) FROM episodes WHERE scope = ?2 AND uid = ?3), 0),
                ?4, ?5, ?6, 'exists', ?7, ?8, ?9, ?10, ?11
            WHERE NOT EXISTS (SELECT 1 FROM episodes WHERE scope = ?2 AND uid = ?3 AND state = 'exists')";
        let id = Uuid::new_v4().to_string();
        let Snapshot { namespace, name, uid, value, resource_version, .. } = snapshot;
        let (labels, annotations) = (json(&snapshot.labels), json(&snapshot.annotations));
        let source = source.as_str();
        let at = now.as_millisecond();
        let parameters = rusqlite::params![
            id,
            self.id.0,
            uid,
            namespace,
            name,
            value,
            source,
            at,
            labels,
            annotations,
            resource_version
        ];
        if tx.prepare_cached(sql)?.execute(parameters)? == 0 {
            change(tx, self.id, snapshot)?;
            return Ok(None);
        }
        self.append(tx, What::Created, &id, snapshot, now)?;
        Ok(Some((namespace.clone(), name.clone())))
    }

    fn end(&self, tx: &Tx<'_>, uid: &str, source: Source, now: Timestamp) -> Result<Option<Name>, Error> {
        // Where the cluster was asked, it stands in the ledger how it was found out that the object is gone.
        let sql = "
            UPDATE episodes SET state = 'deleted', deleted_at = ?3,
                detection_source = CASE WHEN ?4 = 'reconciliation' THEN ?4 ELSE detection_source END
            WHERE scope = ?1 AND uid = ?2 AND state = 'exists'
            RETURNING namespace, name, uid, annotation_value, annotations, labels, resource_version, id";
        let mut statement = tx.prepare_cached(sql)?;
        let ended = statement
            .query_row((self.id.0, uid, now.as_millisecond(), source.as_str()), |row| {
                Ok((snapshot(row)?, row.get::<_, String>(7)?))
            })
            .optional()?;
        let Some((snapshot, id)) = ended else { return Ok(None) };
        self.append(tx, What::Deleted, &id, &snapshot, now)?;
        Ok(Some((snapshot.namespace, snapshot.name)))
    }

    fn append(&self, tx: &Tx<'_>, what: What, id: &str, snapshot: &Snapshot, now: Timestamp) -> Result<(), Error> {
        let event = self.envelope.event(what, id, &self.key.kind, snapshot, now);
        let (source, order) = (event.attributes().source.clone(), self.order.key_of(&event));
        outbox::append(tx, &event.in_order_of(order), &[self.sink], Repeat::Ignore, now)?;
        let column = match what {
            What::Created => "created_event",
            What::Deleted => "deleted_event",
        };
        let sql = format!(
            "UPDATE episodes SET {column} = (SELECT seq FROM events WHERE source = ?2 AND id = ?1 || '.{}') WHERE id = ?1",
            what.as_str()
        );
        tx.prepare_cached(&sql)?.execute((id, source))?;
        Ok(())
    }
}

fn change(connection: &Connection, scope: ScopeId, snapshot: &Snapshot) -> Result<Option<Name>, Error> {
    let sql = "
        UPDATE episodes SET annotation_value = ?3, labels = ?4, annotations = ?5, resource_version = ?6
        WHERE scope = ?1 AND uid = ?2 AND state = 'exists'";
    let Snapshot { namespace, name, uid, value, labels, annotations, resource_version } = snapshot;
    let parameters = (scope.0, uid, value, json(labels), json(annotations), resource_version);
    let changed = connection.prepare_cached(sql)?.execute(parameters)? > 0;
    Ok(changed.then(|| (namespace.clone(), name.clone())))
}

fn json(map: &BTreeMap<String, String>) -> String {
    // Writing texts into memory cannot fail.
    serde_json::to_string(map).unwrap_or_default()
}

/// Events that are not delivered, do not wait, and are no dead letters: somebody discarded them.
pub fn discarded(connection: &Connection) -> Result<i64, Error> {
    let sql = "
        SELECT count(o.created_sent_at IS NULL AND NOT EXISTS (
                SELECT 1 FROM deliveries d WHERE d.event = o.created_event AND d.state IN ('pending', 'dead')) OR NULL)
            + count(o.state = 'deleted' AND o.deleted_sent_at IS NULL AND NOT EXISTS (
                SELECT 1 FROM deliveries d WHERE d.event = o.deleted_event AND d.state IN ('pending', 'dead')) OR NULL)
        FROM episodes o";
    Ok(connection.query_row(sql, [], |row| row.get(0))?)
}

/// The beginnings and ends that wait for their delivery, of each kind.
pub fn pending(connection: &Connection) -> Result<Vec<(String, [i64; 2])>, Error> {
    let mut kinds: BTreeMap<String, [i64; 2]> = BTreeMap::new();
    let mut statement = connection.prepare_cached("SELECT kind FROM scopes")?;
    for kind in statement.query_map([], |row| row.get(0))? {
        kinds.entry(kind?).or_default();
    }
    let sql = "
        SELECT s.kind, e.id LIKE '%.deleted', count(*)
        FROM deliveries d
        JOIN events e ON e.seq = d.event
        JOIN episodes o ON o.id = substr(e.id, 1, length(e.id) - 8)
        JOIN scopes s ON s.id = o.scope
        WHERE d.state = 'pending' GROUP BY 1, 2";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let counts = kinds.entry(row.get(0)?).or_default();
        counts[usize::from(row.get::<_, bool>(1)?)] = row.get(2)?;
    }
    Ok(kinds.into_iter().collect())
}

/// What is over, and may be removed: nothing of it waits or is a dead letter.
const ELIGIBLE: &str = "
    FROM episodes o
    WHERE o.state = 'deleted' AND o.deleted_at < ?1 AND NOT EXISTS (
        SELECT 1 FROM deliveries d
        WHERE d.event IN (o.created_event, o.deleted_event) AND d.state IN ('pending', 'dead'))";

/// How many episodes were over before a time and may be removed.
pub fn eligible(connection: &Connection, before: Timestamp) -> Result<i64, Error> {
    let sql = format!("SELECT count(*) {ELIGIBLE}");
    Ok(connection.prepare_cached(&sql)?.query_row([before.as_millisecond()], |row| row.get(0))?)
}

/// Removes episodes that were over before a time, and of which nothing waits or is a dead letter; returns how many.
pub fn prune(connection: &Connection, before: Timestamp, limit: u32) -> Result<usize, Error> {
    let sql = format!("DELETE FROM episodes WHERE seq IN (SELECT o.seq {ELIGIBLE} ORDER BY o.deleted_at LIMIT ?2)");
    Ok(connection.prepare_cached(&sql)?.execute((before.as_millisecond(), limit))?)
}

#[cfg(test)]
mod tests;
