//! The rules of writing: what may be created, changed, deleted and reported, and what follows from it.
//!
//! `now` is an argument everywhere; ids are the only thing drawn.

use std::sync::Arc;

use jiff::{Timestamp, Unit};
use rand::RngExt as _;
use serde_json::value::RawValue;

use crate::aggregation::{self, Deletion, Facts, Verdict};
use crate::dialect::Dialect;
use crate::input::{NewReport, NewResource, Patch, check_labels, check_name, check_report, empty_object};
use crate::kind::{Kind, href};
use crate::problem::Problem;
use crate::resource::{Owner, Report, Resource, Status};
use crate::synthetic::{FleetState, Synthetic};
use crate::table::{Row, Table};

/// What became of a report.
#[derive(Debug, Clone)]
pub enum Reported {
    /// 201: accepted; the stored report.
    Accepted(Box<Report>),
    /// 204: silently dropped.
    Discarded(&'static str),
}

/// What became of a deletion.
#[derive(Debug, Clone)]
pub enum Deleted {
    /// The resource waits for its adapters.
    Marked(Box<Resource>),
    /// It was removed at once.
    Removed(Box<Resource>),
}

/// Everything the API knows.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) dialect: Dialect,
    pub(crate) tables: Vec<Table>,
    last_millisecond: u64,
    last_created: Timestamp,
}

/// What happened to one resource, for whoever watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The plural of its kind.
    pub plural: String,
    /// Its id.
    pub id: String,
    /// What happened.
    pub what: What,
    /// Its generation afterwards.
    pub generation: i32,
    /// Whether it is ready afterwards.
    pub ready: bool,
}

/// What can happen to a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// It was created.
    Created,
    /// Its spec or labels changed.
    Changed,
    /// Its deletion was asked for.
    Deleting,
    /// It was removed.
    Removed,
    /// An adapter reported, and said this of `Available`.
    Reported {
        /// The adapter.
        adapter: String,
        /// Its word.
        available: Status,
    },
}

impl Fleet {
    pub(crate) fn new(dialect: Dialect, kinds: Vec<Kind>) -> Self {
        let tables = kinds.into_iter().map(Table::new).collect();
        Self { dialect, tables, last_millisecond: 0, last_created: Timestamp::UNIX_EPOCH }
    }

    pub(crate) fn table(&self, plural: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.kind.plural == plural)
    }

    fn table_mut(&mut self, plural: &str) -> Result<&mut Table, Problem> {
        let table = self.tables.iter_mut().find(|table| table.kind.plural == plural);
        table.ok_or_else(|| Problem::no_endpoint(&format!("{}/{plural}", crate::kind::BASE)))
    }

    pub(crate) fn get(&self, plural: &str, id: &str) -> Result<Row<'_>, Problem> {
        let table =
            self.table(plural).ok_or_else(|| Problem::no_endpoint(&format!("{}/{plural}", crate::kind::BASE)))?;
        table.get(id).ok_or_else(|| Problem::not_found(&table.kind.name, id))
    }

    pub(crate) fn seed(&mut self, plural: &str, count: u32, state: FleetState, now: Timestamp) -> Result<(), Problem> {
        let dialect = self.dialect;
        let table = self.table_mut(plural)?;
        let (_, _, mut stored) = table.census();
        if table.kind.parent.is_some() || table.synthetic.is_some() || stored.next().is_some() {
            return Err(Problem::validation("only an empty kind without parent can be seeded, once"));
        }
        drop(stored);
        let synthetic = Synthetic::new(&table.kind, count, state, dialect, now)
            .map_err(|error| Problem::validation(error.to_string()))?;
        let last = synthetic.last_millisecond();
        table.synthetic = Some(synthetic);
        self.last_millisecond = self.last_millisecond.max(last);
        Ok(())
    }

    pub(crate) fn create(
        &mut self,
        plural: &str,
        owner: Option<&str>,
        new: NewResource,
        now: Timestamp,
    ) -> Result<(Resource, Change), Problem> {
        let kind = self.table_mut(plural)?.kind.clone();
        let owner = self.owner(&kind, owner)?;
        if new.kind.as_ref().is_some_and(|given| *given != kind.name) {
            return Err(Problem::validation(format!("kind must be '{}'", kind.name)));
        }
        check_name(&kind, &new.name)?;
        check_labels(&new.labels)?;
        let created_time = micros(now).max(self.last_created);
        self.last_created = created_time;
        let id = new.id.clone().unwrap_or_else(|| self.next_id(created_time));
        let table = self.table_mut(plural)?;
        let owner_id = owner.as_ref().map(|owner| owner.id.as_str());
        if table.has_name(owner_id, &new.name) {
            return Err(Problem::exists(&kind.name, &new.name));
        }
        if new.id.is_some() {
            let below = table.synthetic.as_ref().is_some_and(|synthetic| id <= Synthetic::id(synthetic.count()));
            if below || table.get(&id).is_some() {
                return Err(Problem::exists(&kind.name, &id));
            }
            table.chronological = false;
        }
        let mut resource = Resource {
            href: href(&kind, &id, owner_id),
            id,
            kind: kind.name.clone(),
            name: new.name,
            generation: 1,
            labels: Arc::new(new.labels),
            spec: new.spec.map_or_else(empty_object, Arc::from),
            owner,
            created_time,
            updated_time: created_time,
            deleted_time: None,
            conditions: Vec::new(),
            reports: Vec::new(),
        };
        aggregate(&mut resource, &kind, Deletion::None);
        let change = change(plural, &resource, What::Created);
        table.insert(resource.clone());
        Ok((resource, change))
    }

    fn owner(&self, kind: &Kind, owner: Option<&str>) -> Result<Option<Owner>, Problem> {
        match (&kind.parent, owner) {
            (None, _) => Ok(None),
            (Some(parent), None) => {
                Err(Problem::validation(format!("{} must be created under its parent in '{parent}'", kind.name)))
            }
            (Some(parent), Some(id)) => {
                self.get(parent, id)?;
                let parent = self.table(parent).map(|table| &table.kind);
                let name = parent.map(|parent| parent.name.clone()).unwrap_or_default();
                if self.deletion_of(kind.parent.as_deref().unwrap_or_default(), id).is_some() {
                    return Err(Problem::deleting(&name, id));
                }
                let href = parent.map(|parent| href(parent, id, None)).unwrap_or_default();
                Ok(Some(Owner { href, id: id.to_owned(), kind: name }))
            }
        }
    }

    fn deletion_of(&self, plural: &str, id: &str) -> Option<Timestamp> {
        match self.table(plural)?.get(id)? {
            Row::Stored(resource) => resource.deleted_time,
            Row::Synthetic(..) => None,
        }
    }

    fn next_id(&mut self, now: Timestamp) -> String {
        let millisecond = u64::try_from(now.as_millisecond()).unwrap_or(0).max(self.last_millisecond + 1);
        self.last_millisecond = millisecond;
        let random: [u8; 10] = rand::rng().random();
        uuid::Builder::from_unix_timestamp_millis(millisecond, &random).into_uuid().to_string()
    }

    pub(crate) fn patch(
        &mut self,
        plural: &str,
        id: &str,
        patch: Patch,
        now: Timestamp,
    ) -> Result<(Resource, Option<Change>), Problem> {
        let table = self.table_mut(plural)?;
        let kind = table.kind.clone();
        let resource = table.get_mut(id).ok_or_else(|| Problem::not_found(&kind.name, id))?;
        if resource.deleted_time.is_some() {
            return Err(Problem::deleting(&kind.name, id));
        }
        let relabelled = patch.labels.as_ref().is_some_and(|labels| *labels != *resource.labels);
        if let Some(labels) = patch.labels {
            check_labels(&labels)?;
            resource.labels = Arc::new(labels);
        }
        let mut changed = relabelled;
        if let Some(spec) = patch.spec {
            changed |= !same_json(&spec, &resource.spec);
            resource.spec = spec.into();
        }
        if changed {
            resource.generation += 1;
            resource.updated_time = micros(now);
            aggregate(resource, &kind, Deletion::None);
        }
        let resource = resource.clone();
        if relabelled {
            table.relabelled(id);
        }
        let change = changed.then(|| change(plural, &resource, What::Changed));
        Ok((resource, change))
    }

    /// Marks for deletion, with everything owned; a kind without required adapters goes at once.
    pub(crate) fn delete(&mut self, plural: &str, id: &str, now: Timestamp) -> Result<(Deleted, Vec<Change>), Problem> {
        let mut changes = Vec::new();
        for (child, child_id) in self.owned(plural, id) {
            changes.extend(self.delete(&child, &child_id, now)?.1);
        }
        let deletion = self.deletion(plural, id);
        let table = self.table_mut(plural)?;
        let kind = table.kind.clone();
        let resource = table.get_mut(id).ok_or_else(|| Problem::not_found(&kind.name, id))?;
        if resource.deleted_time.is_none() {
            resource.deleted_time = Some(micros(now));
            resource.generation += 1;
            resource.updated_time = micros(now);
            aggregate(resource, &kind, deletion);
            let what = if kind.required_adapters.is_empty() { What::Removed } else { What::Deleting };
            changes.push(change(plural, resource, what));
        }
        let resource = Box::new(resource.clone());
        if kind.required_adapters.is_empty() {
            table.remove(id);
            return Ok((Deleted::Removed(resource), changes));
        }
        Ok((Deleted::Marked(resource), changes))
    }

    /// Removes at once, with everything owned.
    pub(crate) fn force_delete(&mut self, plural: &str, id: &str) -> Result<Vec<Change>, Problem> {
        let mut changes = Vec::new();
        for (child, child_id) in self.owned(plural, id) {
            changes.extend(self.force_delete(&child, &child_id)?);
        }
        let table = self.table_mut(plural)?;
        let kind = table.kind.name.clone();
        let resource = table.get_mut(id).ok_or_else(|| Problem::not_found(&kind, id))?;
        changes.push(change(plural, resource, What::Removed));
        table.remove(id);
        Ok(changes)
    }

    fn owned(&self, plural: &str, id: &str) -> Vec<(String, String)> {
        let children = self.tables.iter().filter(|table| table.kind.parent.as_deref() == Some(plural));
        let owned = |table: &Table| {
            let plural = table.kind.plural.clone();
            table.owned_by(id).into_iter().map(move |child| (plural.clone(), child))
        };
        children.flat_map(owned).collect()
    }

    fn deletion(&self, plural: &str, id: &str) -> Deletion {
        if self.owned(plural, id).is_empty() { Deletion::Asked } else { Deletion::WaitingForChildren }
    }

    pub(crate) fn report(
        &mut self,
        plural: &str,
        id: &str,
        new: NewReport,
        now: Timestamp,
    ) -> Result<(Reported, Vec<Change>), Problem> {
        let deletion = match self.deletion_of(plural, id) {
            None => Deletion::None,
            Some(_) => self.deletion(plural, id),
        };
        let table = self.table_mut(plural)?;
        let kind = table.kind.clone();
        if table.get(id).is_none() {
            return Err(Problem::not_found(&kind.name, id));
        }
        let Some(mut report) = check_report(new)? else {
            return Ok((Reported::Discarded("zero observed time"), Vec::new()));
        };
        let Some(resource) = table.get_mut(id) else { return Err(Problem::not_found(&kind.name, id)) };
        let at = resource.reports.iter().position(|stored| stored.adapter == report.adapter);
        let stored = at.and_then(|at| resource.reports.get_mut(at));
        let aggregate_now = match aggregation::judge(resource.generation, &report, stored.as_deref(), now) {
            Verdict::Refuse(detail) => return Err(Problem::validation(detail)),
            Verdict::Discard(reason) => return Ok((Reported::Discarded(reason), Vec::new())),
            Verdict::Same => {
                return Ok((Reported::Accepted(Box::new(stored.map_or(report, |stored| stored.clone()))), Vec::new()));
            }
            Verdict::Store { aggregate } => aggregate,
        };
        if let Some(stored) = stored {
            aggregation::succeed(&mut report, stored);
            *stored = report.clone();
        } else {
            resource.reports.push(report.clone());
        }
        if aggregate_now {
            aggregate(resource, &kind, deletion);
        }
        let available = report.status("Available").unwrap_or(Status::Unknown);
        let what = What::Reported { adapter: report.adapter.clone(), available };
        let mut changes = vec![change(plural, resource, what)];
        if aggregation::is_finalized(&facts(resource, &kind, deletion)) {
            changes.push(change(plural, resource, What::Removed));
            table.remove(id);
        }
        Ok((Reported::Accepted(Box::new(report)), changes))
    }
}

fn facts<'a>(resource: &'a Resource, kind: &'a Kind, deletion: Deletion) -> Facts<'a> {
    Facts {
        generation: resource.generation,
        updated_time: resource.updated_time,
        deletion,
        required: &kind.required_adapters,
        reports: &resource.reports,
        previous: &resource.conditions,
    }
}

fn aggregate(resource: &mut Resource, kind: &Kind, deletion: Deletion) {
    resource.conditions = aggregation::aggregate(&facts(resource, kind, deletion));
}

fn change(plural: &str, resource: &Resource, what: What) -> Change {
    let (id, generation, ready) = (resource.id.clone(), resource.generation, resource.is_ready());
    Change { plural: plural.to_owned(), id, what, generation, ready }
}

fn same_json(left: &RawValue, right: &RawValue) -> bool {
    let parse = |raw: &RawValue| serde_json::from_str::<serde_json::Value>(raw.get()).ok();
    left.get() == right.get() || parse(left) == parse(right)
}

/// The database keeps microseconds.
fn micros(time: Timestamp) -> Timestamp {
    time.round(Unit::Microsecond).unwrap_or(time)
}
