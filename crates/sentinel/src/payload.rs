//! What an event carries: `message_data`, compiled once, filled in from each resource.
//!
//! A leaf of `message_data` is one of four things, told apart by how it is written:
//!
//! - a bare path, `.a.b`, keeps the JSON type of what it finds (`generation` stays a number);
//! - text with `{{` in it is a Go template ([`crate::template`]) and yields a string;
//! - a number or a boolean is itself;
//! - any other text is an expression ([`crate::expression`]), where the decision is one and in the form of today's
//!   HyperFleet ([`Leaves::Mixed`]).
//!
//! Elsewhere any other text is refused: every example of the specification is a path or a template, so a forgotten dot
//! (`id` for `.id`) is far more likely than a constant, which is written `{{ "text" }}` (`'{{ "text" }}'` in YAML).
//! Segments of a bare path may contain hyphens (`.labels.cluster-type`); a key with dots or slashes needs
//! `{{ index .labels "example.com/key" }}`.
//!
//! Building never fails: what is absent or null is the empty string and reported in [`Built::missing`], a template that
//! fails leaves the empty string and its message in [`Built::errors`]. An expression that is null or fails leaves its
//! key out, as today, and is reported in [`Built::omitted`]: adapters read `generation` as a number and
//! `owner_references` as an object, and refuse the whole event where they find a text.
//!
//! Paths may be written for the resource of the specification or for that of today's API: see [`find`].

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::Value as Json;
use serde_json::value::{RawValue, to_raw_value};

use crate::expression::{self, Facts, Failure};
use crate::partial::Served;
use crate::template::{self, Data, Found, Template};

/// Of a text that is no path, so many characters are quoted.
const MAX_QUOTED: usize = 100;

/// How deep `message_data` may nest.
const MAX_DEPTH: usize = 32;

/// A compiled `message_data`.
#[derive(Debug)]
pub struct Payload {
    root: Node,
    /// The fields, if each is a field of the resource.
    copied: Option<Vec<Copied>>,
}

/// A field that is one of the resource.
#[derive(Debug)]
struct Copied {
    key: String,
    path: Path,
    /// Left out when there is nothing.
    optional: bool,
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
    /// The expressions that have no value; their keys are left out.
    pub omitted: Vec<Omitted>,
}

/// How the texts of `message_data` are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// Paths and templates.
    Paths,
    /// Paths and templates, and any other text is an expression.
    Mixed,
}

/// An expression that has no value for a resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Omitted {
    /// The field of the payload.
    pub field: Arc<str>,
    /// Why it failed; nothing when it is null.
    pub failure: Option<Failure>,
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
    /// An expression that can't be compiled.
    Expression(expression::Problem),
    /// Maps and lists nest too deep.
    TooDeep,
}

/// Enough of a text to recognise it.
fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::NotAMap => f.write_str("must be a map from field names to paths or templates"),
            Problem::Empty => f.write_str("has no value: give a path such as .id, or leave the key out"),
            Problem::Path(path) => write!(
                f,
                "{:?} is not a path: segments are letters, digits, _ and -; \
                 for any other key write {{{{ index .labels \"a.b/c\" }}}}",
                shortened(path)
            ),
            Problem::Literal(text) => {
                let text = &*shortened(text);
                let hint = text.strip_prefix("resource.").unwrap_or(text);
                write!(
                    f,
                    "{text:?} is neither a path nor a template: \
                     a path begins with a dot (.{hint}), a literal needs {{{{ {text:?} }}}}"
                )
            }
            Problem::Template(error) => write!(f, "template: {error}"),
            Problem::Expression(problem) => write!(f, "expression: {problem}"),
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
    Expression {
        field: Arc<str>,
        expression: expression::Field,
    },
}

#[derive(Debug, Clone)]
struct Path {
    field: Arc<str>,
    text: String,
    names: Vec<String>,
}

impl Payload {
    /// Compiles `message_data`; every problem of every field is reported.
    pub fn compile(message_data: &Json, leaves: Leaves) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let root = match message_data {
            Json::Object(map) if !map.is_empty() => compile(message_data, "", 0, leaves, &mut errors),
            _ => Err(vec![Problem::NotAMap]),
        };
        match root {
            Ok(root) if errors.is_empty() => Ok(Payload::new(root)),
            Ok(_) => Err(errors),
            Err(problems) => Err(of_field("message_data", problems).collect()),
        }
    }

    /// What is sent without `message_data`: id, kind, href, generation, and owner_references where there are any.
    pub fn default_payload() -> Self {
        let path = |name: &str| Path { field: name.into(), text: format!(".{name}"), names: vec![name.to_owned()] };
        let mut fields: Vec<_> =
            ["id", "kind", "href", "generation"].map(|name| (name.to_owned(), Node::Path(path(name)))).into();
        fields.push(("owner_references".to_owned(), Node::Optional(path("owner_references"))));
        Payload::new(Node::Map(fields))
    }

    fn new(root: Node) -> Self {
        let copied = match &root {
            Node::Map(entries) => entries.iter().map(|(key, node)| Copied::new(key, node)).collect(),
            _ => None,
        };
        Payload { root, copied }
    }

    /// What it is filled in by where each of its fields is a field of the resource.
    pub(crate) fn copier(&self) -> Option<Copier<'_>> {
        self.copied.as_deref().map(Copier)
    }

    /// Fills the payload in from a resource, which was decided on for `reason`.
    pub fn build(&self, facts: Facts<'_>, reason: &str) -> Built {
        let report = RefCell::new(Report::default());
        let data = to_raw_value(&Filled { node: &self.root, facts, reason, report: &report });
        let Report { missing, errors, omitted } = report.into_inner();
        // Serializing JSON values and strings into memory can't fail; with null it would still be an event.
        let data = data.unwrap_or_else(|_| RawValue::NULL.to_owned());
        Built { data, missing, errors, omitted }
    }

    /// Parts of expressions that can only fail, and without which their fields may have a value all the same.
    pub fn doubts(&self) -> Vec<(&str, &expression::Problem)> {
        let mut found = Vec::new();
        doubts(&self.root, &mut found);
        found
    }

    /// The top-level fields of a resource that the payload reads, in every shape that [`find`] knows; `None` when
    /// it reads the resource as a whole.
    pub fn top_level_fields(&self) -> Option<BTreeSet<String>> {
        let mut fields = BTreeSet::new();
        top_level(&self.root, &mut fields).then_some(fields)
    }
}

fn compile(
    value: &Json,
    field: &str,
    depth: usize,
    leaves: Leaves,
    errors: &mut Vec<FieldError>,
) -> Result<Node, Vec<Problem>> {
    if depth > MAX_DEPTH {
        return Err(vec![Problem::TooDeep]);
    }
    let mut child = |value: &Json, name: String| match compile(value, &name, depth + 1, leaves, errors) {
        Ok(node) => Some(node),
        Err(problems) => {
            errors.extend(of_field(&format!("message_data.{name}"), problems));
            None
        }
    };
    Ok(match value {
        Json::Null => return Err(vec![Problem::Empty]),
        Json::Bool(_) | Json::Number(_) => Node::Literal(value.clone()),
        Json::String(text) => leaf(text, field, leaves)?,
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

fn doubts<'p>(node: &'p Node, found: &mut Vec<(&'p str, &'p expression::Problem)>) {
    match node {
        Node::Map(entries) => entries.iter().for_each(|(_, node)| doubts(node, found)),
        Node::List(items) => items.iter().for_each(|node| doubts(node, found)),
        Node::Expression { field, expression } => {
            found.extend(expression.doubts().iter().map(|doubt| (&**field, doubt)));
        }
        Node::Literal(_) | Node::Path(_) | Node::Optional(_) | Node::Template { .. } => {}
    }
}

fn of_field(field: &str, problems: Vec<Problem>) -> impl Iterator<Item = FieldError> {
    problems.into_iter().map(move |problem| FieldError { field: field.to_owned(), problem })
}

fn leaf(text: &str, field: &str, leaves: Leaves) -> Result<Node, Vec<Problem>> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(vec![Problem::Empty]);
    }
    if text.contains("{{") {
        let template = Template::parse(text).map_err(|error| vec![Problem::Template(error)])?;
        return Ok(Node::Template { field: field.into(), template });
    }
    let Some(path) = trimmed.strip_prefix('.') else {
        return match leaves {
            Leaves::Paths => Err(vec![Problem::Literal(trimmed.to_owned())]),
            Leaves::Mixed => match expression::Field::compile(text) {
                Ok(expression) => Ok(Node::Expression { field: field.into(), expression }),
                Err(problems) => Err(problems.into_iter().map(Problem::Expression).collect()),
            },
        };
    };
    let names: Vec<String> = path.split('.').filter(|_| !path.is_empty()).map(str::to_owned).collect();
    let segment = |name: &String| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
    if !names.iter().all(segment) {
        return Err(vec![Problem::Path(trimmed.to_owned())]);
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
        Node::Expression { expression, .. } => expression.reads(fields),
    }
}

#[derive(Default)]
struct Report {
    missing: Vec<Missing>,
    errors: Vec<BuildError>,
    omitted: Vec<Omitted>,
}

impl Report {
    fn missing(&mut self, field: &Arc<str>, path: &str) {
        if !self.missing.iter().any(|m| m.field == *field && m.path == path) {
            self.missing.push(Missing { field: Arc::clone(field), path: path.to_owned() });
        }
    }
}

impl Copied {
    fn new(key: &str, node: &Node) -> Option<Self> {
        let (path, optional) = match node {
            Node::Path(path) => (path, false),
            Node::Optional(path) => (path, true),
            _ => return None,
        };
        // This one is found under another name, too.
        let found_as_written = matches!(path.names.as_slice(), [name] if name != "ownerResource");
        found_as_written.then(|| Self { key: key.to_owned(), path: path.clone(), optional })
    }
}

/// Fills in a payload whose fields are fields of the resource.
pub(crate) struct Copier<'a>(&'a [Copied]);

impl Copier<'_> {
    /// The same as [`Payload::build`], without reading what can be copied.
    pub(crate) fn build(&self, served: &Served<'_>) -> Built {
        let missing = RefCell::default();
        let data = to_raw_value(&Copies { copied: self.0, served, missing: &missing });
        // As of any payload.
        let data = data.unwrap_or_else(|_| RawValue::NULL.to_owned());
        Built { data, missing: missing.into_inner(), errors: Vec::new(), omitted: Vec::new() }
    }
}

/// Serializing it builds the event's data.
struct Copies<'a> {
    copied: &'a [Copied],
    served: &'a Served<'a>,
    missing: &'a RefCell<Vec<Missing>>,
}

impl Serialize for Copies<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for Copied { key, path, optional } in self.copied {
            match self.served.get(&path.names[0]) {
                Some(part) => map.serialize_entry(key, part)?,
                None if *optional => {}
                None => {
                    let missing = Missing { field: Arc::clone(&path.field), path: path.text.clone() };
                    self.missing.borrow_mut().push(missing);
                    map.serialize_entry(key, "")?;
                }
            }
        }
        map.end()
    }
}

/// A part of the payload over one resource; serializing it builds the event's data without copying the resource.
struct Filled<'a> {
    node: &'a Node,
    facts: Facts<'a>,
    reason: &'a str,
    report: &'a RefCell<Report>,
}

impl<'a> Filled<'a> {
    fn with(&self, node: &'a Node) -> Self {
        Filled { node, ..*self }
    }

    /// The value as it is sent; `None` where its key is left out.
    fn value(&self) -> Option<Box<RawValue>> {
        match self.node {
            Node::Optional(path) => match find(self.facts.resource, &path.names) {
                None | Some(Found::Json(Json::Null)) => None,
                Some(_) => to_raw_value(self).ok(),
            },
            Node::Expression { field, expression } => match expression.evaluate(self.facts, self.reason) {
                // A map whose keys JSON cannot have has no value either.
                Ok(Some(value)) => to_raw_value(&value).ok().or_else(|| self.omit(field, None)),
                Ok(None) => self.omit(field, None),
                Err(failure) => self.omit(field, Some(failure)),
            },
            // A map of which nothing is left says nothing, as today.
            Node::Map(entries) => to_raw_value(self).ok().filter(|raw| entries.is_empty() || raw.get() != "{}"),
            Node::List(_) | Node::Literal(_) | Node::Path(_) | Node::Template { .. } => to_raw_value(self).ok(),
        }
    }

    fn omit(&self, field: &Arc<str>, failure: Option<Failure>) -> Option<Box<RawValue>> {
        self.report.borrow_mut().omitted.push(Omitted { field: Arc::clone(field), failure });
        None
    }

    fn render(&self, field: &Arc<str>, template: &Template) -> String {
        let data = Data { root: self.facts.resource, alias: find_alias };
        let rendered = template.render(&data, &mut |path| self.report.borrow_mut().missing(field, path));
        rendered.unwrap_or_else(|source| {
            self.report.borrow_mut().errors.push(BuildError { field: Arc::clone(field), source });
            String::new()
        })
    }
}

impl Serialize for Filled<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.node {
            Node::Map(entries) => {
                let mut map = serializer.serialize_map(None)?;
                for (key, node) in entries {
                    let filled = self.with(node);
                    match node {
                        // Written at once: only what may be left out has to be known beforehand.
                        Node::Path(_) | Node::Literal(_) | Node::Template { .. } | Node::List(_) => {
                            map.serialize_entry(key, &filled)?;
                        }
                        Node::Optional(_) | Node::Expression { .. } | Node::Map(_) => {
                            if let Some(value) = filled.value() {
                                map.serialize_entry(key, &value)?;
                            }
                        }
                    }
                }
                map.end()
            }
            Node::List(items) => {
                let mut list = serializer.serialize_seq(None)?;
                for node in items {
                    if let Some(value) = self.with(node).value() {
                        list.serialize_element(&value)?;
                    }
                }
                list.end()
            }
            Node::Literal(value) => value.serialize(serializer),
            Node::Path(path) | Node::Optional(path) => match find(self.facts.resource, &path.names) {
                None | Some(Found::Json(Json::Null)) => {
                    self.report.borrow_mut().missing(&path.field, &path.text);
                    serializer.serialize_str("")
                }
                Some(Found::Json(value)) => value.serialize(serializer),
                Some(Found::Text(text)) => serializer.serialize_str(text),
            },
            Node::Template { field, template } => serializer.serialize_str(&self.render(field, template)),
            Node::Expression { .. } => self.value().serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests;
