-- What comes back from those who look at all gateways together. Times are epoch milliseconds.

-- The conversations an incident is about, as a JSON list.
ALTER TABLE incident ADD COLUMN corr_ids TEXT NOT NULL DEFAULT '[]';
CREATE INDEX incident_class ON incident (class, raised_at);

CREATE INDEX undelivered_reason ON undelivered (reason) WHERE replayed_as IS NULL;

-- Misfires somebody has to look at. Lists are JSON. The room hears of each, without the details.
CREATE TABLE review (
    id                       TEXT PRIMARY KEY,
    capability_id            TEXT NOT NULL,
    delegation_skill_version TEXT NOT NULL,
    executor_skill_version   TEXT NOT NULL,
    failure_class            TEXT NOT NULL,
    count                    INTEGER NOT NULL,
    corr_ids                 TEXT NOT NULL,
    event_ids                TEXT NOT NULL,
    raised_at                INTEGER NOT NULL,
    status                   TEXT NOT NULL CHECK (status IN ('open', 'resolved', 'dismissed')),
    settled_at               INTEGER,
    settled_by               TEXT,
    note                     TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE INDEX review_status ON review (status, raised_at);

-- How long a capability takes, as seen in all of its tasks: the latest word on each.
CREATE TABLE eta_advice (
    capability_id           TEXT PRIMARY KEY,
    p50_secs                REAL NOT NULL,
    p95_secs                REAL NOT NULL,
    recommended_eta_seconds INTEGER NOT NULL,
    samples                 INTEGER NOT NULL,
    at                      INTEGER NOT NULL
) WITHOUT ROWID;
