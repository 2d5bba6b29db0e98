//! One line per event: JSON for machines, text for people.
//!
//! A field is rendered once, into the bytes that the line needs, and nothing is read back: a busy service writes tens
//! of thousands of lines a second.

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

/// A stack of causes or a page of HTML in one field makes a log useless.
const MAX_FIELD_BYTES: usize = 8 * 1024;

/// What every line begins with; a field that is called like one of them keeps its value under a name of its own.
const HEAD: [&str; 6] = ["timestamp", "level", "message", "component", "version", "hostname"];

/// Writes the lines.
pub(super) struct Lines<W> {
    format: LogFormat,
    component: String,
    version: String,
    hostname: String,
    writer: W,
}

impl<W> Lines<W> {
    pub(super) fn new(config: &LogConfig, hostname: String, writer: W) -> Self {
        let LogConfig { component, version, format, .. } = config.clone();
        Self { format, component, version, hostname, writer }
    }

    fn render(&self, event: &Event<'_>, fields: &Fields) -> Vec<u8> {
        let mut line = Vec::with_capacity(256 + fields.rendered.len());
        let timestamp = crate::clock::now();
        let level = event.metadata().level().as_str();
        let Self { component, version, hostname, .. } = self;
        let message = fields.message.as_deref().unwrap_or_default();
        // Writing into memory has no way to fail.
        match self.format {
            LogFormat::Json => {
                write!(line, r#"{{"timestamp":"{timestamp:.6}","level":""#).ok();
                line.extend(level.bytes().map(|letter| letter.to_ascii_lowercase()));
                line.push(b'"');
                let head: [&str; 4] = [message, component, version, hostname];
                for (name, value) in HEAD.iter().skip(2).zip(head) {
                    json_name(&mut line, "", name);
                    json(&mut line, value);
                }
                for (name, value) in fields.iter() {
                    json_name(&mut line, if HEAD.contains(&name) { "field_" } else { "" }, name);
                    line.extend_from_slice(value);
                }
                line.push(b'}');
            }
            LogFormat::Text => {
                write!(line, "{timestamp:.6} {level:<5} [{component}] [{version}] [{hostname}] ").ok();
                line.extend_from_slice(one_line(message).as_bytes());
                for (name, value) in fields.iter() {
                    write!(line, " {name}=").ok();
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
                fields.set("trace_id", context.trace_id().to_string().as_str());
                fields.set("span_id", context.span_id().to_string().as_str());
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
    names: Vec<(&'static str, Range<usize>)>,
    rendered: Vec<u8>,
}

impl Fields {
    fn new(format: LogFormat, message: Option<String>) -> Self {
        Self { format, message, names: Vec::with_capacity(8), rendered: Vec::with_capacity(256) }
    }

    fn iter(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        self.names.iter().map(|(name, at)| (*name, self.rendered.get(at.clone()).unwrap_or_default()))
    }

    fn extend(&mut self, other: &Self) {
        for (name, value) in other.iter() {
            let start = self.rendered.len();
            self.rendered.extend_from_slice(value);
            self.name(name, start);
        }
    }

    /// Names what was rendered since `start`; the last value of a name is the one that counts.
    fn name(&mut self, name: &'static str, start: usize) {
        let at = start..self.rendered.len();
        match self.names.iter_mut().find(|(earlier, _)| *earlier == name) {
            Some((_, earlier)) => *earlier = at,
            None => self.names.push((name, at)),
        }
    }

    fn set<V: Serialize + ?Sized>(&mut self, name: &'static str, value: &V) {
        let start = self.rendered.len();
        json(&mut self.rendered, value);
        self.name(name, start);
    }

    fn set_text(&mut self, field: &Field, text: &str) {
        let cut;
        let text = if text.len() > MAX_FIELD_BYTES {
            let end = text.floor_char_boundary(MAX_FIELD_BYTES);
            cut = format!("{}... ({} bytes)", text.get(..end).unwrap_or_default(), text.len());
            &cut
        } else {
            text
        };
        if field.name() == "message"
            && let Some(message) = &mut self.message
        {
            text.clone_into(message);
        } else if self.format == LogFormat::Text && plain(text) {
            let start = self.rendered.len();
            self.rendered.extend_from_slice(text.as_bytes());
            self.name(name(field), start);
        } else {
            self.set(name(field), text);
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set_text(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(name(field), &value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(name(field), &value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(name(field), &value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(name(field), &value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.set_text(field, &crate::error::chain(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set_text(field, &format!("{value:?}"));
    }
}

/// A field whose name is a keyword of the language.
fn name(field: &Field) -> &'static str {
    field.name().trim_start_matches("r#")
}

fn json<V: Serialize + ?Sized>(out: &mut Vec<u8>, value: &V) {
    // Writing a string or a number into memory has no way to fail.
    serde_json::to_writer(out, value).ok();
}

fn json_name(line: &mut Vec<u8>, prefix: &str, name: &str) {
    line.extend_from_slice(b",\"");
    line.extend_from_slice(prefix.as_bytes());
    line.extend_from_slice(name.as_bytes());
    line.extend_from_slice(b"\":");
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
