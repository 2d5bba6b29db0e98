-- What is watched: a kind in a namespace, or in all of them (''). `listed` says whether it was ever listed to the end, and
-- `last_reconciled` when it was last compared with a whole list.
CREATE TABLE scopes (
    id        INTEGER PRIMARY KEY,
    api_group TEXT NOT NULL,
    resource  TEXT NOT NULL,
    namespace TEXT NOT NULL,
    kind      TEXT NOT NULL,
    listed    INTEGER NOT NULL DEFAULT 0,
    last_reconciled INTEGER,
    UNIQUE (api_group, resource, namespace)
) STRICT;

-- One span in which one object has the annotation. Times are milliseconds since 1970; order is by `seq`, not by time.
CREATE TABLE episodes (
    seq              INTEGER PRIMARY KEY AUTOINCREMENT,
    id               TEXT NOT NULL UNIQUE,
    scope            INTEGER NOT NULL REFERENCES scopes (id),
    uid              TEXT NOT NULL,
    episode          INTEGER NOT NULL,
    namespace        TEXT NOT NULL,
    name             TEXT NOT NULL,
    annotation_value TEXT NOT NULL,
    state            TEXT NOT NULL CHECK (state IN ('exists', 'deleted')),
    detection_source TEXT NOT NULL,
    created_at       INTEGER NOT NULL,
    deleted_at       INTEGER,
    labels           TEXT NOT NULL,
    annotations      TEXT NOT NULL,
    resource_version TEXT NOT NULL,
    created_event    INTEGER,
    deleted_event    INTEGER,
    created_sent_at  INTEGER,
    deleted_sent_at  INTEGER,
    UNIQUE (scope, uid, episode)
) STRICT;

CREATE UNIQUE INDEX episodes_open ON episodes (scope, uid) WHERE state = 'exists';
CREATE INDEX episodes_over ON episodes (deleted_at) WHERE state = 'deleted';

-- That an event was delivered is noted with the episode in the transaction that notes the delivery. An event's id is that
-- of its episode and what happened.
CREATE TRIGGER episodes_delivered AFTER UPDATE OF state ON deliveries WHEN NEW.state = 'delivered'
BEGIN
    UPDATE episodes SET
        created_sent_at = CASE WHEN created_event = NEW.event THEN NEW.changed ELSE created_sent_at END,
        deleted_sent_at = CASE WHEN deleted_event = NEW.event THEN NEW.changed ELSE deleted_sent_at END
    WHERE id = (SELECT substr(id, 1, length(id) - 8) FROM events WHERE seq = NEW.event);
END;

-- The same in the columns and words of the original, for those who look into the file.
CREATE VIEW managed_objects AS
SELECT
    o.id AS id,
    o.uid AS resource_uid,
    s.kind AS resource_type,
    o.name AS resource_name,
    o.namespace AS resource_namespace,
    o.annotation_value AS annotation_value,
    o.state AS cluster_state,
    o.detection_source AS detection_source,
    strftime('%Y-%m-%dT%H:%M:%SZ', o.created_at / 1000, 'unixepoch') AS created_at,
    strftime('%Y-%m-%dT%H:%M:%SZ', o.deleted_at / 1000, 'unixepoch') AS deleted_at,
    strftime('%Y-%m-%dT%H:%M:%SZ', s.last_reconciled / 1000, 'unixepoch') AS last_reconciled,
    o.created_sent_at IS NOT NULL AS notified_created,
    o.deleted_sent_at IS NOT NULL AS notified_deleted,
    coalesce(max(d.state = 'dead'), 0) AS notification_failed,
    coalesce(max(CASE WHEN d.state = 'dead' AND d.reason LIKE '%status ___' THEN substr(d.reason, -3) END), 0) + 0
        AS notification_failed_code,
    strftime('%Y-%m-%dT%H:%M:%SZ', o.created_sent_at / 1000, 'unixepoch') AS created_notification_sent_at,
    strftime('%Y-%m-%dT%H:%M:%SZ', o.deleted_sent_at / 1000, 'unixepoch') AS deleted_notification_sent_at,
    coalesce(sum(d.attempts), 0) AS notification_attempts,
    strftime('%Y-%m-%dT%H:%M:%SZ', max(CASE WHEN d.attempts > 0 THEN d.changed END) / 1000, 'unixepoch')
        AS last_notification_attempt,
    o.labels AS labels,
    o.annotations AS annotations,
    o.resource_version AS resource_version,
    '' AS full_metadata
FROM episodes o
JOIN scopes s ON s.id = o.scope
LEFT JOIN deliveries d ON d.event IN (o.created_event, o.deleted_event)
GROUP BY o.seq;
