//! Lists: paging, order, search and projection; or, in the older dialects, everything at once.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use serde_json::json;

use super::json;
use crate::dialect::Selector;
use crate::problem::{FieldError, Problem};
use crate::search::{self, Field};
use crate::simulator::Simulator;
use crate::table::{Column, Query, Row};
use crate::view::{self, ConditionOrder, Fields, Style};

/// Rows rendered at once while everything is streamed.
const CHUNK: u64 = 1000;

/// Reads `page` and `size`.
pub(super) fn paging(query: &[(String, String)]) -> Result<(u64, u64), Problem> {
    let read = |field: &'static str, default: u64, max: u64| {
        let Some((_, text)) = query.iter().find(|(key, _)| key == field) else { return Ok(default) };
        let error = |constraint, message, value| Box::new(FieldError { constraint, field, message, value });
        match text.parse::<i64>() {
            Err(_) => Err(error("type", format!("{field} must be an integer"), json!(text))),
            Ok(value) if value < 1 => Err(error("min", format!("{field} must be at least 1"), json!(value))),
            Ok(value) if value.unsigned_abs() > max => {
                Err(error("max", format!("{field} must be at most {max}"), json!(value)))
            }
            Ok(value) => Ok(value.unsigned_abs()),
        }
    };
    match (read("page", 1, 100_000), read("size", 20, 100)) {
        (Ok(page), Ok(size)) => Ok((page, size)),
        (page, size) => {
            Err(Problem::query([page.err(), size.err()].into_iter().flatten().map(|error| *error).collect()))
        }
    }
}

fn order(text: &str) -> Result<Vec<Column>, Problem> {
    let column = |part: &str| {
        let mut words = part.split_whitespace();
        let name = words.next().unwrap_or_default();
        let descending = match words.next() {
            None => false,
            Some(word) if word.eq_ignore_ascii_case("asc") => false,
            Some(word) if word.eq_ignore_ascii_case("desc") => true,
            Some(word) => return Err(Problem::validation(format!("order: '{word}' is not a direction"))),
        };
        let field = match name {
            "id" => Field::Id,
            "name" => Field::Name,
            "kind" => Field::Kind,
            "generation" => Field::Generation,
            "created_time" => Field::CreatedTime,
            "updated_time" => Field::UpdatedTime,
            "deleted_time" => Field::DeletedTime,
            _ => return Err(Problem::validation(format!("order: '{name}' is not a field to order by"))),
        };
        Ok(Column { field, descending })
    };
    text.split(',').map(column).collect()
}

/// Answers a list.
pub(super) fn list(
    simulator: &Simulator,
    plural: String,
    owner: Option<String>,
    query: &[(String, String)],
) -> Result<Response, Problem> {
    let get = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    if let Some(owner) = &owner {
        let fleet = simulator.read();
        let parent = fleet.table(&plural).and_then(|table| table.kind.parent.clone()).unwrap_or_default();
        fleet.get(&parent, owner)?;
    }
    if simulator.read().dialect.has_phase() {
        let selector = Selector::parse(get("labels").unwrap_or_default())?;
        return Ok(everything(Everything { simulator: simulator.clone(), plural, owner, selector, after: None }));
    }
    let (page, size) = paging(query)?;
    let order = order(get("order").unwrap_or("created_time desc"))?;
    let plan = search::plan(search::parse(get("search").unwrap_or_default())?);
    let begins = page == 1 && plan.after.is_none();

    let fleet = simulator.read();
    let Some(table) = fleet.table(&plural) else { return Err(Problem::no_endpoint(&plural)) };
    let mut rows: Vec<Row<'_>> = Vec::with_capacity(100);
    let query = Query {
        skip: (page - 1) * size,
        take: size,
        order: &order,
        after: plan.after.as_deref(),
        rest: plan.rest.as_ref(),
        only_labels: plan.only_labels,
        owner: owner.as_deref(),
    };
    let total = table.list(&query, &mut |row| rows.push(row));
    // Like today's API, which looks at the first item: an empty page refuses no field.
    let fields = match get("fields") {
        Some(fields) if !fields.is_empty() && !rows.is_empty() => Fields::parse(fields, &table.kind)?,
        _ => Fields::ALL,
    };
    let order = if rows.len() == 1 { ConditionOrder::ByType } else { ConditionOrder::AsWritten };
    let style = Style { dialect: fleet.dialect, kind: &table.kind, fields, order };
    let mut out = Vec::with_capacity(64 + rows.len() * if fields == Fields::ALL { 2560 } else { 1536 });
    out.extend_from_slice(b"{\"items\":[");
    write_rows(&mut out, &rows, style);
    let mut written = rows.len();
    if begins {
        written += inject(&mut out, simulator, written);
    }
    view::write_page_end(&mut out, page, written, total);
    Ok(json(StatusCode::OK, out))
}

fn write_rows(out: &mut Vec<u8>, rows: &[Row<'_>], style: Style<'_>) {
    for (at, row) in rows.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        row.write(out, style);
    }
}

/// Appends the items that a test wants to be there.
fn inject(out: &mut Vec<u8>, simulator: &Simulator, before: usize) -> usize {
    let injected = simulator.faults().injected();
    for (at, item) in injected.iter().enumerate() {
        if before + at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(item.as_bytes());
    }
    injected.len()
}

/// A list in one piece, rendered as it is sent, so that its size needs no memory.
struct Everything {
    simulator: Simulator,
    plural: String,
    owner: Option<String>,
    selector: Selector,
    after: Option<String>,
}

impl Everything {
    /// Appends the next rows that the selector wants; returns false after the last.
    fn append(&mut self, out: &mut Vec<u8>, written: &mut usize) -> bool {
        let fleet = self.simulator.read();
        let Some(table) = fleet.table(&self.plural) else { return false };
        let style =
            Style { dialect: fleet.dialect, kind: &table.kind, fields: Fields::ALL, order: ConditionOrder::AsWritten };
        let order = [Column { field: Field::Id, descending: false }];
        let after = self.after.take();
        let query = Query {
            take: CHUNK,
            order: &order,
            after: after.as_deref(),
            owner: self.owner.as_deref(),
            ..Query::default()
        };
        let (mut seen, mut last) = (0, None);
        table.list(&query, &mut |row| {
            seen += 1;
            last = Some(row);
            if self.selector.matches(row.labels()) {
                if *written > 0 {
                    out.push(b',');
                }
                *written += 1;
                row.write(out, style);
            }
        });
        self.after = last.map(Row::id);
        seen == CHUNK
    }
}

fn everything(mut list: Everything) -> Response {
    let mut out = b"{\"items\":[".to_vec();
    let mut written = 0;
    let more = list.append(&mut out, &mut written);
    written += inject(&mut out, &list.simulator, written);
    if !more {
        out.extend_from_slice(b"]}");
        return json(StatusCode::OK, out);
    }
    let rest = stream::unfold(Some((list, written)), |state| async move {
        let (mut list, mut written) = state?;
        let mut out = Vec::new();
        let more = list.append(&mut out, &mut written);
        if !more {
            out.extend_from_slice(b"]}");
        }
        Some((Bytes::from(out), more.then_some((list, written))))
    });
    let first = stream::once(std::future::ready(Bytes::from(out)));
    let chunks = futures_util::StreamExt::chain(first, rest);
    json(StatusCode::OK, Body::from_stream(futures_util::StreamExt::map(chunks, Ok::<_, std::convert::Infallible>)))
}
