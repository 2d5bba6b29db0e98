//! What keeps its order on the way to a sink, where that is not a subject.

use rusqlite::Connection;

use super::SinkId;
use crate::event::CloudEvent;
use crate::store::Error;

/// Gives what waits for a sink, or may be queued again, the order that it would have if it were appended now, by the
/// key that each event would be [`in_order_of`](CloudEvent::in_order_of); returns how much that changes. To be called
/// before anything is delivered.
pub fn reorder(connection: &Connection, sink: SinkId, key: impl Fn(&CloudEvent) -> String) -> Result<usize, Error> {
    let sql = "
        SELECT d.seq, d.subject, e.body FROM deliveries d JOIN events e ON e.seq = d.event
        WHERE d.sink = ?1 AND d.state <> 'delivered'";
    let mut waiting = connection.prepare(sql)?;
    let mut rows = waiting.query([sink.0])?;
    let mut changed = Vec::new();
    while let Some(row) = rows.next()? {
        // What is no event is found to be none when its turn comes.
        if let Ok(event) = CloudEvent::from_structured(row.get_ref(2)?.as_blob().unwrap_or_default()) {
            let key = key(&event);
            if row.get_ref(1)?.as_str().unwrap_or_default() != key {
                changed.push((row.get::<_, i64>(0)?, key));
            }
        }
    }
    let mut change = connection.prepare("UPDATE deliveries SET subject = ?2 WHERE seq = ?1")?;
    for (seq, key) in &changed {
        change.execute((seq, key))?;
    }
    if !changed.is_empty() {
        let sql = "
            UPDATE deliveries SET head = NOT EXISTS (
                SELECT 1 FROM deliveries earlier
                WHERE earlier.sink = deliveries.sink AND earlier.subject = deliveries.subject
                    AND earlier.state = 'pending' AND earlier.seq < deliveries.seq
            ) WHERE sink = ?1 AND state = 'pending'";
        connection.execute(sql, [sink.0])?;
    }
    Ok(changed.len())
}
