-- The journal of one gateway. Times are epoch milliseconds.

-- == Journal, outbox, audit

-- Facts about this journal: node id and public key, incarnation.
CREATE TABLE fact (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

-- The incarnations of this journal. A restored journal starts a new one at `first_seq`.
CREATE TABLE incarnation (
    id        TEXT PRIMARY KEY,
    first_seq INTEGER NOT NULL UNIQUE
) WITHOUT ROWID;

-- The outbox: append-only, gapless in seq, each row a link of the hash chain.
-- `to_node` is one node, '*' for every node, or NULL for no other node.
CREATE TABLE outbox (
    seq      INTEGER PRIMARY KEY,
    event_id BLOB NOT NULL,
    ref_id   BLOB,
    kind     TEXT NOT NULL,
    body     BLOB NOT NULL,
    digest   BLOB NOT NULL,
    to_node  TEXT
);
CREATE INDEX outbox_event ON outbox (event_id);
CREATE INDEX outbox_ref ON outbox (ref_id) WHERE ref_id IS NOT NULL;
CREATE INDEX outbox_to ON outbox (to_node, seq) WHERE to_node IS NOT NULL;

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

-- Other gateways as readers of this outbox. `last_seq` is the last event meant for the node, which
-- the next event for it names as prevSeqTo; `sent_seq` is the last event it may have heard of;
-- `acked_seq` is the last event it has taken. Events up to `cut_seq` are not kept for it: they may
-- have been pruned while it was away. Events up to `skip_seq` are never sent to it again, because a
-- journal that it lost may have taken them.
CREATE TABLE recipient (
    node_id     TEXT PRIMARY KEY,
    last_seq    INTEGER NOT NULL,
    incarnation TEXT,
    sent_seq    INTEGER NOT NULL DEFAULT 0,
    acked_seq   INTEGER NOT NULL DEFAULT 0,
    cut_seq     INTEGER NOT NULL DEFAULT 0,
    skip_seq    INTEGER NOT NULL DEFAULT 0,
    seen_at     INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- Operations done by hand and their actor: purges, replays, discards, removals.
CREATE TABLE audit (
    id      INTEGER PRIMARY KEY,
    at      INTEGER NOT NULL,
    actor   TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail  TEXT NOT NULL
);

-- == Agents and mailboxes

-- Agents of this gateway. A `standby` agent is owned by another gateway and served here as its fallback.
-- `registered_at` is its last registration, `seen_at` its last activity, noted about once a minute.
CREATE TABLE agent (
    id            TEXT PRIMARY KEY,
    type          TEXT NOT NULL,
    created_at    INTEGER NOT NULL,
    registered_at INTEGER NOT NULL,
    seen_at       INTEGER NOT NULL,
    standby       INTEGER NOT NULL DEFAULT 0,
    role          TEXT
) WITHOUT ROWID;

-- Mailboxes, with the counts that answers report. `arrivals` numbers all mail that ever arrived.
-- Mail that does not say whether it is ordered is as its mailbox.
CREATE TABLE mailbox (
    id        INTEGER PRIMARY KEY,
    name      TEXT NOT NULL UNIQUE,
    ordered   INTEGER NOT NULL DEFAULT 1,
    arrivals  INTEGER NOT NULL DEFAULT 0,
    waiting   INTEGER NOT NULL DEFAULT 0 CHECK (waiting >= 0),
    in_flight INTEGER NOT NULL DEFAULT 0 CHECK (in_flight >= 0),
    dead      INTEGER NOT NULL DEFAULT 0 CHECK (dead >= 0)
);

-- One sender to one mailbox: the unit of order.
-- `head` is the first ordered message waiting; `ready_at` is 0 if it may be leased, or else the moment
-- its backoff or its delay ends. Both are NULL while none waits or while a lease on the pair is out.
-- A pair without mail is dropped; its id, and the ids of its messages, are never used again.
CREATE TABLE pair (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    mailbox      INTEGER NOT NULL REFERENCES mailbox,
    sender       TEXT NOT NULL,
    next_number  INTEGER NOT NULL DEFAULT 1,
    next_unordered INTEGER NOT NULL DEFAULT 137438953472,
    last_rank    INTEGER NOT NULL DEFAULT 0,
    head         INTEGER,
    head_rank    INTEGER,
    head_arrival INTEGER,
    ready_at     INTEGER,
    UNIQUE (mailbox, sender)
);
-- Pairs that back off sort behind all ready pairs, so that a scan for ready pairs never meets them.
CREATE INDEX pair_queue ON pair (mailbox, ready_at, head_rank, head_arrival)
WHERE ready_at IS NOT NULL;
CREATE INDEX pair_retry ON pair (ready_at) WHERE ready_at > 0;

-- One message in one mailbox. id = pair << 38 | number, so that a pair's mail lies together on
-- disk, in order, and a run is one range. Numbers from 1 << 37 up are of unordered mail. `rank` is
-- created_at, made monotonic among the ordered mail of a pair. Mail that waits is not leased before
-- `not_before`; that is 0 for unordered mail that is ready. `max_retries` NULL means the mailbox's.
-- `reply` is the fingerprint of the reply with which it was acked.
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
    max_retries INTEGER,
    lease       INTEGER,
    settled_at  INTEGER,
    tracked     INTEGER NOT NULL,
    fingerprint BLOB NOT NULL,
    reply       BLOB
);
CREATE UNIQUE INDEX mail_msg_id ON mail (mailbox, msg_id);
-- States: 0 pending, 1 in_flight, 2 nacked, 3 acked, 4 dead_letter, 5 expired.
CREATE INDEX mail_expiry ON mail (expires_at) WHERE state IN (0, 2);
CREATE INDEX mail_settled ON mail (settled_at) WHERE state IN (3, 5);
-- The unordered mail that waits: the ready mail of a mailbox in its order, and mail by its moment.
CREATE INDEX mail_queue ON mail (mailbox, not_before, rank, arrival)
WHERE state IN (0, 2) AND id & 137438953472;
CREATE INDEX mail_retry ON mail (not_before)
WHERE state IN (0, 2) AND id & 137438953472 AND not_before > 0;

CREATE TRIGGER mail_terminal_is_immutable BEFORE UPDATE ON mail WHEN OLD.state >= 3
BEGIN SELECT RAISE(ABORT, 'a settled message never changes'); END;

CREATE TRIGGER mail_is_itself BEFORE UPDATE OF id, mailbox, msg_id, arrival, created_at ON mail
BEGIN SELECT RAISE(ABORT, 'id, mailbox and arrival of a message never change'); END;

-- Payloads, apart from the states, so that a change of state does not rewrite them.
CREATE TABLE body (
    id      INTEGER PRIMARY KEY,
    payload BLOB NOT NULL,
    meta    BLOB
);

-- A lease, held by one consumer: a run of consecutive messages of one pair, or one unordered message.
-- `slot` is the pair, or the mail id of the unordered message; `id` is the secret of the lease.
-- Three mail ids: `next` is the first message not settled yet, `last` ends the run, and the search
-- for the pair's next head starts at `behind`.
CREATE TABLE lease (
    slot       INTEGER PRIMARY KEY,
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

-- Dead letters. The message keeps its row and its body until the dead letter is discarded.
CREATE TABLE dead_letter (
    id          INTEGER PRIMARY KEY REFERENCES mail,
    mailbox     INTEGER NOT NULL,
    reason      TEXT NOT NULL,
    failed_at   INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    replayed_as TEXT
);
CREATE INDEX dead_letter_age ON dead_letter (mailbox, failed_at, id);

-- Discarded dead letters. The mail row is deleted once its msg_id cannot arrive again.
CREATE TABLE discarded (
    id INTEGER PRIMARY KEY REFERENCES mail,
    at INTEGER NOT NULL
);
CREATE INDEX discarded_age ON discarded (at);

-- == Deliveries, as the sender sees them

-- One delivery per message sent. `node` is its route, `routes` counts how many it had, and `offer` is
-- that count if the route is an offer, else 0. `next_at` is the next deadline. `content_key`
-- decrypts the payload in the outbox while it may have to be encrypted for another node. Unordered
-- messages have the `pair_seq` 0. The time to process begins at `not_before`. `verdict`
-- is the last owner's late receipt, after the sender gave the message up. The reply is kept here,
-- inline in `reply` or as the blob `reply_ref`, whether it is mail besides or not. A delivery of
-- forwarded mail has its first event in `origin`, and in `origin_node` that event's gateway if it is
-- another one than this.
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
    reply        BLOB,
    reply_ref    TEXT,
    kind         TEXT NOT NULL DEFAULT 'message',
    node         TEXT,
    offer        INTEGER NOT NULL DEFAULT 0,
    routes       INTEGER NOT NULL DEFAULT 1,
    attempt      INTEGER NOT NULL DEFAULT 1,
    pair_seq     INTEGER NOT NULL DEFAULT 0,
    not_before   INTEGER NOT NULL DEFAULT 0,
    expires_at   INTEGER NOT NULL DEFAULT 0,
    next_at      INTEGER,
    content_key  BLOB,
    verdict      TEXT,
    verdict_at   INTEGER,
    fingerprint  BLOB,
    digest       TEXT,
    origin       BLOB,
    origin_node  TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE INDEX delivery_corr ON delivery (corr_id);
CREATE INDEX delivery_age ON delivery (processed_at) WHERE processed_at IS NOT NULL;
CREATE INDEX delivery_due ON delivery (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX delivery_open ON delivery (from_agent, to_agent, origin_node, pair_seq)
WHERE processed_at IS NULL;
CREATE INDEX delivery_digest ON delivery (digest) WHERE digest IS NOT NULL;
CREATE INDEX delivery_reply_ref ON delivery (reply_ref) WHERE reply_ref IS NOT NULL;
CREATE INDEX delivery_origin ON delivery (origin)
WHERE origin IS NOT NULL AND processed_at IS NULL;
CREATE INDEX delivery_node ON delivery (node, event_id) WHERE processed_at IS NULL;

-- A pair as its sender numbers it: mail of this gateway, or mail that it forwards for `origin_node`.
-- `node` is the pair's route; every number below `base` is closed
-- there. While `moving` is not 0, the pair has open numbers on several routes, and `moving` is the
-- number up to which the route with the lowest ones was told to go.
CREATE TABLE pair_seq (
    from_agent  TEXT NOT NULL,
    to_agent    TEXT NOT NULL,
    origin_node TEXT NOT NULL DEFAULT '',
    last        INTEGER NOT NULL,
    node        TEXT NOT NULL DEFAULT '',
    base        INTEGER NOT NULL DEFAULT 1,
    moving      INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (from_agent, to_agent, origin_node)
) WITHOUT ROWID;

-- Idempotency keys of `send`, and the event each of them made.
CREATE TABLE idempotency (
    agent       TEXT NOT NULL,
    key         TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    event_id    BLOB NOT NULL,
    at          INTEGER NOT NULL,
    PRIMARY KEY (agent, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_age ON idempotency (at);

-- Undelivered messages: given up by their sender before an owner accepted them. Kept until discarded.
CREATE TABLE undelivered (
    event_id    BLOB PRIMARY KEY,
    kind        TEXT NOT NULL,
    from_agent  TEXT NOT NULL,
    to_agent    TEXT NOT NULL,
    corr_id     TEXT NOT NULL,
    node        TEXT,
    reason      TEXT NOT NULL,
    attempts    INTEGER NOT NULL,
    failed_at   INTEGER NOT NULL,
    payload     BLOB NOT NULL,
    digest      TEXT,
    traceparent TEXT,
    ordering    TEXT,
    max_retries INTEGER,
    ref_id      BLOB,
    verdict     TEXT,
    verdict_at  INTEGER,
    replayed_as TEXT
) WITHOUT ROWID;
CREATE INDEX undelivered_age ON undelivered (failed_at);
CREATE INDEX undelivered_reason ON undelivered (reason) WHERE replayed_as IS NULL;

-- == Blobs

-- Blobs on disk, and the content key of each. `content` is the fingerprint of the plain content,
-- known only to the gateway it was uploaded to. `uploader` is the external agent that uploaded it.
CREATE TABLE blob (
    digest     TEXT PRIMARY KEY,
    key        BLOB NOT NULL,
    size       INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    content    BLOB,
    uploader   TEXT
) WITHOUT ROWID;
CREATE INDEX blob_uploader ON blob (uploader) WHERE uploader IS NOT NULL;

-- The mail that refers to a blob. A blob is deleted when the last such mail has lost its body.
CREATE TABLE blob_use (
    digest TEXT NOT NULL REFERENCES blob,
    mail   INTEGER NOT NULL,
    PRIMARY KEY (digest, mail)
) WITHOUT ROWID;

-- == The room

-- The room this gateway is a member of: its genesis node, and the epoch of the document. An epoch after the
-- first is proven by a signed record of the coordinator.
CREATE TABLE room (
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    genesis_node TEXT NOT NULL,
    genesis_key  BLOB NOT NULL,
    epoch        INTEGER NOT NULL,
    epoch_proof  TEXT
);

-- The latest version of every record, with its writer's signature.
CREATE TABLE room_record (
    map        TEXT NOT NULL,
    key        TEXT NOT NULL,
    public_key BLOB NOT NULL,
    version    INTEGER NOT NULL,
    record     TEXT NOT NULL,
    signature  TEXT NOT NULL,
    PRIMARY KEY (map, key, public_key)
);

CREATE TRIGGER room_record_never_goes_back BEFORE UPDATE ON room_record
WHEN NEW.version < OLD.version
BEGIN SELECT RAISE(ABORT, 'a newer version of this record is known'); END;

-- The keys of node ids, as they were first seen. They outlive the document that showed them.
CREATE TABLE room_node_key (
    node_id    TEXT NOT NULL,
    public_key BLOB NOT NULL,
    PRIMARY KEY (node_id, public_key)
) WITHOUT ROWID;

-- The owners of agents that this gateway keeps to, and as JSON those before them. They outlive the document that showed them.
CREATE TABLE room_agent_owner (
    agent   TEXT PRIMARY KEY,
    gateway TEXT NOT NULL,
    epoch   INTEGER NOT NULL,
    former  TEXT NOT NULL
) WITHOUT ROWID;

-- Pairs of records that one writer signed for one version.
CREATE TABLE room_evidence (
    map             TEXT NOT NULL,
    key             TEXT NOT NULL,
    public_key      BLOB NOT NULL,
    version         INTEGER NOT NULL,
    record          TEXT NOT NULL,
    signature       TEXT NOT NULL,
    other_record    TEXT NOT NULL,
    other_signature TEXT NOT NULL,
    found_at        INTEGER NOT NULL,
    PRIMARY KEY (map, key, public_key, version)
);

-- == Access: invites, tickets, admissions, revocations, sessions
-- Bearer secrets are stored as SHA-256 only. The mesh's own secret must be read again, so it is encrypted.

-- Node invites issued by this gateway, which alone decides whether one is still valid.
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

-- Tickets, and their replay guards. A `guard` (an invite with a nonce, or a challenge) earns one
-- ticket. A row is kept until neither the ticket nor its guard can be presented again.
CREATE TABLE ticket (
    jti        TEXT PRIMARY KEY,
    guard      TEXT NOT NULL UNIQUE,
    used_at    INTEGER,
    keep_until INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX ticket_age ON ticket (keep_until);

CREATE TRIGGER ticket_is_used_once BEFORE UPDATE ON ticket WHEN OLD.used_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a ticket is used once'); END;

-- Nodes admitted by this gateway, with its signature.
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

-- Nodes revoked by this gateway, for ever. `standing` is a JSON list: the fingerprints of the keys
-- which the revoked node had admitted and which stay admitted.
CREATE TABLE revocation (
    node_id    TEXT PRIMARY KEY,
    public_key BLOB NOT NULL UNIQUE,
    tier       TEXT NOT NULL,
    issuer     TEXT NOT NULL,
    revoked_at INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    standing   TEXT NOT NULL,
    reason     TEXT NOT NULL
) WITHOUT ROWID;

CREATE TRIGGER revocation_sticks BEFORE UPDATE ON revocation
BEGIN SELECT RAISE(ABORT, 'a revocation never changes'); END;
CREATE TRIGGER revocation_stays BEFORE DELETE ON revocation
BEGIN SELECT RAISE(ABORT, 'a revocation never goes'); END;

-- Nodes connected now. Emptied at start, because no socket outlives its process.
CREATE TABLE node_session (
    id      TEXT PRIMARY KEY,
    node_id TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX node_session_node ON node_session (node_id);

-- The secrets all nodes share, encrypted under this node's key. One row.
CREATE TABLE mesh_secret (
    one       INTEGER PRIMARY KEY CHECK (one = 1),
    encrypted BLOB NOT NULL
);

-- Invites for external agents. `scopes` are JSON lists, here and below. `grantor` is the session that
-- issued the invite, NULL for the operator.
CREATE TABLE agent_invite (
    id          TEXT PRIMARY KEY,
    agent_id    TEXT NOT NULL,
    scopes      TEXT NOT NULL,
    created_by  TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    used_at     INTEGER,
    revoked_at  INTEGER,
    grantor     TEXT,
    secret_hash BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX agent_invite_grantor ON agent_invite (grantor) WHERE grantor IS NOT NULL;
CREATE INDEX agent_invite_age ON agent_invite (expires_at);
CREATE INDEX agent_invite_agent ON agent_invite (agent_id);

CREATE TRIGGER agent_invite_ends_once BEFORE UPDATE ON agent_invite
WHEN OLD.used_at IS NOT NULL OR OLD.revoked_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a used or revoked invite never changes'); END;

-- A session of an external agent: the family of all tokens that descend from one invite. `parent` is
-- the session that granted the invite, and with which this one ends.
CREATE TABLE agent_session (
    id         TEXT PRIMARY KEY,
    agent_id   TEXT NOT NULL,
    scopes     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL,
    revoked_at INTEGER,
    revoked_by TEXT,
    parent     TEXT
) WITHOUT ROWID;
CREATE INDEX agent_session_parent ON agent_session (parent) WHERE parent IS NOT NULL;
CREATE INDEX agent_session_agent ON agent_session (agent_id);

CREATE TRIGGER agent_session_ends_once BEFORE UPDATE ON agent_session
WHEN OLD.revoked_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a revoked session never changes'); END;

-- Tokens of a session. A refresh token that is presented again after `used_at` was stolen, unless the
-- same client asks again (`attempt_hash`) for an answer that it did not get. `parent` is the refresh
-- token whose answer has this token. An access token has `used_at` from its first use.
CREATE TABLE agent_token (
    id          TEXT PRIMARY KEY,
    session     TEXT NOT NULL REFERENCES agent_session,
    kind        TEXT NOT NULL CHECK (kind IN ('access', 'refresh', 'context')),
    scopes      TEXT NOT NULL,
    label       TEXT NOT NULL,
    expires_at  INTEGER NOT NULL,
    used_at     INTEGER,
    parent      TEXT,
    attempt_hash BLOB,
    secret_hash BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX agent_token_age ON agent_token (expires_at);
CREATE INDEX agent_token_session ON agent_token (session);
CREATE INDEX agent_token_parent ON agent_token (parent) WHERE parent IS NOT NULL;

-- == Pipes: the outboxes of other gateways

-- Positions of this gateway in other outboxes. `last_to` is the last event there for this gateway and
-- `last_all` the last for every node; the next event of each sort names it as prevSeqTo.
CREATE TABLE cursor (
    source      TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    first_seq   INTEGER NOT NULL,
    seq         INTEGER NOT NULL,
    last_to     INTEGER NOT NULL,
    last_all    INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    PRIMARY KEY (source, incarnation)
) WITHOUT ROWID;

-- Only in a restored journal: the sources that were told of it, and those that have resumed it.
CREATE TABLE resuming (
    source   TEXT PRIMARY KEY,
    asked_at INTEGER NOT NULL,
    resumed  INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- The inbox: every tracked event taken from another outbox, kept for as long as it may arrive again.
-- `origin_node` is the node for which `source` forwarded the event; it is empty for mail of its own.
CREATE TABLE inbox (
    source      TEXT NOT NULL,
    event_id    BLOB NOT NULL,
    state       TEXT NOT NULL,
    mailbox     TEXT NOT NULL,
    sender      TEXT NOT NULL,
    origin_node TEXT NOT NULL DEFAULT '',
    corr_id     TEXT NOT NULL,
    pair_seq    INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    reason      TEXT,
    PRIMARY KEY (source, event_id)
) WITHOUT ROWID;
CREATE INDEX inbox_age ON inbox (at);

-- A pair as its receiver sees it: the next number to accept, the count of held events, and the count
-- of accepted offers that are undecided. Numbers up to `closed` that are not held never come, except
-- the one that was `refused` last: its sender decides what becomes of it.
CREATE TABLE inbox_pair (
    source      TEXT NOT NULL,
    sender      TEXT NOT NULL,
    mailbox     TEXT NOT NULL,
    origin_node TEXT NOT NULL DEFAULT '',
    incarnation TEXT NOT NULL,
    next        INTEGER NOT NULL,
    held        INTEGER NOT NULL DEFAULT 0,
    offered     INTEGER NOT NULL DEFAULT 0,
    closed      INTEGER NOT NULL DEFAULT 0,
    refused     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (source, sender, mailbox, origin_node)
) WITHOUT ROWID;

-- Held events: taken but not accepted yet, in the order of their pair. A row without a body is a
-- number that will never arrive. Unordered events have numbers below -2^53, the oldest the highest.
CREATE TABLE held (
    source      TEXT NOT NULL,
    sender      TEXT NOT NULL,
    mailbox     TEXT NOT NULL,
    origin_node TEXT NOT NULL DEFAULT '',
    pair_seq    INTEGER NOT NULL,
    event_id    BLOB,
    why         TEXT NOT NULL,
    digest      TEXT,
    body        BLOB,
    PRIMARY KEY (source, sender, mailbox, origin_node, pair_seq)
) WITHOUT ROWID;
CREATE INDEX held_mailbox ON held (mailbox) WHERE why = 'full';
CREATE INDEX held_digest ON held (digest) WHERE digest IS NOT NULL;
CREATE INDEX held_sender ON held (source, sender, mailbox, origin_node) WHERE why = 'sender';
CREATE INDEX held_event ON held (source, event_id) WHERE event_id IS NOT NULL;

-- Accepted offers which their sender has neither confirmed nor withdrawn.
CREATE TABLE offered (
    source   TEXT NOT NULL,
    event_id BLOB NOT NULL,
    body     BLOB NOT NULL,
    PRIMARY KEY (source, event_id)
) WITHOUT ROWID;

-- How much of this journal each source occupies with events that are held or offered, and with pairs.
-- Triggers count, so that the figures are always true.
CREATE TABLE source_usage (
    source TEXT PRIMARY KEY,
    events INTEGER NOT NULL DEFAULT 0,
    bytes  INTEGER NOT NULL DEFAULT 0,
    pairs  INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TRIGGER held_is_counted AFTER INSERT ON held BEGIN
    INSERT INTO source_usage (source, events, bytes)
    VALUES (NEW.source, 1, coalesce(length(NEW.body), 0))
    ON CONFLICT (source) DO UPDATE SET events = events + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER held_changes_size AFTER UPDATE OF body ON held BEGIN
    UPDATE source_usage
    SET bytes = bytes + coalesce(length(NEW.body), 0) - coalesce(length(OLD.body), 0)
    WHERE source = NEW.source;
END;
CREATE TRIGGER held_is_released AFTER DELETE ON held BEGIN
    UPDATE source_usage SET events = events - 1, bytes = bytes - coalesce(length(OLD.body), 0)
    WHERE source = OLD.source;
END;
CREATE TRIGGER offered_is_counted AFTER INSERT ON offered BEGIN
    INSERT INTO source_usage (source, events, bytes) VALUES (NEW.source, 1, length(NEW.body))
    ON CONFLICT (source) DO UPDATE SET events = events + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER offered_changes_size AFTER UPDATE OF body ON offered BEGIN
    UPDATE source_usage SET bytes = bytes + length(NEW.body) - length(OLD.body)
    WHERE source = NEW.source;
END;
CREATE TRIGGER offered_is_decided AFTER DELETE ON offered BEGIN
    UPDATE source_usage SET events = events - 1, bytes = bytes - length(OLD.body)
    WHERE source = OLD.source;
END;
CREATE TRIGGER inbox_pair_is_counted AFTER INSERT ON inbox_pair BEGIN
    INSERT INTO source_usage (source, pairs) VALUES (NEW.source, 1)
    ON CONFLICT (source) DO UPDATE SET pairs = pairs + 1;
END;

-- Forwarded mail: accepted here, then sent on to the gateway where its agent lives now. `event_id`
-- is this gateway's event; it carries on `original`, which `source` sent. Once `outcome` is set,
-- `source` has been told.
CREATE TABLE forwarded (
    event_id BLOB PRIMARY KEY,
    source   TEXT NOT NULL,
    original BLOB NOT NULL,
    sender   TEXT NOT NULL,
    mailbox  TEXT NOT NULL,
    meta     BLOB NOT NULL,
    at       INTEGER NOT NULL,
    outcome  TEXT,
    reason   TEXT
) WITHOUT ROWID;
CREATE INDEX forwarded_original ON forwarded (source, original);
CREATE INDEX forwarded_age ON forwarded (at);

-- Requests of other gateways for agents of this one. `take_over` asks even if the agent is served here.
CREATE TABLE transfer_request (
    agent     TEXT NOT NULL,
    node      TEXT NOT NULL,
    at        INTEGER NOT NULL,
    PRIMARY KEY (agent, node)
) WITHOUT ROWID;

-- Outboxes this gateway relays for nodes that cannot reach their source. `incarnations` are the
-- ones the source announced. Events are kept from `start` on, and verified up to
-- `seq` of `incarnation`, where the hash chain is `chain`.
CREATE TABLE relayed (
    source       TEXT PRIMARY KEY,
    incarnations BLOB,
    incarnation  TEXT NOT NULL DEFAULT '',
    start        INTEGER NOT NULL DEFAULT 0,
    seq          INTEGER NOT NULL DEFAULT 0,
    chain        BLOB,
    bytes        INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
-- The readers of a relayed outbox. `positions` is the reader's own statement, in MessagePack. No
-- event between those positions and `through` is for that reader.
CREATE TABLE relay_reader (
    source    TEXT NOT NULL,
    reader    TEXT NOT NULL,
    positions BLOB NOT NULL,
    through   INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    PRIMARY KEY (source, reader)
) WITHOUT ROWID;
CREATE TABLE replica (
    source      TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    seq         INTEGER NOT NULL,
    to_node     TEXT,
    body        BLOB NOT NULL,
    digest      BLOB NOT NULL,
    PRIMARY KEY (source, incarnation, seq)
) WITHOUT ROWID;
CREATE INDEX replica_to ON replica (to_node, source, incarnation, seq) WHERE to_node IS NOT NULL;
CREATE TABLE replica_head (
    source      TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    last_seq    INTEGER NOT NULL,
    first_seq   INTEGER NOT NULL,
    previous    BLOB NOT NULL,
    chain       BLOB NOT NULL,
    signature   BLOB NOT NULL,
    at          INTEGER NOT NULL,
    PRIMARY KEY (source, incarnation, last_seq)
) WITHOUT ROWID;

-- == Tasks and sessions

-- Tasks that this gateway requested or executes. `id` is the event that created the task. The nodes
-- are NULL for this gateway. `info` is the public part of the task's events, in JSON. `late_at` is
-- when its requester's gateway noted that it missed its ETA; `escalated` is how far that is dealt
-- with: 0 not at all, 1 somebody was told, 2 nothing is left to be done.
CREATE TABLE task (
    id             BLOB PRIMARY KEY,
    agent          TEXT NOT NULL,
    requester      TEXT NOT NULL,
    requester_node TEXT,
    executor       TEXT NOT NULL CHECK (executor IN ('session', 'agent', 'remote')),
    executor_node  TEXT,
    state          TEXT NOT NULL,
    description    TEXT NOT NULL,
    info           BLOB NOT NULL,
    progress       REAL,
    note           TEXT,
    eta_at         INTEGER,
    error_code     TEXT,
    error          TEXT,
    created_at     INTEGER NOT NULL,
    accepted_at    INTEGER,
    started_at     INTEGER,
    updated_at     INTEGER NOT NULL,
    ended_at       INTEGER,
    late_at        INTEGER,
    reported_at    INTEGER,
    silent_at      INTEGER,
    attempt        INTEGER NOT NULL DEFAULT 1,
    escalated      INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX task_open ON task (executor, state, id) WHERE ended_at IS NULL;
CREATE INDEX task_agent ON task (agent, id);
CREATE INDEX task_eta ON task (eta_at) WHERE ended_at IS NULL AND late_at IS NULL;
CREATE INDEX task_late ON task (eta_at)
    WHERE ended_at IS NULL AND late_at IS NOT NULL AND escalated < 2;
CREATE INDEX task_ended ON task (ended_at) WHERE ended_at IS NOT NULL;

CREATE TRIGGER task_ends_once BEFORE UPDATE ON task WHEN OLD.ended_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a task that has ended never changes'); END;

-- Request and result of a task, apart from its state: inline, or as a blob. The marks are
-- fingerprints of their plain content.
CREATE TABLE task_payload (
    id           BLOB PRIMARY KEY,
    request      BLOB,
    request_ref  TEXT,
    request_mark BLOB,
    result       BLOB,
    result_ref   TEXT,
    mark         BLOB
) WITHOUT ROWID;
CREATE INDEX task_payload_request_ref ON task_payload (request_ref) WHERE request_ref IS NOT NULL;
CREATE INDEX task_payload_result_ref ON task_payload (result_ref) WHERE result_ref IS NOT NULL;

-- Results that are blobs of another gateway and are not fetched yet. Their tasks are still open.
CREATE TABLE task_blob (
    digest TEXT NOT NULL,
    task   BLOB NOT NULL,
    source TEXT NOT NULL,
    key    BLOB NOT NULL,
    size   INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    PRIMARY KEY (digest, task)
) WITHOUT ROWID;

-- Requests that stand for a task: further attempts, after its executor was lost.
CREATE TABLE task_attempt (
    event_id BLOB PRIMARY KEY,
    task     BLOB NOT NULL,
    number   INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX task_attempt_task ON task_attempt (task, number);

-- Cancellations that arrived before their tasks, by the node that sent them.
CREATE TABLE early_cancel (
    source TEXT NOT NULL,
    task   BLOB NOT NULL,
    reason TEXT NOT NULL,
    at     INTEGER NOT NULL,
    PRIMARY KEY (source, task)
) WITHOUT ROWID;
CREATE INDEX early_cancel_age ON early_cancel (at);

-- Capabilities that this gateway publishes. `document` is the publisher's own, in JSON.
CREATE TABLE capability (
    id             TEXT PRIMARY KEY,
    owner_agent    TEXT NOT NULL,
    document       BLOB NOT NULL,
    contract       TEXT NOT NULL,
    policy_version INTEGER NOT NULL,
    published_at   INTEGER NOT NULL
) WITHOUT ROWID;

-- The owners of the room's capabilities that this gateway keeps to: the first that it saw.
CREATE TABLE capability_owner (
    capability  TEXT PRIMARY KEY,
    owner_agent TEXT NOT NULL
) WITHOUT ROWID;

-- The task by which each agent was last asked to install a delegation skill.
CREATE TABLE capability_install (
    capability TEXT NOT NULL,
    agent      TEXT NOT NULL,
    version    TEXT NOT NULL,
    task       BLOB NOT NULL,
    PRIMARY KEY (capability, agent)
) WITHOUT ROWID;

-- Contracts of capabilities, of this and of other gateways, by their digests.
CREATE TABLE contract (
    digest TEXT PRIMARY KEY,
    body   BLOB NOT NULL,
    at     INTEGER NOT NULL
) WITHOUT ROWID;

-- Tokens of sessions, each for one agent and one task. `capabilities` is a JSON list.
CREATE TABLE task_token (
    id           TEXT PRIMARY KEY,
    agent        TEXT NOT NULL,
    task         BLOB NOT NULL,
    capabilities TEXT NOT NULL,
    issued_at    INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    revoked_at   INTEGER,
    secret_hash  BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX task_token_task ON task_token (task);
CREATE INDEX task_token_age ON task_token (expires_at);

-- Sessions that this gateway started for tasks. `handle` is what the runtime needs to find the
-- session again after a restart.
CREATE TABLE session (
    name       TEXT PRIMARY KEY,
    task       BLOB NOT NULL,
    agent      TEXT NOT NULL,
    runtime    TEXT NOT NULL,
    state      TEXT NOT NULL,
    handle     BLOB,
    exit_code  INTEGER,
    reason     TEXT,
    created_at INTEGER NOT NULL,
    ended_at   INTEGER
) WITHOUT ROWID;
CREATE INDEX session_task ON session (task);
CREATE INDEX session_open ON session (state) WHERE ended_at IS NULL;

-- The log of messages of the hub: delivered and rejected ones, the newest of them.
CREATE TABLE hub_message (
    number     INTEGER PRIMARY KEY,
    id         TEXT NOT NULL,
    at         INTEGER NOT NULL,
    sender     TEXT NOT NULL,
    recipient  TEXT NOT NULL,
    type       TEXT NOT NULL,
    status     TEXT NOT NULL CHECK (status IN ('delivered', 'rejected')),
    reason     TEXT
);

-- == Migration

-- Copies of sent messages for a legacy document, while the mirror is switched on. A large payload is
-- the blob `digest`.
CREATE TABLE mirror (
    number     INTEGER PRIMARY KEY,
    event_id   BLOB NOT NULL UNIQUE,
    from_agent TEXT NOT NULL,
    to_agent   TEXT NOT NULL,
    corr_id    TEXT NOT NULL,
    sent_at    INTEGER NOT NULL,
    payload    BLOB,
    digest     TEXT
);

-- == Incidents and feedback

-- Incidents, for people. The room holds their counts, and those that were posted, without the details.
-- `corr_ids` is a JSON list of conversations.
CREATE TABLE incident (
    id         TEXT PRIMARY KEY,
    class      TEXT NOT NULL,
    subject    TEXT NOT NULL,
    detail     TEXT NOT NULL,
    raised_at  INTEGER NOT NULL,
    source     TEXT NOT NULL,
    corr_ids   TEXT NOT NULL DEFAULT '[]',
    status     TEXT NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'resolved', 'dismissed')),
    settled_at INTEGER,
    settled_by TEXT
) WITHOUT ROWID;
CREATE INDEX incident_age ON incident (raised_at);
CREATE INDEX incident_class ON incident (class, raised_at);

-- Review items: misfires of capabilities. Lists are JSON. The room holds each item without the details.
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

-- The latest ETA advice on each capability, from all of its tasks.
CREATE TABLE eta_advice (
    capability_id           TEXT PRIMARY KEY,
    p50_secs                REAL NOT NULL,
    p95_secs                REAL NOT NULL,
    recommended_eta_seconds INTEGER NOT NULL,
    samples                 INTEGER NOT NULL,
    at                      INTEGER NOT NULL
) WITHOUT ROWID;
