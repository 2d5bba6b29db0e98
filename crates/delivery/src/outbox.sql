CREATE TABLE sinks (
    id            INTEGER PRIMARY KEY,
    name          TEXT NOT NULL UNIQUE,
    paused_reason TEXT,
    paused_at     INTEGER
) STRICT;

-- The frozen body, once for all sinks.
CREATE TABLE events (
    seq    INTEGER PRIMARY KEY,
    source TEXT NOT NULL,
    id     TEXT NOT NULL,
    body   BLOB NOT NULL,
    UNIQUE (source, id)
) STRICT;

-- Times are milliseconds since 1970. `head` is 1 on the delivery of its sink and subject that may go out. A `seq` is
-- never used twice, since workers remember it.
CREATE TABLE deliveries (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    event        INTEGER NOT NULL REFERENCES events (seq),
    sink         INTEGER NOT NULL REFERENCES sinks (id),
    subject      TEXT NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('pending', 'delivered', 'dead', 'discarded')),
    head         INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    queued       INTEGER NOT NULL,
    next_attempt INTEGER NOT NULL,
    changed      INTEGER NOT NULL,
    reason       TEXT,
    UNIQUE (event, sink)
) STRICT;

CREATE INDEX deliveries_ready ON deliveries (sink, next_attempt, seq) WHERE head = 1;
CREATE INDEX deliveries_queue ON deliveries (sink, subject, seq) WHERE state = 'pending';
CREATE INDEX deliveries_dead ON deliveries (sink) WHERE state = 'dead';
CREATE INDEX deliveries_settled ON deliveries (changed) WHERE state IN ('delivered', 'discarded');
