//! What keeps its order on the way to a sink, besides what has one subject.

use rusqlite::Connection;

use super::SinkId;
use crate::event::CloudEvent;
use crate::store::Error;

/// What keeps its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Everything.
    All,
    /// What is about one subject of one source.
    Subject,
}

/// The key of [`Order::All`]; no source begins so.
const ALL: &str = "*";

impl Order {
    /// The key for [`CloudEvent::in_order_of`].
    pub fn key_of(self, event: &CloudEvent) -> String {
        let attributes = event.attributes();
        match self {
            Self::All => ALL.to_owned(),
            Self::Subject => format!("{}/{}", attributes.source, attributes.subject.as_deref().unwrap_or_default()),
        }
    }
}

/// Gives what waits for a sink the order that it would have if it were appended now; returns how much that is. To be called
/// before anything is delivered.
pub fn reorder(connection: &Connection, sink: SinkId, order: Order) -> Result<usize, Error> {
    let key = match order {
        Order::All => "?2",
        Order::Subject => {
            "(SELECT (e.body ->> '$.source') || '/' || coalesce(e.body ->> '$.subject', '') FROM events e WHERE e.seq = event)"
        }
    };
    let sql =
        format!("UPDATE deliveries SET subject = {key} WHERE sink = ?1 AND state = 'pending' AND (subject = ?2) != ?3");
    let changed = connection.prepare(&sql)?.execute((sink.0, ALL, order == Order::All))?;
    if changed > 0 {
        let sql = "
            UPDATE deliveries SET head = NOT EXISTS (
                SELECT 1 FROM deliveries earlier
                WHERE earlier.sink = deliveries.sink AND earlier.subject = deliveries.subject
                    AND earlier.state = 'pending' AND earlier.seq < deliveries.seq
            ) WHERE sink = ?1 AND state = 'pending'";
        connection.execute(sql, [sink.0])?;
    }
    Ok(changed)
}
