-- The rows of a run are derived from its log. Values (inputs, arguments, outputs) are stored only in rows; events
-- contain their hashes, which are compared when a value is read.
--
-- Checks use OR instead of IN: SQLite builds a temporary table of the values of an IN for each row that it checks.

CREATE TABLE steprail_meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE workflow_definitions (
    id         INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    version    INTEGER NOT NULL CHECK (version >= 1),
    hash       TEXT    NOT NULL CHECK (length(hash) = 64),
    spec_json  TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT    NOT NULL,
    deleted_at INTEGER,
    published  INTEGER NOT NULL CHECK (published IN (0, 1)),
    pins_json  TEXT    NOT NULL,
    UNIQUE (name, version)
) STRICT;

-- The newest versions that can be started, and those that are published as tools.
CREATE INDEX idx_definitions_current ON workflow_definitions (name, version) WHERE deleted_at IS NULL;
CREATE INDEX idx_definitions_published ON workflow_definitions (name, version)
    WHERE published = 1 AND deleted_at IS NULL;
-- Definitions that were part of a start request.
CREATE INDEX idx_definitions_hidden ON workflow_definitions (name, hash, version) WHERE deleted_at IS NOT NULL;

CREATE TRIGGER definitions_never_change
BEFORE UPDATE OF name, version, hash, spec_json ON workflow_definitions
BEGIN
    SELECT RAISE(ABORT, 'a version of a definition never changes');
END;

-- The id of a deleted run is not reused.
--
-- The row changes only with the status of the run. Its last step, sequence number and time of change follow from its
-- steps and its log: see the view `workflow_runs`.
CREATE TABLE runs (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id         TEXT    NOT NULL UNIQUE,
    definition_id  INTEGER NOT NULL REFERENCES workflow_definitions (id),
    name           TEXT    NOT NULL,
    status         TEXT    NOT NULL CHECK (
                       status = 'pending' OR status = 'running' OR status = 'paused' OR status = 'completed'
                       OR status = 'failed' OR status = 'cancelled' OR status = 'interrupted'),
    active         INTEGER NOT NULL CHECK (active IN (0, 1)),
    created_by     TEXT    NOT NULL,
    principal_json TEXT    NOT NULL,
    parent_id      INTEGER,
    parent_n       INTEGER,
    parent_attempt INTEGER,
    depth          INTEGER NOT NULL,
    rerun_json     TEXT,
    interruptible  INTEGER NOT NULL CHECK (interruptible IN (0, 1)),
    request_key    TEXT,
    input_json     TEXT,
    input_value    INTEGER,
    output_json    TEXT,
    output_value   INTEGER,
    error_json     TEXT,
    created_at     INTEGER NOT NULL,
    completed_at   INTEGER,
    stored_bytes   INTEGER NOT NULL CHECK (stored_bytes >= 0),
    CHECK ((completed_at IS NOT NULL) = (status = 'completed' OR status = 'failed' OR status = 'cancelled')),
    CHECK ((input_json IS NULL) <> (input_value IS NULL)),
    CHECK ((output_json IS NOT NULL OR output_value IS NOT NULL) = (status = 'completed')),
    CHECK (active = 0 OR status IN ('running', 'paused'))
) STRICT;

-- Recovery: the runs that the engine was working on.
CREATE INDEX idx_runs_active ON runs (id) WHERE active = 1;
-- Recovery: the runs that a restart interrupts.
CREATE INDEX idx_runs_interruptible ON runs (id) WHERE interruptible = 1 AND completed_at IS NULL;
-- Recovery after a restore: all runs that have not ended.
CREATE INDEX idx_runs_unfinished ON runs (id) WHERE completed_at IS NULL;
-- Lists by status, by user and by definition, newest first.
CREATE INDEX idx_runs_status ON runs (status, id);
CREATE INDEX idx_runs_creator ON runs (created_by, id);
CREATE INDEX idx_runs_creator_status ON runs (created_by, status, id);
CREATE INDEX idx_runs_name ON runs (name, id);
-- The end of a run cancels its child runs.
CREATE INDEX idx_runs_parent ON runs (parent_id, id) WHERE parent_id IS NOT NULL AND completed_at IS NULL;
-- Retention: runs that a rerun may still reuse, and definitions without runs.
CREATE INDEX idx_runs_rerun ON runs (rerun_json) WHERE rerun_json IS NOT NULL AND completed_at IS NULL;
CREATE INDEX idx_runs_definition ON runs (definition_id);
-- A start with the request key of an earlier start returns the earlier run.
CREATE UNIQUE INDEX idx_runs_request ON runs (created_by, request_key) WHERE request_key IS NOT NULL;
-- Retention: runs that ended long ago.
CREATE INDEX idx_runs_completed ON runs (completed_at) WHERE completed_at IS NOT NULL;

CREATE TRIGGER an_end_is_final
BEFORE UPDATE ON runs
WHEN OLD.completed_at IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'a run that ended stays as it is');
END;

CREATE TRIGGER inputs_never_change
BEFORE UPDATE OF run_id, definition_id, created_by, principal_json, input_json, input_value, created_at ON runs
BEGIN
    SELECT RAISE(ABORT, 'the start of a run never changes');
END;

-- Quotas: the unfinished runs of a user, without child runs.
CREATE INDEX idx_runs_of_user ON runs (created_by) WHERE completed_at IS NULL AND parent_id IS NULL;

-- Bytes of the ended runs and of the definitions of each user, so that a quota needs no scan of the history. The
-- bytes of unfinished runs are in `stored_bytes`.
CREATE TABLE workflow_usage (
    created_by TEXT    PRIMARY KEY,
    bytes      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER usage_of_ended_runs AFTER UPDATE OF stored_bytes ON runs WHEN NEW.completed_at IS NOT NULL
BEGIN
    INSERT INTO workflow_usage VALUES (NEW.created_by, NEW.stored_bytes)
    ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER usage_without_deleted_runs AFTER DELETE ON runs
BEGIN
    UPDATE workflow_usage SET bytes = bytes - OLD.stored_bytes WHERE created_by = OLD.created_by;
END;

CREATE TRIGGER usage_of_definitions AFTER INSERT ON workflow_definitions
BEGIN
    INSERT INTO workflow_usage VALUES (NEW.created_by, octet_length(NEW.spec_json))
    ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER usage_without_deleted_definitions AFTER DELETE ON workflow_definitions
BEGIN
    UPDATE workflow_usage SET bytes = bytes - octet_length(OLD.spec_json) WHERE created_by = OLD.created_by;
END;

-- Values that are too large for the rows that refer to them. They are written once.
CREATE TABLE run_values (
    id     INTEGER PRIMARY KEY,
    run_id INTEGER NOT NULL,
    json   TEXT    NOT NULL
) STRICT;

-- Retention: the values of a run.
CREATE INDEX idx_values_run ON run_values (run_id);

CREATE TRIGGER values_never_change BEFORE UPDATE ON run_values
BEGIN
    SELECT RAISE(ABORT, 'values never change');
END;

-- `step_id` is null where it equals `path`, and `ready_at` where it equals `started_at`.
CREATE TABLE step_runs (
    run_id       INTEGER NOT NULL,
    n            INTEGER NOT NULL CHECK (n >= 1),
    attempt      INTEGER NOT NULL CHECK (attempt >= 1),
    path         TEXT    NOT NULL,
    step_id      TEXT,
    kind         TEXT    NOT NULL,
    tool         TEXT,
    status       TEXT    NOT NULL CHECK (
                       status = 'running' OR status = 'done' OR status = 'pending' OR status = 'ready'
                       OR status = 'waiting' OR status = 'failed' OR status = 'skipped' OR status = 'cancelled'
                       OR status = 'uncertain'),
    input_json   TEXT,
    input_value  INTEGER,
    output_json  TEXT,
    output_value INTEGER,
    error_json   TEXT,
    ready_at     INTEGER,
    started_at   INTEGER,
    completed_at INTEGER,
    PRIMARY KEY (run_id, n, attempt),
    CHECK ((completed_at IS NOT NULL) =
           (status = 'done' OR status = 'failed' OR status = 'skipped' OR status = 'cancelled')),
    CHECK ((output_json IS NOT NULL OR output_value IS NOT NULL) = (status = 'done'))
) STRICT, WITHOUT ROWID;

-- Calls with unknown outcomes.
CREATE INDEX idx_steps_uncertain ON step_runs (run_id, n) WHERE status = 'uncertain';

-- The log: one row for each decision of a run, in the order of the commits and without gaps. `seq` is the number of
-- its first event in the run. `hash` covers the row and the hash of the row before. A purged row keeps the digest of
-- its contents in `hashes`, and its body is empty.
CREATE TABLE workflow_log (
    id     INTEGER PRIMARY KEY,
    run_id INTEGER NOT NULL,
    seq    INTEGER NOT NULL CHECK (seq >= 1),
    count  INTEGER NOT NULL CHECK (count >= 1),
    at     INTEGER NOT NULL,
    body   TEXT    NOT NULL,
    hashes BLOB    NOT NULL,
    hash   BLOB    NOT NULL CHECK (length(hash) = 32)
) STRICT;

-- The log of one run, in order.
CREATE UNIQUE INDEX idx_log_run ON workflow_log (run_id, seq);

CREATE TRIGGER events_never_change BEFORE UPDATE ON workflow_log
WHEN NEW.body <> '' OR length(NEW.hashes) <> 32 OR NEW.id <> OLD.id OR NEW.run_id <> OLD.run_id
     OR NEW.seq <> OLD.seq OR NEW.count <> OLD.count OR NEW.at <> OLD.at OR NEW.hash <> OLD.hash
     OR EXISTS (SELECT 1 FROM runs WHERE id = OLD.run_id)
BEGIN
    SELECT RAISE(ABORT, 'events never change');
END;

CREATE TRIGGER events_are_never_deleted BEFORE DELETE ON workflow_log
BEGIN
    SELECT RAISE(ABORT, 'events are never deleted');
END;

CREATE TABLE alarms (
    run_id INTEGER NOT NULL,
    n      INTEGER NOT NULL,
    kind   TEXT    NOT NULL CHECK (
               kind = 'timeout' OR kind = 'retry' OR kind = 'sleep' OR kind = 'grace' OR kind = 'escalate'),
    due_at INTEGER NOT NULL,
    held   INTEGER NOT NULL DEFAULT 0 CHECK (held IN (0, 1)),
    PRIMARY KEY (run_id, n, kind)
) STRICT, WITHOUT ROWID;

-- The timers that fire next.
CREATE INDEX idx_alarms_due ON alarms (due_at) WHERE held = 0;

CREATE TABLE schedules (
    name           TEXT    PRIMARY KEY,
    definition     TEXT    NOT NULL,
    cron           TEXT    NOT NULL,
    zone           TEXT    NOT NULL,
    input_json     TEXT    NOT NULL,
    principal_json TEXT    NOT NULL,
    overlap        TEXT    NOT NULL CHECK (overlap IN ('skip', 'allow')),
    due_at         INTEGER,
    last_at        INTEGER,
    last_run       TEXT,
    last_error     TEXT
) STRICT, WITHOUT ROWID;

-- The schedules that are due next.
CREATE INDEX idx_schedules_due ON schedules (due_at) WHERE due_at IS NOT NULL;

-- Sessions of MCP clients. They survive a restart of the daemon.
CREATE TABLE sessions (
    id         TEXT    PRIMARY KEY,
    user       TEXT    NOT NULL,
    state_json TEXT    NOT NULL,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Beyond the limit, the oldest sessions are deleted.
CREATE INDEX idx_sessions_age ON sessions (created_at);

-- Users, groups, tokens and browser sessions. They are few and are always read together, so their fields are JSON.
CREATE TABLE accounts (
    kind      TEXT NOT NULL CHECK (kind IN ('user', 'group', 'token', 'sign_in')),
    id        TEXT NOT NULL,
    body_json TEXT NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE workflow_waits (
    run_id INTEGER NOT NULL,
    n      INTEGER NOT NULL,
    event  TEXT    NOT NULL,
    PRIMARY KEY (run_id, n)
) STRICT, WITHOUT ROWID;

-- The steps that wait for a signal or an idempotency key.
CREATE INDEX idx_waits_event ON workflow_waits (event);

CREATE TABLE approvals (
    id           INTEGER PRIMARY KEY,
    run_id       INTEGER NOT NULL,
    user         TEXT    NOT NULL,
    n            INTEGER NOT NULL,
    path         TEXT    NOT NULL,
    status       TEXT    NOT NULL CHECK (
                       status = 'open' OR status = 'approved' OR status = 'denied' OR status = 'expired'
                       OR status = 'cancelled' OR status = 'superseded'),
    digest       TEXT    NOT NULL CHECK (length(digest) = 64),
    prompt       TEXT    NOT NULL,
    tool         TEXT,
    args_json    TEXT,
    args_value   INTEGER,
    notify_json  TEXT    NOT NULL,
    requested_at INTEGER NOT NULL,
    expires_at   INTEGER,
    decided_at   INTEGER,
    decided_by   TEXT,
    reason       TEXT,
    form_json    TEXT,
    CHECK ((decided_at IS NULL) = (status = 'open'))
) STRICT;

-- A step execution has at most one open approval.
CREATE UNIQUE INDEX idx_approvals_open ON approvals (run_id, n) WHERE status = 'open';
-- Lists of open approvals, of all users and of one user.
CREATE INDEX idx_approvals_inbox ON approvals (id) WHERE status = 'open';
CREATE INDEX idx_approvals_user ON approvals (user, id) WHERE status = 'open';
-- The last approval of a path.
CREATE INDEX idx_approvals_run ON approvals (run_id, path, id);

CREATE TRIGGER a_decision_is_final BEFORE UPDATE ON approvals
WHEN OLD.status <> 'open'
BEGIN
    SELECT RAISE(ABORT, 'a decision is final');
END;

CREATE TABLE idempotency_keys (
    scope       TEXT    NOT NULL,
    tool        TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    args_hash   TEXT    NOT NULL CHECK (length(args_hash) = 64),
    run_id      INTEGER NOT NULL,
    n           INTEGER NOT NULL,
    status      TEXT    NOT NULL CHECK (status IN ('claimed', 'done')),
    result_json TEXT,
    ttl_secs    INTEGER,
    expires_at  INTEGER,
    PRIMARY KEY (scope, tool, key),
    CHECK ((result_json IS NOT NULL) = (status = 'done'))
) STRICT, WITHOUT ROWID;

-- The key that a step holds.
CREATE INDEX idx_keys_holder ON idempotency_keys (run_id, n);
CREATE INDEX idx_keys_expired ON idempotency_keys (expires_at) WHERE expires_at IS NOT NULL;

CREATE TRIGGER keys_go_with_their_run AFTER DELETE ON runs
BEGIN
    DELETE FROM idempotency_keys WHERE scope = 'run:' || OLD.run_id;
END;

-- Views for queries with any SQLite client.

CREATE VIEW workflow_runs AS
SELECT r.id, r.run_id, r.definition_id, r.status, r.active, r.created_by, r.principal_json, r.parent_id, r.parent_n,
       r.parent_attempt, r.depth, r.rerun_json, r.interruptible, r.request_key,
       (SELECT s.path FROM step_runs s WHERE s.run_id = r.id ORDER BY s.n DESC, s.attempt DESC LIMIT 1) AS current_step,
       coalesce(r.input_json, (SELECT v.json FROM run_values v WHERE v.id = r.input_value)) AS input_json,
       coalesce(r.output_json, (SELECT v.json FROM run_values v WHERE v.id = r.output_value)) AS output_json,
       r.error_json, r.created_at,
       (SELECT l.at FROM workflow_log l WHERE l.run_id = r.id ORDER BY l.seq DESC LIMIT 1) AS updated_at,
       r.completed_at,
       (SELECT l.seq + l.count - 1 FROM workflow_log l WHERE l.run_id = r.id ORDER BY l.seq DESC LIMIT 1) AS seq,
       (SELECT l.hash FROM workflow_log l WHERE l.run_id = r.id ORDER BY l.seq DESC LIMIT 1) AS head_hash
FROM runs r;

CREATE VIEW workflow_step_runs AS
SELECT s.run_id, s.n, s.attempt, s.path, coalesce(s.step_id, s.path) AS step_id, s.kind, s.tool, s.status,
       coalesce(s.input_json, (SELECT v.json FROM run_values v WHERE v.id = s.input_value)) AS input_json,
       coalesce(s.output_json, (SELECT v.json FROM run_values v WHERE v.id = s.output_value)) AS output_json,
       s.error_json, coalesce(s.ready_at, s.started_at) AS ready_at, s.started_at, s.completed_at
FROM step_runs s;

-- Compatibility: one table of workflows and one of steps.
CREATE VIEW workflows AS
SELECT r.run_id AS id, r.updated_at, d.name, d.spec_json AS flow_json, r.input_json, r.status, r.created_by,
       r.completed_at, CASE WHEN r.status = 'cancelled' THEN r.completed_at END AS cancelled_at
FROM workflow_runs r JOIN workflow_definitions d ON d.id = r.definition_id;

CREATE VIEW workflow_steps AS
SELECT r.run_id || ':' || s.n || ':' || s.attempt AS id,
       coalesce(s.completed_at, s.started_at, s.ready_at) AS updated_at, r.run_id AS workflow_id,
       s.path AS name, s.tool, s.input_json AS args_json, s.output_json AS result_json, s.status, s.attempt,
       s.ready_at, s.started_at, s.completed_at
FROM workflow_step_runs s JOIN runs r ON r.id = s.run_id;
