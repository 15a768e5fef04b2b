-- From the journal of version 0001.

ALTER TABLE agent ADD COLUMN takes_skills INTEGER NOT NULL DEFAULT 0;
ALTER TABLE agent ADD COLUMN skills BLOB;
-- A JSON list; it is filled when the indexes are looked at next.
ALTER TABLE capability ADD COLUMN eligible BLOB NOT NULL DEFAULT x'5b5d';

-- Other names of agents for senders at this gateway.
CREATE TABLE alias (
    alias TEXT PRIMARY KEY,
    agent TEXT NOT NULL
) WITHOUT ROWID;

ALTER TABLE mirror ADD COLUMN is_task INTEGER NOT NULL DEFAULT 0;

CREATE INDEX inbox_offered ON inbox (source, sender, mailbox, origin_node, pair_seq)
WHERE state = 'offered';
CREATE INDEX held_check ON held (source, event_id) WHERE why = 'check';

ALTER TABLE task ADD COLUMN unknown_until INTEGER;
ALTER TABLE task ADD COLUMN is_presumed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE task ADD COLUMN amended_at INTEGER;
-- The tasks that wait for a session, by who requested them.
CREATE INDEX task_waiting ON task (coalesce(requester_node, 'agent:' || requester), id)
    WHERE executor = 'session' AND state = 'pending';
-- An end that was presumed is amended once, by the executor's word.
DROP TRIGGER task_ends_once;
CREATE TRIGGER task_ends_once BEFORE UPDATE ON task
WHEN OLD.ended_at IS NOT NULL AND NOT (OLD.is_presumed AND NOT NEW.is_presumed)
BEGIN SELECT RAISE(ABORT, 'a task that has ended never changes'); END;

-- The task by which each agent here was last asked to install a delegation skill, and its end. It is
-- asked again at `next_at`. What was asked before is asked anew.
DROP TABLE capability_install;
CREATE TABLE capability_install (
    capability TEXT NOT NULL,
    agent      TEXT NOT NULL,
    version    TEXT NOT NULL,
    task       BLOB,
    attempts   INTEGER NOT NULL,
    status     TEXT NOT NULL,
    next_at    INTEGER,
    error      TEXT,
    at         INTEGER NOT NULL,
    PRIMARY KEY (capability, agent)
) WITHOUT ROWID;
CREATE INDEX capability_install_task ON capability_install (task);

-- The same for each other gateway. `agents` is the status of its agents as it last answered, in JSON.
CREATE TABLE capability_node (
    capability TEXT NOT NULL,
    node       TEXT NOT NULL,
    version    TEXT NOT NULL,
    task       BLOB,
    attempts   INTEGER NOT NULL,
    status     TEXT NOT NULL,
    agents     BLOB NOT NULL,
    next_at    INTEGER,
    error      TEXT,
    at         INTEGER NOT NULL,
    PRIMARY KEY (capability, node)
) WITHOUT ROWID;
CREATE INDEX capability_node_task ON capability_node (task);

-- Delegation skills that other gateways distribute. `task` waits for an answer, NULL once it has one.
CREATE TABLE skill_offer (
    capability TEXT PRIMARY KEY,
    source     TEXT NOT NULL,
    document   BLOB NOT NULL,
    task       BLOB,
    at         INTEGER NOT NULL
) WITHOUT ROWID;

-- Contracts of capabilities, by their digests. `source` is the node that brought the contract, empty
-- for one that was published here. A part that is not checked permits everything.
ALTER TABLE contract RENAME TO old_contract;
CREATE TABLE contract (
    digest        TEXT PRIMARY KEY,
    body          BLOB NOT NULL,
    source        TEXT NOT NULL,
    checks_input  INTEGER NOT NULL,
    checks_output INTEGER NOT NULL,
    at            INTEGER NOT NULL
);
CREATE INDEX contract_source ON contract (source);
INSERT INTO contract (digest, body, source, checks_input, checks_output, at)
SELECT digest, body, '', 1, 1, at FROM old_contract;
DROP TABLE old_contract;

CREATE INDEX task_token_live ON task_token (id) WHERE revoked_at IS NULL;

DROP INDEX session_open;
CREATE INDEX session_open ON session (state) WHERE state <> 'recycled';
