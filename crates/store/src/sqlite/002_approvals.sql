-- What an approval covers and who may decide, as the digest binds it, and the users who approved before the quorum was
-- reached.
ALTER TABLE approvals ADD COLUMN subject_json TEXT;
ALTER TABLE approvals ADD COLUMN signed_json TEXT NOT NULL DEFAULT '[]';
