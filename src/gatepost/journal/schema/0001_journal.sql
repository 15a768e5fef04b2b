-- What one gateway remembers. Times are epoch milliseconds.

-- Facts about this journal: node id, incarnation.
CREATE TABLE fact (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

-- The outbox: append-only, gapless in seq, each row a link of the hash chain.
CREATE TABLE outbox (
    seq      INTEGER PRIMARY KEY,
    event_id BLOB NOT NULL,
    ref_id   BLOB,
    kind     TEXT NOT NULL,
    body     BLOB NOT NULL,
    digest   BLOB NOT NULL
);
CREATE INDEX outbox_event ON outbox (event_id);
CREATE INDEX outbox_ref ON outbox (ref_id) WHERE ref_id IS NOT NULL;

CREATE TRIGGER outbox_is_append_only BEFORE UPDATE ON outbox
BEGIN SELECT RAISE(ABORT, 'the outbox is append-only'); END;

-- One signed head per commit group that appended to the outbox.
CREATE TABLE head (
    last_seq  INTEGER PRIMARY KEY,
    first_seq INTEGER NOT NULL,
    chain     BLOB NOT NULL,
    signature BLOB NOT NULL,
    signed_at INTEGER NOT NULL
);

-- The last seq meant for each node: what the next event for it names as prevSeqTo.
CREATE TABLE recipient (
    node_id  TEXT PRIMARY KEY,
    last_seq INTEGER NOT NULL
) WITHOUT ROWID;

-- Who did what by hand: purges, replays, discards, removals.
CREATE TABLE audit (
    id      INTEGER PRIMARY KEY,
    at      INTEGER NOT NULL,
    actor   TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail  TEXT NOT NULL
);

-- Agents this gateway answers for.
CREATE TABLE agent (
    id         TEXT PRIMARY KEY,
    type       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL
) WITHOUT ROWID;

-- Mailboxes, with the counts an answer needs. `arrivals` numbers all mail that ever came.
CREATE TABLE mailbox (
    id        INTEGER PRIMARY KEY,
    name      TEXT NOT NULL UNIQUE,
    arrivals  INTEGER NOT NULL DEFAULT 0,
    waiting   INTEGER NOT NULL DEFAULT 0 CHECK (waiting >= 0),
    in_flight INTEGER NOT NULL DEFAULT 0 CHECK (in_flight >= 0),
    dead      INTEGER NOT NULL DEFAULT 0 CHECK (dead >= 0)
);

-- One sender to one mailbox: the unit of order.
-- `head` is the first message waiting; `ready_at` is 0 if it may be leased, or else the moment
-- its backoff ends. Both are NULL while nothing waits or while a lease on the pair is out.
-- A pair of which nothing is left is dropped; its id never comes back, nor do its messages'.
CREATE TABLE pair (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    mailbox      INTEGER NOT NULL REFERENCES mailbox,
    sender       TEXT NOT NULL,
    next_number  INTEGER NOT NULL DEFAULT 1,
    last_rank    INTEGER NOT NULL DEFAULT 0,
    head         INTEGER,
    head_rank    INTEGER,
    head_arrival INTEGER,
    ready_at     INTEGER,
    UNIQUE (mailbox, sender)
);
-- A pair that backs off stands behind all that are ready, so that nobody has to step over it.
CREATE INDEX pair_queue ON pair (mailbox, ready_at, head_rank, head_arrival)
WHERE ready_at IS NOT NULL;
CREATE INDEX pair_retry ON pair (ready_at) WHERE ready_at > 0;

-- One message in one mailbox. id = pair << 38 | number, so that a pair's mail lies together,
-- in order, and a run is one range. `rank` is created_at made monotonic within the pair.
CREATE TABLE mail (
    id          INTEGER PRIMARY KEY,
    mailbox     INTEGER NOT NULL,
    msg_id      TEXT NOT NULL,
    state       INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    arrival     INTEGER NOT NULL,
    rank        INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    not_before  INTEGER NOT NULL,
    lease       INTEGER,
    settled_at  INTEGER,
    tracked     INTEGER NOT NULL,
    fingerprint BLOB NOT NULL
);
CREATE UNIQUE INDEX mail_msg_id ON mail (mailbox, msg_id);
-- States: 0 pending, 1 in_flight, 2 nacked, 3 acked, 4 dead_letter, 5 expired.
CREATE INDEX mail_expiry ON mail (expires_at) WHERE state IN (0, 2);
CREATE INDEX mail_settled ON mail (settled_at) WHERE state IN (3, 5);

CREATE TRIGGER mail_terminal_is_immutable BEFORE UPDATE ON mail WHEN OLD.state >= 3
BEGIN SELECT RAISE(ABORT, 'a settled message never changes'); END;

CREATE TRIGGER mail_is_itself BEFORE UPDATE OF id, mailbox, msg_id, arrival, created_at ON mail
BEGIN SELECT RAISE(ABORT, 'who, whence and when of a message never change'); END;

-- Payloads apart from states, so that a change of state does not rewrite them.
CREATE TABLE body (
    id      INTEGER PRIMARY KEY,
    payload BLOB NOT NULL,
    meta    BLOB
);

-- A run of consecutive messages of one pair, out with one consumer. `id` is its secret.
-- `next` is the first not settled yet, `last` the end of the run, `behind` where to look for
-- what waits behind it (all three are mail ids).
CREATE TABLE lease (
    pair       INTEGER PRIMARY KEY REFERENCES pair,
    id         INTEGER NOT NULL,
    mailbox    INTEGER NOT NULL,
    consumer   TEXT NOT NULL,
    next       INTEGER NOT NULL,
    last       INTEGER NOT NULL,
    behind     INTEGER NOT NULL,
    size       INTEGER NOT NULL,
    tracked    INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
);
CREATE INDEX lease_expiry ON lease (expires_at);
CREATE INDEX lease_consumer ON lease (mailbox, consumer);

-- Why a message died. The message keeps its row and its body until somebody discards it.
CREATE TABLE dead_letter (
    id          INTEGER PRIMARY KEY REFERENCES mail,
    mailbox     INTEGER NOT NULL,
    reason      TEXT NOT NULL,
    failed_at   INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    replayed_as TEXT
);
CREATE INDEX dead_letter_age ON dead_letter (mailbox, failed_at, id);

-- Dead letters given up; their mail row goes once its msg_id cannot come again.
CREATE TABLE discarded (
    id INTEGER PRIMARY KEY REFERENCES mail,
    at INTEGER NOT NULL
);
CREATE INDEX discarded_age ON discarded (at);

-- What a sender knows of each message it sent.
CREATE TABLE delivery (
    event_id     BLOB PRIMARY KEY,
    from_agent   TEXT NOT NULL,
    to_agent     TEXT NOT NULL,
    corr_id      TEXT NOT NULL,
    state        TEXT NOT NULL,
    outcome      TEXT,
    reason       TEXT,
    emitted_at   INTEGER NOT NULL,
    accepted_at  INTEGER,
    processed_at INTEGER,
    replies_to   TEXT NOT NULL,
    reply        BLOB
) WITHOUT ROWID;
CREATE INDEX delivery_corr ON delivery (corr_id);
CREATE INDEX delivery_age ON delivery (processed_at) WHERE processed_at IS NOT NULL;

CREATE TABLE pair_seq (
    from_agent TEXT NOT NULL,
    to_agent   TEXT NOT NULL,
    last       INTEGER NOT NULL,
    PRIMARY KEY (from_agent, to_agent)
) WITHOUT ROWID;

CREATE TABLE idempotency (
    agent       TEXT NOT NULL,
    key         TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    event_id    BLOB NOT NULL,
    at          INTEGER NOT NULL,
    PRIMARY KEY (agent, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_age ON idempotency (at);

-- Blobs on disk, and the key that opens each.
CREATE TABLE blob (
    digest     TEXT PRIMARY KEY,
    key        BLOB NOT NULL,
    size       INTEGER NOT NULL,
    created_at INTEGER NOT NULL
) WITHOUT ROWID;

-- Which mail needs which blob; a blob goes when the last of them has lost its body.
CREATE TABLE blob_use (
    digest TEXT NOT NULL REFERENCES blob,
    mail   INTEGER NOT NULL,
    PRIMARY KEY (digest, mail)
) WITHOUT ROWID;
