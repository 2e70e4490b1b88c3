-- Every row of a run follows from the run's events. Values (inputs, arguments, outputs) are in the rows alone;
-- the events have their hashes, and what is read back is compared with them.
--
-- Checks say OR where IN would be shorter: SQLite builds a table of the words of an IN for each row that it checks.

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

-- What agents are offered as tools.
CREATE INDEX idx_definitions_published ON workflow_definitions (name) WHERE published = 1;

CREATE TRIGGER definitions_never_change
BEFORE UPDATE OF name, version, hash, spec_json ON workflow_definitions
BEGIN
    SELECT RAISE(ABORT, 'a version of a definition never changes');
END;

-- The number of a run that was deleted is not given to another one.
CREATE TABLE workflow_runs (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id         TEXT    NOT NULL UNIQUE,
    definition_id  INTEGER NOT NULL REFERENCES workflow_definitions (id),
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
    current_step   TEXT,
    output_json    TEXT,
    error_json     TEXT,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    completed_at   INTEGER,
    seq            INTEGER NOT NULL CHECK (seq >= 0),
    head_hash      BLOB    NOT NULL CHECK (length(head_hash) = 32),
    stored_bytes   INTEGER NOT NULL DEFAULT 0 CHECK (stored_bytes >= 0),
    CHECK ((completed_at IS NOT NULL) = (status = 'completed' OR status = 'failed' OR status = 'cancelled')),
    CHECK ((output_json IS NOT NULL) = (status = 'completed')),
    CHECK (active = 0 OR status IN ('running', 'paused'))
) STRICT;

-- Recovery asks which runs the engine was at work with.
CREATE INDEX idx_runs_active ON workflow_runs (id) WHERE active = 1;
-- A restart interrupts those whose definitions ask for it.
CREATE INDEX idx_runs_interruptible ON workflow_runs (id) WHERE interruptible = 1 AND completed_at IS NULL;
-- Lists by status, newest first.
CREATE INDEX idx_runs_status ON workflow_runs (status, id);
-- A cancelled run cancels the runs that it waits for.
CREATE INDEX idx_runs_parent ON workflow_runs (parent_id) WHERE parent_id IS NOT NULL;
-- Retention keeps what a rerun under way may still take over.
CREATE INDEX idx_runs_rerun ON workflow_runs (rerun_json) WHERE rerun_json IS NOT NULL AND completed_at IS NULL;
-- A repeated start gives the run of the first.
CREATE UNIQUE INDEX idx_runs_request ON workflow_runs (created_by, request_key) WHERE request_key IS NOT NULL;
-- Retention asks what ended long ago.
CREATE INDEX idx_runs_completed ON workflow_runs (completed_at) WHERE completed_at IS NOT NULL;

-- Lists of one user's runs and of one definition's, newest first.
CREATE INDEX idx_runs_creator ON workflow_runs (created_by);
CREATE INDEX idx_runs_definition ON workflow_runs (definition_id);

-- What an answer that comes after the end adds to the log moves the head of the log, and nothing else.
CREATE TRIGGER an_end_is_final
BEFORE UPDATE OF run_id, definition_id, status, active, created_by, principal_json, output_json, error_json, created_at,
                 completed_at ON workflow_runs
WHEN OLD.completed_at IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'a run that ended stays as it is');
END;

-- A quota asks for the unfinished runs of a user, without those that another run waits for.
CREATE INDEX idx_runs_unfinished ON workflow_runs (created_by) WHERE completed_at IS NULL AND parent_id IS NULL;

-- Bytes of the runs that ended and of the definitions of each user, so that a quota never has to add up a history.
-- Unfinished runs have theirs in `stored_bytes`.
CREATE TABLE workflow_usage (
    created_by TEXT    PRIMARY KEY,
    bytes      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER usage_of_ended_runs AFTER UPDATE OF stored_bytes ON workflow_runs WHEN NEW.completed_at IS NOT NULL
BEGIN
    INSERT INTO workflow_usage VALUES (NEW.created_by, NEW.stored_bytes
            - CASE WHEN OLD.completed_at IS NULL THEN 0 ELSE OLD.stored_bytes END)
    ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
END;

CREATE TRIGGER usage_without_deleted_runs AFTER DELETE ON workflow_runs
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

-- Apart from the run's row, which is written with every step: a list of 100,000 items is not written with it.
CREATE TABLE workflow_inputs (
    run_id     INTEGER PRIMARY KEY,
    input_json TEXT    NOT NULL
) STRICT;

CREATE TRIGGER inputs_never_change BEFORE UPDATE ON workflow_inputs
BEGIN
    SELECT RAISE(ABORT, 'the inputs of a run never change');
END;

CREATE TABLE workflow_step_runs (
    run_id       INTEGER NOT NULL,
    n            INTEGER NOT NULL CHECK (n >= 1),
    attempt      INTEGER NOT NULL CHECK (attempt >= 1),
    path         TEXT    NOT NULL,
    step_id      TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    tool         TEXT,
    status       TEXT    NOT NULL CHECK (
                       status = 'pending' OR status = 'ready' OR status = 'running' OR status = 'waiting'
                       OR status = 'done' OR status = 'failed' OR status = 'skipped' OR status = 'cancelled'
                       OR status = 'uncertain'),
    input_json   TEXT,
    output_json  TEXT,
    error_json   TEXT,
    ready_at     INTEGER,
    started_at   INTEGER,
    completed_at INTEGER,
    PRIMARY KEY (run_id, n, attempt),
    CHECK ((completed_at IS NOT NULL) =
           (status = 'done' OR status = 'failed' OR status = 'skipped' OR status = 'cancelled')),
    CHECK ((output_json IS NOT NULL) = (status = 'done'))
) STRICT, WITHOUT ROWID;

-- Steps that wait for a place, oldest first.
CREATE INDEX idx_steps_ready ON workflow_step_runs (status, ready_at) WHERE status = 'ready';

CREATE TABLE workflow_events (
    id     INTEGER PRIMARY KEY,
    run_id INTEGER NOT NULL,
    seq    INTEGER NOT NULL CHECK (seq >= 1),
    at     INTEGER NOT NULL,
    body   TEXT    NOT NULL,
    hash   BLOB    NOT NULL CHECK (length(hash) = 32)
) STRICT;

-- The log of one run, in order; no number is used twice.
CREATE UNIQUE INDEX idx_events_run ON workflow_events (run_id, seq);

CREATE TRIGGER events_never_change BEFORE UPDATE ON workflow_events
BEGIN
    SELECT RAISE(ABORT, 'events never change');
END;

CREATE TRIGGER events_go_with_their_run BEFORE DELETE ON workflow_events
WHEN EXISTS (SELECT 1 FROM workflow_runs WHERE id = OLD.run_id)
BEGIN
    SELECT RAISE(ABORT, 'events are deleted with their run only');
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

-- The next alarms to fire.
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

-- The next run to start.
CREATE INDEX idx_schedules_due ON schedules (due_at) WHERE due_at IS NOT NULL;

-- Sessions of clients, so that they outlive the server's process.
CREATE TABLE sessions (
    id         TEXT    PRIMARY KEY,
    user       TEXT    NOT NULL,
    state_json TEXT    NOT NULL,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The oldest make room.
CREATE INDEX idx_sessions_age ON sessions (created_at);

-- Users, groups, tokens and sign-ins. They are few and are read together, so what is known of each is JSON.
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

-- Who waits for an event.
CREATE INDEX idx_waits_event ON workflow_waits (event);

CREATE TABLE approvals (
    id           INTEGER PRIMARY KEY,
    run_id       INTEGER NOT NULL,
    n            INTEGER NOT NULL,
    path         TEXT    NOT NULL,
    status       TEXT    NOT NULL CHECK (
                       status = 'open' OR status = 'approved' OR status = 'denied' OR status = 'expired'
                       OR status = 'cancelled' OR status = 'superseded'),
    digest       TEXT    NOT NULL CHECK (length(digest) = 64),
    prompt       TEXT    NOT NULL,
    tool         TEXT,
    args_json    TEXT,
    notify_json  TEXT    NOT NULL,
    requested_at INTEGER NOT NULL,
    expires_at   INTEGER,
    decided_at   INTEGER,
    decided_by   TEXT,
    reason       TEXT,
    form_json    TEXT,
    CHECK ((decided_at IS NULL) = (status = 'open'))
) STRICT;

-- One open question per step execution; and the list of open ones.
CREATE UNIQUE INDEX idx_approvals_open ON approvals (run_id, n) WHERE status = 'open';
CREATE INDEX idx_approvals_run ON approvals (run_id, n);

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

CREATE TRIGGER keys_go_with_their_run AFTER DELETE ON workflow_runs
BEGIN
    DELETE FROM idempotency_keys WHERE scope = 'run:' || OLD.id;
END;

-- The shape that a single table of workflows and one of steps would have.
CREATE VIEW workflows AS
SELECT r.run_id AS id, r.updated_at, d.name, d.spec_json AS flow_json, i.input_json, r.status, r.created_by,
       r.completed_at, CASE WHEN r.status = 'cancelled' THEN r.completed_at END AS cancelled_at
FROM workflow_runs r JOIN workflow_definitions d ON d.id = r.definition_id
     JOIN workflow_inputs i ON i.run_id = r.id;

CREATE VIEW workflow_steps AS
SELECT r.run_id || ':' || s.n || ':' || s.attempt AS id,
       coalesce(s.completed_at, s.started_at, s.ready_at) AS updated_at, r.run_id AS workflow_id,
       s.path AS name, s.tool, s.input_json AS args_json, s.output_json AS result_json, s.status, s.attempt,
       s.ready_at, s.started_at, s.completed_at
FROM workflow_step_runs s JOIN workflow_runs r ON r.id = s.run_id;
