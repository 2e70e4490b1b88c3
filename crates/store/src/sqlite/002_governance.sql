-- What an approval covers and who may decide, as the digest binds it, and the users who approved before the quorum was
-- reached.
ALTER TABLE approvals ADD COLUMN subject_json TEXT;
ALTER TABLE approvals ADD COLUMN signed_json TEXT NOT NULL DEFAULT '[]';

-- Lists for a scoped token: the runs that were started with a scope.
CREATE INDEX idx_runs_scoped ON runs (id) WHERE principal_json ->> '$.scope' IS NOT NULL;
