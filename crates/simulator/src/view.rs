//! Writes resources as JSON, in each dialect, straight into one buffer.

use jiff::Timestamp;
use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde_json::value::RawValue;

use crate::dialect::{Dialect, Phase};
use crate::kind::Kind;
use crate::problem::Problem;
use crate::resource::{Condition, Labels, Owner, Resource, whole_second};

/// Who the API says did everything.
pub(crate) const AUTHOR: &str = "system@hyperfleet.local";

/// The order in which conditions are served.
///
/// A lone resource is read through the conditions' index, several are read in the order in which they were written;
/// clients should not care, and a simulator that never varied would hide that they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConditionOrder {
    ByType,
    AsWritten,
}

/// The top-level fields that a client asked for with `fields=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fields(u16);

const NAMES: [&str; 15] = [
    "id",
    "created_by",
    "created_time",
    "deleted_by",
    "deleted_time",
    "generation",
    "href",
    "kind",
    "labels",
    "name",
    "owner_references",
    "spec",
    "status",
    "updated_by",
    "updated_time",
];

impl Fields {
    /// Everything; only this includes `tenancy`.
    pub(crate) const ALL: Self = Self(u16::MAX);

    /// Reads a comma list as today's API does; `id` is always included.
    ///
    /// A field that is an object is named by its parts (`status.conditions.*`), and one that the kind does not have is
    /// refused: only children have `owner_references.*`.
    pub(crate) fn parse(text: &str, kind: &Kind) -> Result<Self, Problem> {
        let bit = |name: &str| NAMES.iter().position(|known| *known == name).map(|at| 1 << at);
        let mut fields = Self(1);
        let mut unknown = Vec::new();
        for name in text.split(',').map(str::trim) {
            let known = match name {
                "status.conditions" | "status.conditions.*" | "status.*" => bit("status"),
                "owner_references.*" if kind.parent.is_some() => bit("owner_references"),
                "owner_references" if kind.parent.is_none() => Some(0),
                "status" | "owner_references" => None,
                name => bit(name),
            };
            match known {
                Some(known) => fields.0 |= known,
                None => unknown.push(name),
            }
        }
        if unknown.is_empty() {
            return Ok(fields);
        }
        let (kind, unknown) = (&kind.name, unknown.join(", "));
        Err(Problem::validation(format!("The following field(s) doesn't exist in `{kind}`: {unknown}")))
    }

    fn has(self, name: &str) -> bool {
        NAMES.iter().position(|known| *known == name).is_some_and(|at| self.0 & (1 << at) != 0)
    }
}

/// A resource taken apart for writing; synthetic ones bring fragments that are already JSON.
pub(crate) struct Parts<'a> {
    pub(crate) id: &'a str,
    pub(crate) name: &'a str,
    pub(crate) href: &'a str,
    pub(crate) generation: i32,
    pub(crate) labels: LabelsPart<'a>,
    pub(crate) spec: &'a RawValue,
    pub(crate) owner: Option<&'a Owner>,
    pub(crate) created_time: Timestamp,
    pub(crate) updated_time: Timestamp,
    pub(crate) deleted_time: Option<Timestamp>,
    pub(crate) status: StatusPart<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum LabelsPart<'a> {
    Map(&'a Labels),
    Raw(&'a RawValue),
}

pub(crate) enum StatusPart<'a> {
    Raw(&'a RawValue),
    Phase(Phase),
    Conditions(&'a [Condition], ConditionOrder),
}

impl Serialize for StatusPart<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Raw(raw) => raw.serialize(serializer),
            Self::Phase(phase) => phase.serialize(serializer),
            Self::Conditions(conditions, order) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("conditions", &Ordered(conditions, *order))?;
                map.end()
            }
        }
    }
}

struct Ordered<'a>(&'a [Condition], ConditionOrder);

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.1 {
            ConditionOrder::AsWritten => self.0.serialize(serializer),
            ConditionOrder::ByType => {
                let mut sorted: Vec<&Condition> = self.0.iter().collect();
                sorted.sort_by(|a, b| a.ty.cmp(&b.ty));
                let mut seq = serializer.serialize_seq(Some(sorted.len()))?;
                for condition in sorted {
                    seq.serialize_element(condition)?;
                }
                seq.end()
            }
        }
    }
}

/// How to write.
#[derive(Clone, Copy)]
pub(crate) struct Style<'a> {
    pub(crate) dialect: Dialect,
    pub(crate) kind: &'a Kind,
    pub(crate) fields: Fields,
    pub(crate) order: ConditionOrder,
}

/// Appends one resource.
pub(crate) fn write(out: &mut Vec<u8>, parts: &Parts<'_>, style: Style<'_>) {
    // Writing to memory cannot fail, and every map key is a string.
    drop(serde_json::to_writer(out, &View { parts, style }));
}

/// Appends one stored resource.
pub(crate) fn write_resource(out: &mut Vec<u8>, resource: &Resource, style: Style<'_>) {
    write(out, &parts(resource, style), style);
}

pub(crate) fn parts<'a>(resource: &'a Resource, style: Style<'_>) -> Parts<'a> {
    let status = if style.dialect.has_phase() {
        let Resource { generation, updated_time, conditions, .. } = resource;
        StatusPart::Phase(Phase::of(style.dialect, style.kind, *generation, *updated_time, conditions))
    } else {
        StatusPart::Conditions(&resource.conditions, style.order)
    };
    Parts {
        id: &resource.id,
        name: &resource.name,
        href: &resource.href,
        generation: resource.generation,
        labels: LabelsPart::Map(&resource.labels),
        spec: &resource.spec,
        owner: resource.owner.as_ref(),
        created_time: resource.created_time,
        updated_time: resource.updated_time,
        deleted_time: resource.deleted_time,
        status,
    }
}

struct View<'a> {
    parts: &'a Parts<'a>,
    style: Style<'a>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    labels: &'a LabelsPart<'a>,
    name: &'a str,
}

#[derive(Serialize)]
struct Empty {}

impl Serialize for View<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.origin(&mut map)?;
        self.identity(&mut map)?;
        self.state(&mut map)?;
        map.end()
    }
}

/// The entries, in the order in which the API writes them.
impl View<'_> {
    /// Like today's API, which writes times to the second where it projects.
    fn time(&self, time: Timestamp) -> Timestamp {
        if self.style.fields == Fields::ALL { time } else { whole_second(time) }
    }

    fn origin<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let Self { parts, style: Style { fields, dialect, .. } } = self;
        if *fields == Fields::ALL {
            map.serialize_entry("tenancy", &Empty {})?;
        }
        if fields.has("created_by") {
            map.serialize_entry(dialect.key("created_by", "createdBy"), AUTHOR)?;
        }
        if fields.has("created_time") {
            map.serialize_entry(dialect.key("created_time", "createdTime"), &self.time(parts.created_time))?;
        }
        // Like today's API: what is asked for by its name and not there is null.
        if parts.deleted_time.is_some() || *fields != Fields::ALL {
            if fields.has("deleted_by") {
                map.serialize_entry(dialect.key("deleted_by", "deletedBy"), &parts.deleted_time.map(|_| AUTHOR))?;
            }
            if fields.has("deleted_time") {
                map.serialize_entry(
                    dialect.key("deleted_time", "deletedTime"),
                    &parts.deleted_time.map(|time| self.time(time)),
                )?;
            }
        }
        Ok(())
    }

    fn identity<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let Self { parts, style: Style { fields, dialect, kind, .. } } = self;
        let has_labels = !matches!(parts.labels, LabelsPart::Map(labels) if labels.is_empty());
        if fields.has("generation") {
            map.serialize_entry("generation", &parts.generation)?;
        }
        if fields.has("href") {
            map.serialize_entry("href", parts.href)?;
        }
        map.serialize_entry("id", parts.id)?;
        if fields.has("kind") {
            map.serialize_entry("kind", &kind.name)?;
        }
        if fields.has("labels") && (has_labels || *fields != Fields::ALL) {
            map.serialize_entry("labels", &has_labels.then_some(&parts.labels))?;
        }
        if dialect.has_phase() {
            map.serialize_entry("metadata", &Metadata { labels: &parts.labels, name: parts.name })?;
        }
        if fields.has("name") {
            map.serialize_entry("name", parts.name)?;
        }
        if let Some(owner) = parts.owner
            && fields.has("owner_references")
        {
            let key = if dialect.has_phase() { "ownerResource" } else { "owner_references" };
            map.serialize_entry(key, owner)?;
        }
        Ok(())
    }

    fn state<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let Self { parts, style: Style { fields, dialect, .. } } = self;
        if fields.has("spec") {
            map.serialize_entry("spec", parts.spec)?;
        }
        if fields.has("status") {
            match parts.status {
                StatusPart::Conditions(conditions, order) if *fields != Fields::ALL => {
                    let conditions: Vec<_> = conditions.iter().map(Condition::to_the_second).collect();
                    map.serialize_entry("status", &StatusPart::Conditions(&conditions, order))?;
                }
                ref status => map.serialize_entry("status", status)?,
            }
        }
        if fields.has("updated_by") {
            map.serialize_entry(dialect.key("updated_by", "updatedBy"), AUTHOR)?;
        }
        if fields.has("updated_time") {
            map.serialize_entry(dialect.key("updated_time", "updatedTime"), &self.time(parts.updated_time))?;
        }
        Ok(())
    }
}

/// Appends the end of a page.
pub(crate) fn write_page_end(out: &mut Vec<u8>, page: u64, size: usize, total: u64) {
    out.extend_from_slice(format!("],\"page\":{page},\"size\":{size},\"total\":{total}}}").as_bytes());
}
