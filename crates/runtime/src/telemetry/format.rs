//! One line per event: JSON for machines, text for people.

use std::fmt;

use opentelemetry::trace::TraceContextExt;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormattedFields};
use tracing_subscriber::registry::{LookupSpan, Scope};

use super::{LogConfig, LogFormat};

/// A stack of causes or a page of HTML in one field makes a log useless.
const MAX_FIELD_BYTES: usize = 8 * 1024;

pub(super) struct Line {
    format: LogFormat,
    component: String,
    version: String,
    hostname: String,
}

impl Line {
    pub(super) fn new(config: &LogConfig, hostname: String) -> Self {
        Self { format: config.format, component: config.component.clone(), version: config.version.clone(), hostname }
    }
}

impl<S> FormatEvent<S, JsonFields> for Line
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, JsonFields>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Map::new();
        for span in ctx.event_scope().into_iter().flat_map(Scope::from_root) {
            let extensions = span.extensions();
            let text = extensions.get::<FormattedFields<JsonFields>>().map_or("", |fields| fields.fields.as_str());
            if let Ok(Value::Object(of_span)) = serde_json::from_str(text) {
                fields.extend(of_span);
            }
        }
        let mut own = Fields { message: String::new(), fields };
        event.record(&mut own);
        let Fields { message, mut fields } = own;
        let trace = opentelemetry::Context::current();
        let trace = trace.span().span_context().clone();
        if trace.is_valid() {
            fields.insert("trace_id".to_owned(), trace.trace_id().to_string().into());
            fields.insert("span_id".to_owned(), trace.span_id().to_string().into());
        }
        let timestamp = format!("{:.6}", crate::clock::now());
        let level = event.metadata().level();
        match self.format {
            LogFormat::Json => {
                let mut line = Map::new();
                let head = [
                    ("timestamp", timestamp),
                    ("level", level.as_str().to_ascii_lowercase()),
                    ("message", message),
                    ("component", self.component.clone()),
                    ("version", self.version.clone()),
                    ("hostname", self.hostname.clone()),
                ];
                line.extend(head.map(|(name, value)| (name.to_owned(), value.into())));
                for (name, value) in fields {
                    // A field that is called like one of the head's keeps its value under a name of its own.
                    let name = if line.contains_key(&name) { format!("field_{name}") } else { name };
                    line.insert(name, value);
                }
                writeln!(out, "{}", Value::Object(line))
            }
            LogFormat::Text => {
                let Self { component, version, hostname, .. } = self;
                let message = one_line(&message);
                write!(out, "{timestamp} {level:<5} [{component}] [{version}] [{hostname}] {message}")?;
                for (name, value) in &fields {
                    match value {
                        Value::String(text) if plain(text) => write!(out, " {name}={text}")?,
                        value => write!(out, " {name}={value}")?,
                    }
                }
                out.write_char('\n')
            }
        }
    }
}

/// Text that needs no quotes.
fn plain(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"' || c == '=')
}

/// No text from outside may begin a line of its own, or move the cursor of a terminal.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

struct Fields {
    message: String,
    fields: Map<String, Value>,
}

impl Fields {
    fn set(&mut self, field: &Field, value: Value) {
        self.fields.insert(field.name().trim_start_matches("r#").to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        let value = match value.char_indices().find(|(at, _)| *at >= MAX_FIELD_BYTES) {
            None => value.to_owned(),
            Some((at, _)) => format!("{}... ({} bytes)", &value[..at], value.len()),
        };
        if field.name() == "message" { self.message = value } else { self.set(field, value.into()) }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.record_str(field, &crate::error::chain(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
