-- Calls that count for budgets of the policy: by whose calls count together, rule and start of the window of time.
CREATE TABLE policy_counters (
    subject TEXT    NOT NULL,
    rule    TEXT    NOT NULL,
    start   INTEGER NOT NULL,
    count   INTEGER NOT NULL CHECK (count >= 1),
    PRIMARY KEY (subject, rule, start)
) STRICT, WITHOUT ROWID;

-- The freeze and remembered approvals. They are few and are read together.
CREATE TABLE policy_state (
    kind      TEXT NOT NULL CHECK (kind = 'freeze' OR kind = 'remembered'),
    id        TEXT NOT NULL,
    body_json TEXT NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
