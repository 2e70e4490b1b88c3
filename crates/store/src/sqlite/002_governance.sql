-- What an approval covers and who may decide, as the digest binds it, and the users who approved before the quorum was
-- reached.
ALTER TABLE approvals ADD COLUMN subject_json TEXT;
ALTER TABLE approvals ADD COLUMN signed_json TEXT NOT NULL DEFAULT '[]';

-- Lists for a scoped token: the runs that were started with a scope.
CREATE INDEX idx_runs_scoped ON runs (id) WHERE principal_json ->> '$.scope' IS NOT NULL;

-- Whether an agent stored the version. Agents cannot change the definitions of people.
ALTER TABLE workflow_definitions ADD COLUMN by_agent INTEGER NOT NULL DEFAULT 0 CHECK (by_agent IN (0, 1));
