-- The versions of sub-workflows that a definition keeps, by name. NULL if it has none, or if none was found yet.
ALTER TABLE workflow_definitions ADD COLUMN workflows_json TEXT;

-- The version that a schedule starts: "latest", or a version and its hash. NULL: it is resolved at the next time.
ALTER TABLE schedules ADD COLUMN version_json TEXT;

-- Definitions that were deleted. Their names still belong to their owners.
CREATE INDEX idx_definitions_deleted ON workflow_definitions (name, version) WHERE deleted_at > created_at;

-- Definitions by agents that wait for a person to accept them, one for each name.
CREATE TABLE definition_proposals (
    name       TEXT    PRIMARY KEY,
    hash       TEXT    NOT NULL CHECK (length(hash) = 64),
    spec_json  TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT    NOT NULL,
    via        TEXT
) STRICT, WITHOUT ROWID;

-- A definition that is adopted counts for its new owner.
CREATE TRIGGER usage_of_adopted_definitions AFTER UPDATE OF created_by ON workflow_definitions
WHEN NEW.created_by <> OLD.created_by
BEGIN
    UPDATE workflow_usage SET bytes = bytes - octet_length(OLD.spec_json) WHERE created_by = OLD.created_by;
    INSERT INTO workflow_usage VALUES (NEW.created_by, octet_length(NEW.spec_json))
    ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
END;
