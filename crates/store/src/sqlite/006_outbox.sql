-- Notifications. The commit that causes one writes it. `run_id` is null if no run causes it.
CREATE TABLE notifications (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id     INTEGER,
    path       TEXT,
    kind       TEXT    NOT NULL,
    to_json    TEXT    NOT NULL,
    body_json  TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    planned_at INTEGER
) STRICT;

CREATE INDEX idx_notifications_unplanned ON notifications (id) WHERE planned_at IS NULL;
CREATE INDEX idx_notifications_run ON notifications (run_id, id) WHERE run_id IS NOT NULL;
CREATE INDEX idx_notifications_step ON notifications (run_id, path, id) WHERE path IS NOT NULL;
CREATE INDEX idx_notifications_other ON notifications (created_at) WHERE run_id IS NULL;

-- The delivery of a notification to one recipient over one channel. `due_at` is the time of the next attempt to send it or
-- to take it back. Deliveries with the same recipient, channel, address and `digest_at` are sent as one message; it is null
-- for one that is sent alone.
CREATE TABLE deliveries (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    notification_id INTEGER NOT NULL,
    recipient       TEXT    NOT NULL,
    channel         TEXT    NOT NULL,
    address         TEXT    NOT NULL,
    status          TEXT    NOT NULL CHECK (
                        status = 'queued' OR status = 'sent' OR status = 'failed' OR status = 'read'
                        OR status = 'withdrawing' OR status = 'withdrawn'),
    attempts        INTEGER NOT NULL DEFAULT 0,
    due_at          INTEGER,
    digest_at       INTEGER,
    error           TEXT,
    receipt_json    TEXT,
    ended_at        INTEGER,
    CHECK ((due_at IS NOT NULL) = (status = 'queued' OR status = 'withdrawing'))
) STRICT;

CREATE INDEX idx_deliveries_due ON deliveries (due_at, id) WHERE due_at IS NOT NULL AND digest_at IS NULL;
CREATE INDEX idx_deliveries_due_digest ON deliveries (due_at, recipient, channel, address, digest_at)
    WHERE due_at IS NOT NULL AND digest_at IS NOT NULL;
CREATE INDEX idx_deliveries_digest ON deliveries (recipient, channel, address, digest_at, id)
    WHERE due_at IS NOT NULL AND digest_at IS NOT NULL;
CREATE INDEX idx_deliveries_notification ON deliveries (notification_id, id);
CREATE INDEX idx_deliveries_failed ON deliveries (id) WHERE status = 'failed';
