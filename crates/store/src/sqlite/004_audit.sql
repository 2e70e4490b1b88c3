-- Rows of the log with run number 0 are administrative actions.

-- The last action that established a row which decides what runs or as whom. It is an index of the log: a row whose
-- content has another hash than the action says is refused.
CREATE TABLE audit_bindings (
    kind    TEXT    NOT NULL,
    id      TEXT    NOT NULL,
    hash    BLOB    NOT NULL CHECK (length(hash) = 32),
    log_row INTEGER NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;

-- The row of the log with the result that is stored under a key.
ALTER TABLE idempotency_keys ADD COLUMN log_row INTEGER;

-- Administrative actions are never purged.
DROP TRIGGER events_never_change;
CREATE TRIGGER events_never_change BEFORE UPDATE ON workflow_log
WHEN NEW.body <> '' OR length(NEW.hashes) <> 32 OR NEW.id <> OLD.id OR NEW.run_id <> OLD.run_id
     OR NEW.seq <> OLD.seq OR NEW.count <> OLD.count OR NEW.at <> OLD.at OR NEW.hash <> OLD.hash
     OR OLD.run_id = 0 OR EXISTS (SELECT 1 FROM runs WHERE id = OLD.run_id)
BEGIN
    SELECT RAISE(ABORT, 'events never change');
END;
