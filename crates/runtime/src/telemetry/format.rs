//! One line per event: JSON for machines, text for people.
//!
//! A field is rendered once, into the bytes that the line needs, and nothing is read back: a busy service writes tens
//! of thousands of lines a second.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::io::Write as _;
use std::ops::Range;

use opentelemetry::trace::TraceContextExt;
use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::{LookupSpan, Scope};

use super::{LogConfig, LogFormat};
use crate::printable::{misleads, one_line};

/// A stack of causes or a page of HTML in one field makes a log useless.
const MAX_FIELD_BYTES: usize = 8 * 1024;

/// What every JSON line begins with, and the name under which a field that is called like it keeps its value.
const HEAD: [(&str, &str); 6] = [
    ("timestamp", "field_timestamp"),
    ("level", "field_level"),
    ("message", "field_message"),
    ("component", "field_component"),
    ("version", "field_version"),
    ("hostname", "field_hostname"),
];

/// Writes the lines.
pub(super) struct Lines<W> {
    format: LogFormat,
    component: String,
    version: String,
    hostname: String,
    /// The same in JSON, as they stand in every line.
    origin: Vec<u8>,
    writer: W,
}

impl<W> Lines<W> {
    pub(super) fn new(config: &LogConfig, hostname: String, writer: W) -> Self {
        let LogConfig { component, version, format, .. } = config.clone();
        let mut origin = Vec::new();
        for (name, value) in [("component", &component), ("version", &version), ("hostname", &hostname)] {
            json_name(&mut origin, name);
            json(&mut origin, value);
        }
        Self { format, component, version, hostname, origin, writer }
    }

    fn render(&self, event: &Event<'_>, fields: &Fields) -> Vec<u8> {
        let mut line = Vec::with_capacity(384 + fields.rendered.len());
        let timestamp = crate::clock::now();
        let level = event.metadata().level().as_str();
        let Self { component, version, hostname, .. } = self;
        let message = fields.message.as_deref().unwrap_or_default();
        // Writing into memory has no way to fail.
        match self.format {
            LogFormat::Json => {
                write!(line, r#"{{"timestamp":"{timestamp:.6}","level":""#).ok();
                line.extend(level.bytes().map(|letter| letter.to_ascii_lowercase()));
                line.extend_from_slice(br#"","message":"#);
                json(&mut line, message);
                line.extend_from_slice(&self.origin);
                for (name, value) in fields.iter() {
                    json_name(&mut line, name);
                    line.extend_from_slice(value);
                }
                line.push(b'}');
            }
            LogFormat::Text => {
                write!(line, "{timestamp:.6} {level:<5} [{component}] [{version}] [{hostname}] ").ok();
                line.extend_from_slice(one_line(message).as_bytes());
                for (name, value) in fields.iter() {
                    line.push(b' ');
                    word(&mut line, name);
                    line.push(b'=');
                    line.extend_from_slice(value);
                }
            }
        }
        line.push(b'\n');
        line
    }
}

impl<S, W> Layer<S> for Lines<W>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    W: for<'w> MakeWriter<'w> + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        let mut fields = Fields::new(self.format, None);
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let mut fields = Fields::new(self.format, Some(String::new()));
        for span in ctx.event_scope(event).into_iter().flat_map(Scope::from_root) {
            if let Some(of_span) = span.extensions().get::<Fields>() {
                fields.extend(of_span);
            }
        }
        event.record(&mut fields);
        opentelemetry::Context::map_current(|trace| {
            let span = trace.span();
            let context = span.span_context();
            if context.is_valid() {
                fields.put_text("trace_id", &context.trace_id().to_string());
                fields.put_text("span_id", &context.span_id().to_string());
            }
        });
        // A standard output that nobody reads is no reason to stop, and there is nowhere else to say so.
        self.writer.make_writer_for(event.metadata()).write_all(&self.render(event, &fields)).ok();
    }
}

/// The fields of an event or a span, each as the bytes that stand in the line.
struct Fields {
    format: LogFormat,
    /// What an event says. A span says nothing: its `message` is a field like any other.
    message: Option<String>,
    values: Vec<(&'static str, Range<usize>)>,
    rendered: Vec<u8>,
}

impl Fields {
    fn new(format: LogFormat, message: Option<String>) -> Self {
        Self { format, message, values: Vec::with_capacity(8), rendered: Vec::with_capacity(256) }
    }

    fn iter(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        self.values.iter().map(|(name, at)| (*name, self.rendered.get(at.clone()).unwrap_or_default()))
    }

    fn extend(&mut self, other: &Self) {
        for (name, value) in other.iter() {
            self.put(name, |rendered| rendered.extend_from_slice(value));
        }
    }

    /// Renders a value; the last one of a name is the one that counts, in the place of the first.
    fn put(&mut self, name: &'static str, render: impl FnOnce(&mut Vec<u8>)) {
        let start = self.rendered.len();
        render(&mut self.rendered);
        let at = start..self.rendered.len();
        let Some((_, earlier)) = self.values.iter_mut().find(|(known, _)| *known == name) else {
            self.values.push((name, at));
            return;
        };
        // The bytes of the earlier one go: a span may live as long as the process, and record a field again and again.
        let gone = std::mem::replace(earlier, at);
        self.rendered.drain(gone.clone());
        for (_, at) in self.values.iter_mut().filter(|(_, at)| at.start >= gone.end) {
            *at = at.start - gone.len()..at.end - gone.len();
        }
    }

    fn put_text(&mut self, name: &'static str, text: &str) {
        let format = self.format;
        self.put(name, |rendered| match format {
            LogFormat::Json => json(rendered, text),
            LogFormat::Text => word(rendered, text),
        });
    }

    fn record_value<V: Serialize>(&mut self, field: &Field, value: V) {
        self.put(self.name(field), |rendered| json(rendered, &value));
    }

    /// What a field is called in the line.
    fn name(&self, field: &Field) -> &'static str {
        let taken = HEAD.iter().find(|(head, _)| self.format == LogFormat::Json && *head == field.name());
        taken.map_or_else(|| field.name(), |(_, name)| name)
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        let text = cut(value);
        match &mut self.message {
            Some(message) if field.name() == "message" => *message = text.into_owned(),
            _ => self.put_text(self.name(field), &text),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.record_value(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.record_value(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.record_value(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.record_value(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.record_str(field, &crate::error::chain(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_FIELD_BYTES {
        return text.into();
    }
    let kept = text.get(..text.floor_char_boundary(MAX_FIELD_BYTES)).unwrap_or_default();
    format!("{kept}... ({} bytes)", text.len()).into()
}

fn json<V: Serialize + ?Sized>(out: &mut Vec<u8>, value: &V) {
    // Writing a string or a number into memory has no way to fail.
    serde_json::to_writer(out, value).ok();
}

fn json_name(line: &mut Vec<u8>, name: &str) {
    line.push(b',');
    json(line, name);
    line.push(b':');
}

/// A name or a value of a text line, in quotes where it could be taken for something else.
fn word(out: &mut Vec<u8>, text: &str) {
    if text.is_empty() || text.contains(|c: char| c.is_whitespace() || misleads(c) || c == '"' || c == '=') {
        // Writing into memory has no way to fail.
        write!(out, "{text:?}").ok();
    } else {
        out.extend_from_slice(text.as_bytes());
    }
}
