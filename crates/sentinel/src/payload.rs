//! What an event carries: `message_data`, compiled once, filled in from each resource.
//!
//! A leaf of `message_data` is one of three things, told apart by how it is written:
//!
//! - a bare path, `.a.b`, keeps the JSON type of what it finds (`generation` stays a number);
//! - text with `{{` in it is a Go template ([`crate::template`]) and yields a string;
//! - a number or a boolean is itself.
//!
//! Any other text is refused: every example of the specification is a path or a template, so a forgotten dot
//! (`id` for `.id`) is far more likely than a constant, which is written `{{ "text" }}` (`'{{ "text" }}'` in YAML).
//! Segments of a bare path may contain hyphens (`.labels.cluster-type`); a key with dots or slashes needs
//! `{{ index .labels "example.com/key" }}`.
//!
//! Building never fails: what is absent or null is the empty string and reported in [`Built::missing`], a template that
//! fails leaves the empty string and its message in [`Built::errors`].
//!
//! Paths may be written for the resource of the specification or for that of today's API: see [`find`].

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::Value as Json;
use serde_json::value::{RawValue, to_raw_value};

use crate::template::{self, Data, Found, Template};

/// How deep `message_data` may nest.
const MAX_DEPTH: usize = 32;

/// A compiled `message_data`.
#[derive(Debug)]
pub struct Payload {
    root: Node,
}

/// What a resource became, and what was wrong on the way.
#[derive(Debug)]
pub struct Built {
    /// The event's data: a JSON object, keys as configured and in that order.
    pub data: Box<RawValue>,
    /// What was absent or null and is the empty string, each once.
    pub missing: Vec<Missing>,
    /// The templates that failed; their fields are the empty string.
    pub errors: Vec<BuildError>,
}

/// A path that a field reads and the resource does not have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Missing {
    /// The field of the payload, such as `cluster.region`.
    pub field: Arc<str>,
    /// The path as written, such as `.metadata.labels.region`.
    pub path: String,
}

/// A template that failed on a resource.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("build field {field} of the payload")]
pub struct BuildError {
    /// The field of the payload.
    pub field: Arc<str>,
    /// Where in its template, and why.
    #[source]
    pub source: template::RenderError,
}

/// A field of `message_data` that can't be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    /// The field, such as `message_data.cluster.region`.
    pub field: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a field of `message_data`.
#[derive(Clone, Debug, PartialEq)]
pub enum Problem {
    /// `message_data` is not a map of fields.
    NotAMap,
    /// There is no value, or only blanks.
    Empty,
    /// A path with characters that a bare path can't have.
    Path(String),
    /// Text that is neither a path nor a template.
    Literal(String),
    /// A template that can't be compiled.
    Template(template::Error),
    /// Maps and lists nest too deep.
    TooDeep,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::NotAMap => f.write_str("must be a map from field names to paths or templates"),
            Problem::Empty => f.write_str("has no value: give a path such as .id, or leave the key out"),
            Problem::Path(path) => write!(
                f,
                "{path:?} is not a path: segments are letters, digits, _ and -; \
                 for any other key write {{{{ index .labels \"a.b/c\" }}}}"
            ),
            Problem::Literal(text) => {
                let hint = text.strip_prefix("resource.").unwrap_or(text);
                write!(
                    f,
                    "{text:?} is neither a path nor a template: \
                     a path begins with a dot (.{hint}), a literal needs {{{{ {text:?} }}}}"
                )
            }
            Problem::Template(error) => write!(f, "template: {error}"),
            Problem::TooDeep => write!(f, "nests deeper than {MAX_DEPTH}"),
        }
    }
}

#[derive(Debug)]
enum Node {
    Map(Vec<(String, Node)>),
    List(Vec<Node>),
    Literal(Json),
    Path(Path),
    /// A path whose key is left out when there is nothing.
    Optional(Path),
    Template {
        field: Arc<str>,
        template: Template,
    },
}

#[derive(Debug)]
struct Path {
    field: Arc<str>,
    text: String,
    names: Vec<String>,
}

impl Payload {
    /// Compiles `message_data`; every problem of every field is reported.
    pub fn compile(message_data: &Json) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let root = match message_data {
            Json::Object(map) if !map.is_empty() => compile(message_data, "", 0, &mut errors),
            _ => Err(Problem::NotAMap),
        };
        match root {
            Ok(root) if errors.is_empty() => Ok(Payload { root }),
            Ok(_) => Err(errors),
            Err(problem) => Err(vec![FieldError { field: "message_data".to_owned(), problem }]),
        }
    }

    /// What is sent without `message_data`: id, kind, href, generation, and owner_references where there are any.
    pub fn default_payload() -> Self {
        let path = |name: &str| Path { field: name.into(), text: format!(".{name}"), names: vec![name.to_owned()] };
        let mut fields: Vec<_> =
            ["id", "kind", "href", "generation"].map(|name| (name.to_owned(), Node::Path(path(name)))).into();
        fields.push(("owner_references".to_owned(), Node::Optional(path("owner_references"))));
        Payload { root: Node::Map(fields) }
    }

    /// Fills the payload in from `resource`.
    pub fn build(&self, resource: &Json) -> Built {
        let report = RefCell::new(Report::default());
        let data = to_raw_value(&Filled { node: &self.root, resource, report: &report });
        let Report { missing, errors } = report.into_inner();
        // Serializing JSON values and strings into memory can't fail; with null it would still be an event.
        let data = data.unwrap_or_else(|_| RawValue::NULL.to_owned());
        Built { data, missing, errors }
    }

    /// The top-level fields of a resource that the payload reads, in every shape that [`find`] knows; `None` when
    /// it reads the resource as a whole.
    pub fn top_level_fields(&self) -> Option<BTreeSet<String>> {
        let mut fields = BTreeSet::new();
        top_level(&self.root, &mut fields).then_some(fields)
    }
}

fn compile(value: &Json, field: &str, depth: usize, errors: &mut Vec<FieldError>) -> Result<Node, Problem> {
    if depth > MAX_DEPTH {
        return Err(Problem::TooDeep);
    }
    let mut child = |value: &Json, name: String| match compile(value, &name, depth + 1, errors) {
        Ok(node) => Some(node),
        Err(problem) => {
            errors.push(FieldError { field: format!("message_data.{name}"), problem });
            None
        }
    };
    Ok(match value {
        Json::Null => return Err(Problem::Empty),
        Json::Bool(_) | Json::Number(_) => Node::Literal(value.clone()),
        Json::String(text) => leaf(text, field)?,
        Json::Array(items) => {
            Node::List(items.iter().enumerate().filter_map(|(i, item)| child(item, format!("{field}[{i}]"))).collect())
        }
        Json::Object(map) => {
            let prefix = if field.is_empty() { String::new() } else { format!("{field}.") };
            let entry = |(key, value): (&String, &Json)| Some((key.clone(), child(value, format!("{prefix}{key}"))?));
            Node::Map(map.iter().filter_map(entry).collect())
        }
    })
}

fn leaf(text: &str, field: &str) -> Result<Node, Problem> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(Problem::Empty);
    }
    if text.contains("{{") {
        let template = Template::parse(text).map_err(Problem::Template)?;
        return Ok(Node::Template { field: field.into(), template });
    }
    let Some(path) = trimmed.strip_prefix('.') else { return Err(Problem::Literal(trimmed.to_owned())) };
    let names: Vec<String> = path.split('.').filter(|_| !path.is_empty()).map(str::to_owned).collect();
    let segment = |name: &String| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
    if !names.iter().all(segment) {
        return Err(Problem::Path(trimmed.to_owned()));
    }
    Ok(Node::Path(Path { field: field.into(), text: trimmed.to_owned(), names }))
}

/// Finds `path` in a resource: as written, else where the resource's other shape has it.
///
/// | written (the specification) | found (today's API) |
/// |---|---|
/// | `.metadata.labels` | `.labels` |
/// | `.metadata.name` | `.name` |
/// | `.ownerResource` | `.owner_references` |
/// | `.status.phase` | `Ready` or `NotReady`, from the condition `Reconciled`, else from `Ready` |
pub fn find<'a>(resource: &'a Json, path: &[String]) -> Option<Found<'a>> {
    walk(resource, path).map(Found::Json).or_else(|| find_alias(resource, path))
}

fn walk<'a>(resource: &'a Json, path: &[String]) -> Option<&'a Json> {
    path.iter().try_fold(resource, |value, name| value.as_object()?.get(name))
}

fn find_alias<'a>(resource: &'a Json, path: &[String]) -> Option<Found<'a>> {
    let (head, rest) = path.split_first()?;
    match (head.as_str(), rest) {
        ("metadata", [name, ..]) if name == "labels" || name == "name" => walk(resource, rest).map(Found::Json),
        ("ownerResource", rest) => walk(resource.get("owner_references")?, rest).map(Found::Json),
        ("status", [phase]) if phase == "phase" => {
            let conditions = resource.get("status")?.get("conditions")?.as_array()?;
            let of_type = |name: &str| conditions.iter().find(|c| c.get("type").is_some_and(|t| t == name));
            let condition = of_type("Reconciled").or_else(|| of_type("Ready"))?;
            let ready = condition.get("status").is_some_and(|status| status == "True");
            Some(Found::Text(if ready { "Ready" } else { "NotReady" }))
        }
        _ => None,
    }
}

/// Adds the top-level fields under which `path` may be found.
fn add_top_level(path: &[String], fields: &mut BTreeSet<String>) {
    fields.extend(path.first().cloned());
    match path {
        [head, name, ..] if head == "metadata" && (name == "labels" || name == "name") => {
            fields.insert(name.clone());
        }
        [head, ..] if head == "ownerResource" => {
            fields.insert("owner_references".to_owned());
        }
        _ => {}
    }
}

/// Adds what `node` reads; `false` when it reads the resource as a whole.
fn top_level(node: &Node, fields: &mut BTreeSet<String>) -> bool {
    match node {
        Node::Map(entries) => entries.iter().all(|(_, node)| top_level(node, fields)),
        Node::List(items) => items.iter().all(|node| top_level(node, fields)),
        Node::Literal(_) => true,
        Node::Path(path) | Node::Optional(path) => {
            add_top_level(&path.names, fields);
            !path.names.is_empty()
        }
        Node::Template { template, .. } => template.paths(&mut |path| add_top_level(path, fields)),
    }
}

#[derive(Default)]
struct Report {
    missing: Vec<Missing>,
    errors: Vec<BuildError>,
}

impl Report {
    fn missing(&mut self, field: &Arc<str>, path: &str) {
        if !self.missing.iter().any(|m| m.field == *field && m.path == path) {
            self.missing.push(Missing { field: Arc::clone(field), path: path.to_owned() });
        }
    }
}

/// A part of the payload over one resource; serializing it builds the event's data without copying the resource.
struct Filled<'a> {
    node: &'a Node,
    resource: &'a Json,
    report: &'a RefCell<Report>,
}

impl Filled<'_> {
    fn is_absent(&self) -> bool {
        let Node::Optional(path) = self.node else { return false };
        matches!(find(self.resource, &path.names), None | Some(Found::Json(Json::Null)))
    }

    fn render(&self, field: &Arc<str>, template: &Template) -> String {
        let data = Data { root: self.resource, alias: find_alias };
        let rendered = template.render(&data, &mut |path| self.report.borrow_mut().missing(field, path));
        rendered.unwrap_or_else(|source| {
            self.report.borrow_mut().errors.push(BuildError { field: Arc::clone(field), source });
            String::new()
        })
    }
}

impl Serialize for Filled<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let with = |node| Filled { node, ..*self };
        match self.node {
            Node::Map(entries) => {
                let mut map = serializer.serialize_map(None)?;
                for (key, node) in entries {
                    let value = with(node);
                    if !value.is_absent() {
                        map.serialize_entry(key, &value)?;
                    }
                }
                map.end()
            }
            Node::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for node in items {
                    list.serialize_element(&with(node))?;
                }
                list.end()
            }
            Node::Literal(value) => value.serialize(serializer),
            Node::Path(path) | Node::Optional(path) => match find(self.resource, &path.names) {
                None | Some(Found::Json(Json::Null)) => {
                    self.report.borrow_mut().missing(&path.field, &path.text);
                    serializer.serialize_str("")
                }
                Some(Found::Json(value)) => value.serialize(serializer),
                Some(Found::Text(text)) => serializer.serialize_str(text),
            },
            Node::Template { field, template } => serializer.serialize_str(&self.render(field, template)),
        }
    }
}

#[cfg(test)]
mod tests;
