//! Asks the API for only the fields that are read, where that provably changes nothing.
//!
//! `fields=` is not in the API's specification: a server may ignore it, refuse a name (today's refuses a name that the
//! first item does not have) or cut something off. So one resource is read whole and projected, once per process; the
//! projection is used only if both yield the same decision input and the same payload.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;
use tracing::{debug, warn};
use watchfire_runtime::chain;

use super::{Api, Error, OnFailure};
use crate::expression::{Expression, Facts};
use crate::partial;
use crate::payload::Payload;
use crate::resource::{self, Resource};

/// What every decision reads, under the names that the API's projection takes.
///
/// `deleted_time` is taken whether or not the first item is being deleted; those that are not say `null`.
const DECISION: [&str; 6] = ["id", "kind", "generation", "labels", "deleted_time", "status.conditions.*"];

/// What only a metric reads, the latency of decisions; an API without it is asked for the rest.
const CHANGED: &str = ",updated_time";

/// The API's own top-level fields that can be projected by their name.
const PLAIN: [&str; 11] = [
    "id",
    "kind",
    "href",
    "name",
    "generation",
    "labels",
    "spec",
    "references",
    "created_by",
    "updated_by",
    "deleted_time",
];

/// Who reads resources, besides the decision.
#[derive(Debug, Clone, Copy)]
pub struct Reads<'a> {
    /// What is sent.
    pub payload: &'a Payload,
    /// What decides, where an expression does.
    pub expression: Option<&'a Expression>,
}

/// Whether `fields=` is used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Projection {
    /// Not known yet; the candidates, best first.
    Unproven(Vec<String>),
    /// Proven to change nothing.
    Fields(String),
    /// Everything is asked for.
    #[default]
    Off,
}

impl Projection {
    /// Candidates for what is read; off where something of it can't be projected.
    pub fn new<'a>(reads: impl IntoIterator<Item = Reads<'a>>) -> Self {
        let mut read = BTreeSet::new();
        for Reads { payload, expression } in reads {
            let Some(fields) = payload.top_level_fields() else { return Self::Off };
            read.extend(fields);
            match expression.map(Expression::top_level_fields) {
                None => {}
                Some(None) => return Self::Off,
                Some(Some(fields)) => read.extend(fields.iter().cloned()),
            }
        }
        let mut fields: BTreeSet<&str> = DECISION.into();
        let mut owned = false;
        for field in &read {
            match PLAIN.iter().find(|plain| *plain == field) {
                Some(plain) => {
                    fields.insert(plain);
                }
                None if field == "owner_references" => owned = true,
                // Older dialects only; today's API has no such field, and its paths resolve against the others.
                None if matches!(field.as_str(), "status" | "metadata" | "ownerResource") => {}
                None => return Self::Off,
            }
        }
        let plain = fields.into_iter().collect::<Vec<_>>().join(",");
        // A kind without owners has no such field, and the API refuses the name.
        let owners: &[&str] = if owned { &[",owner_references.*", ""] } else { &[""] };
        let candidates = [CHANGED, ""].into_iter().flat_map(|changed| owners.iter().map(move |owner| (changed, owner)));
        Self::Unproven(candidates.map(|(changed, owner)| format!("{plain}{changed}{owner}")).collect())
    }

    /// The value of `fields=`, once proven.
    pub fn fields(&self) -> Option<&str> {
        match self {
            Self::Fields(fields) => Some(fields),
            Self::Unproven(_) | Self::Off => None,
        }
    }

    /// Gives the projection up where the API has begun to refuse it: the next walk asks for whole resources.
    pub fn refused(&mut self, error: &Error) {
        if self.fields().is_some() && is_about_the_query(error) {
            warn!("the API refuses the projection that it took before; asking for whole resources");
            *self = Self::Off;
        }
    }

    /// Compares one resource read whole with the same one projected, unless that is settled already. An empty list
    /// proves nothing, and neither does a resource that changes in between, or an API that is busy or away: they are
    /// tried again next time, and whole resources are asked for until then. Fails where the API cannot be asked at all.
    pub async fn prove(
        &mut self,
        api: &Api,
        search: Option<&str>,
        reads: &[Reads<'_>],
        failed: OnFailure<'_>,
    ) -> Result<(), Error> {
        let Self::Unproven(candidates) = self else { return Ok(()) };
        let mut query = vec![("size", "1"), ("order", "id asc")];
        query.extend(search.map(|search| ("search", search)));
        let whole = api.get(&query, failed).await?;
        let Some(whole) = whole.items().next() else { return Ok(()) };
        for fields in candidates.clone() {
            let mut projecting = query.clone();
            projecting.push(("fields", &fields));
            match api.once(&projecting).await {
                Ok(page) => {
                    let Some(projected) = page.items().next() else { return Ok(()) };
                    if same_resource(whole, projected) && same_input(reads, whole, projected) {
                        debug!(fields, "asking the API for these fields only");
                        *self = Self::Fields(fields);
                        return Ok(());
                    }
                    // A report may have come in between; what is read now would tell.
                    let again = api.get(&query, failed).await?;
                    if !again.items().next().is_some_and(|again| same_input(reads, whole, again)) {
                        return Ok(());
                    }
                }
                Err(error) if is_about_the_query(&error) => {}
                Err(error) if error.retry_after().is_some() => return Err(error),
                // That is about the API's day, not about what it can do.
                Err(error) => {
                    debug!(error = %chain(&error), "asking for whole resources, and for these fields only next time");
                    return Ok(());
                }
            }
        }
        warn!("the API's projection leaves out what the payload needs; asking for whole resources");
        *self = Self::Off;
        Ok(())
    }
}

/// Whether the API says that it does not take what was asked.
pub(crate) fn is_about_the_query(error: &Error) -> bool {
    matches!(error, Error::Status { status, .. } if matches!(status.as_u16(), 400 | 422))
}

fn same_resource(whole: &str, projected: &str) -> bool {
    resource::parse_id(whole).is_some_and(|id| resource::parse_id(projected) == Some(id))
}

/// The projection writes times to the second; nothing else may differ, whoever reads it.
fn same_input(reads: &[Reads<'_>], whole: &str, projected: &str) -> bool {
    let view = |reads: &Reads<'_>, json| {
        let mut view = Resource::parse(json).ok()?;
        let value = partial::read(json, None).ok()?;
        let facts = Facts { resource: &value, view: &view, now: Timestamp::UNIX_EPOCH };
        let data = reads.payload.build(facts, "").data.get().to_owned();
        let mut read = match reads.expression {
            Some(expression) => expression.read(json).ok()?,
            None => Value::Null,
        };
        cut_times(&mut read);
        view.deleted_time = view.deleted_time.and_then(|at| Timestamp::from_second(at.as_second()).ok());
        Some((view, data, read))
    };
    reads.iter().all(|reads| view(reads, whole).is_some_and(|whole| view(reads, projected) == Some(whole)))
}

/// Cuts the resource's own times, and those of its conditions, to the second.
fn cut_times(resource: &mut Value) {
    cut_times_of(resource);
    let conditions = resource.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    conditions.into_iter().flatten().for_each(cut_times_of);
}

fn cut_times_of(object: &mut Value) {
    for (key, value) in object.as_object_mut().into_iter().flatten() {
        if key.ends_with("_time")
            && let Some(time) = value.as_str().and_then(|text| text.parse::<Timestamp>().ok())
        {
            *value = time.as_second().into();
        }
    }
}
