-- Who may enter: invites, tickets, admissions, revocations, sessions. Times are epoch milliseconds.
-- Bearer secrets are kept as SHA-256 only; the mesh's own, which must be read again, encrypted.

-- Node invites this gateway issued. It alone decides whether one is still good.
CREATE TABLE invite (
    id               TEXT PRIMARY KEY,
    tier             TEXT NOT NULL CHECK (tier IN ('backbone', 'edge')),
    expected_node_id TEXT,
    expected_key     BLOB,
    created_by       TEXT NOT NULL,
    created_at       INTEGER NOT NULL,
    expires_at       INTEGER NOT NULL,
    used_at          INTEGER,
    used_by          TEXT,
    used_key         BLOB,
    revoked_at       INTEGER,
    secret_hash      BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX invite_age ON invite (expires_at);

CREATE TRIGGER invite_ends_once BEFORE UPDATE ON invite
WHEN OLD.used_at IS NOT NULL OR OLD.revoked_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a used or revoked invite never changes'); END;

-- Tickets minted, and with them the replay guards: `guard` is what may earn a ticket only once,
-- an invite with a nonce, or a challenge. A row stays until both can no longer be presented.
CREATE TABLE ticket (
    jti        TEXT PRIMARY KEY,
    guard      TEXT NOT NULL UNIQUE,
    used_at    INTEGER,
    keep_until INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX ticket_age ON ticket (keep_until);

CREATE TRIGGER ticket_is_used_once BEFORE UPDATE ON ticket WHEN OLD.used_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a ticket is used once'); END;

-- Nodes this gateway let in, with its signature.
CREATE TABLE admission (
    node_id    TEXT PRIMARY KEY,
    public_key BLOB NOT NULL UNIQUE,
    tier       TEXT NOT NULL CHECK (tier IN ('backbone', 'edge')),
    issuer     TEXT NOT NULL,
    issued_at  INTEGER NOT NULL,
    signature  BLOB NOT NULL
) WITHOUT ROWID;

CREATE TRIGGER admission_binds_its_key BEFORE UPDATE OF node_id, public_key ON admission
BEGIN SELECT RAISE(ABORT, 'the key of a node never changes'); END;

-- Nodes this gateway shut out, for ever. `standing` is a JSON list: the fingerprints of those keys
-- they admitted that stay admitted.
CREATE TABLE revocation (
    node_id    TEXT PRIMARY KEY,
    public_key BLOB NOT NULL UNIQUE,
    tier       TEXT NOT NULL,
    issuer     TEXT NOT NULL,
    revoked_at INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    standing   TEXT NOT NULL,
    reason     TEXT NOT NULL,
    signature  BLOB NOT NULL
) WITHOUT ROWID;

CREATE TRIGGER revocation_sticks BEFORE UPDATE ON revocation
BEGIN SELECT RAISE(ABORT, 'a revocation never changes'); END;
CREATE TRIGGER revocation_stays BEFORE DELETE ON revocation
BEGIN SELECT RAISE(ABORT, 'a revocation never goes'); END;

-- Nodes connected now. Emptied at start, for no socket outlives its process.
CREATE TABLE node_session (
    id        TEXT PRIMARY KEY,
    node_id   TEXT NOT NULL,
    opened_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX node_session_node ON node_session (node_id);

-- The secrets all nodes share, encrypted under this node's key. One row.
CREATE TABLE mesh_secret (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    version    INTEGER NOT NULL,
    sealed     BLOB NOT NULL,
    rotated_at INTEGER NOT NULL
);

-- Invites for external agents. `scopes` are JSON lists, here and below.
CREATE TABLE agent_invite (
    id          TEXT PRIMARY KEY,
    agent_id    TEXT NOT NULL,
    scopes      TEXT NOT NULL,
    created_by  TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    used_at     INTEGER,
    revoked_at  INTEGER,
    secret_hash BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX agent_invite_age ON agent_invite (expires_at);
CREATE INDEX agent_invite_agent ON agent_invite (agent_id);

CREATE TRIGGER agent_invite_ends_once BEFORE UPDATE ON agent_invite
WHEN OLD.used_at IS NOT NULL OR OLD.revoked_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a used or revoked invite never changes'); END;

-- One external agent let in once: the family of all tokens that descend from one invite.
CREATE TABLE agent_session (
    id         TEXT PRIMARY KEY,
    agent_id   TEXT NOT NULL,
    scopes     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL,
    revoked_at INTEGER,
    revoked_by TEXT
) WITHOUT ROWID;
CREATE INDEX agent_session_agent ON agent_session (agent_id);

CREATE TRIGGER agent_session_ends_once BEFORE UPDATE ON agent_session
WHEN OLD.revoked_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a revoked session never changes'); END;

-- `used_at` is for refresh tokens: one that was used and comes again was stolen.
CREATE TABLE agent_token (
    id          TEXT PRIMARY KEY,
    session     TEXT NOT NULL REFERENCES agent_session,
    kind        TEXT NOT NULL CHECK (kind IN ('access', 'refresh', 'context')),
    scopes      TEXT NOT NULL,
    label       TEXT NOT NULL,
    expires_at  INTEGER NOT NULL,
    used_at     INTEGER,
    secret_hash BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX agent_token_age ON agent_token (expires_at);
CREATE INDEX agent_token_session ON agent_token (session);
