-- One row for each event. The expression restores the fragments and hashes that the log abbreviates.
DROP VIEW IF EXISTS workflow_events;
CREATE VIEW workflow_events AS
SELECT l.id * 65536 + e.key AS id, l.run_id, l.seq + e.key AS seq, l.at, e.value AS body, l.hash
FROM workflow_log l, json_each({EVENTS}) e
WHERE l.body <> '';
