-- Pipes between gateways. Times are epoch milliseconds.

-- The lives of this journal: a restored one goes on under a new name, from `first_seq` on.
CREATE TABLE incarnation (
    id        TEXT PRIMARY KEY,
    first_seq INTEGER NOT NULL UNIQUE
) WITHOUT ROWID;

-- Whom an event is for: a node, '*' for all of them, NULL for nobody else.
ALTER TABLE outbox ADD COLUMN to_node TEXT;
CREATE INDEX outbox_to ON outbox (to_node, seq) WHERE to_node IS NOT NULL;

-- Other gateways as readers of our outbox. `last_seq` is the last event meant for one, `sent_seq`
-- how far it may have heard, `acked_seq` how far it has taken. It missed, for ever, what is not
-- after `cut_seq`: that went while it was away.
ALTER TABLE recipient ADD COLUMN incarnation TEXT;
ALTER TABLE recipient ADD COLUMN sent_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE recipient ADD COLUMN acked_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE recipient ADD COLUMN cut_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE recipient ADD COLUMN seen_at INTEGER NOT NULL DEFAULT 0;

-- What more a sender knows of each message it sent. `node` is where it is routed, `next_at` when to look
-- at it again. `content_key` opens the payload in the outbox, as long as it may have to be sealed
-- anew. `verdict` is what the last owner said after the sender had given up.
ALTER TABLE delivery ADD COLUMN kind TEXT NOT NULL DEFAULT 'message';
ALTER TABLE delivery ADD COLUMN node TEXT;
ALTER TABLE delivery ADD COLUMN offer INTEGER NOT NULL DEFAULT 0;
ALTER TABLE delivery ADD COLUMN attempt INTEGER NOT NULL DEFAULT 1;
ALTER TABLE delivery ADD COLUMN pair_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE delivery ADD COLUMN expires_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE delivery ADD COLUMN next_at INTEGER;
ALTER TABLE delivery ADD COLUMN content_key BLOB;
ALTER TABLE delivery ADD COLUMN verdict TEXT;
ALTER TABLE delivery ADD COLUMN fingerprint BLOB;
ALTER TABLE delivery ADD COLUMN digest TEXT;
CREATE INDEX delivery_due ON delivery (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX delivery_open ON delivery (from_agent, to_agent, pair_seq) WHERE processed_at IS NULL;
CREATE INDEX delivery_digest ON delivery (digest) WHERE digest IS NOT NULL;
CREATE INDEX delivery_node ON delivery (node, event_id) WHERE processed_at IS NULL;

-- What became of nothing: messages given up before any owner took them. Kept until discarded.
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
    ref_id      BLOB,
    verdict     TEXT,
    replayed_as TEXT
) WITHOUT ROWID;
CREATE INDEX undelivered_age ON undelivered (failed_at);

-- A pair as its sender numbers it. `node` is its route, on which everything before `base` is
-- settled; while `moving` is not 0, numbers are open on several routes, and that is how far
-- the one with the lowest was told to go.
ALTER TABLE pair_seq ADD COLUMN node TEXT NOT NULL DEFAULT '';
ALTER TABLE pair_seq ADD COLUMN base INTEGER NOT NULL DEFAULT 1;
ALTER TABLE pair_seq ADD COLUMN moving INTEGER NOT NULL DEFAULT 0;

-- How far this gateway has read other outboxes. `last_to` is the last event there for us, and
-- `last_all` the last for everybody; the next one of each names it as prevSeqTo.
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

-- The inbox: every tracked event taken from another outbox, for as long as it may come again.
CREATE TABLE inbox (
    source   TEXT NOT NULL,
    event_id BLOB NOT NULL,
    state    TEXT NOT NULL,
    seq      INTEGER NOT NULL,
    mailbox  TEXT NOT NULL,
    sender   TEXT NOT NULL,
    corr_id  TEXT NOT NULL,
    pair_seq INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    outcome  TEXT,
    reason   TEXT,
    PRIMARY KEY (source, event_id)
) WITHOUT ROWID;
CREATE INDEX inbox_age ON inbox (at);

-- A pair as its receiver sees it: the next number to accept, how many wait out of turn, how many
-- accepted offers are not decided.
CREATE TABLE inbox_pair (
    source      TEXT NOT NULL,
    sender      TEXT NOT NULL,
    mailbox     TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    next        INTEGER NOT NULL,
    held        INTEGER NOT NULL DEFAULT 0,
    offered     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (source, sender, mailbox)
) WITHOUT ROWID;

-- Events taken but not accepted yet, in the order of their pair. Without a body: a number that will
-- never come.
CREATE TABLE held (
    source   TEXT NOT NULL,
    sender   TEXT NOT NULL,
    mailbox  TEXT NOT NULL,
    pair_seq INTEGER NOT NULL,
    event_id BLOB,
    seq      INTEGER NOT NULL,
    why      TEXT NOT NULL,
    digest   TEXT,
    body     BLOB,
    PRIMARY KEY (source, sender, mailbox, pair_seq)
) WITHOUT ROWID;
CREATE INDEX held_mailbox ON held (mailbox) WHERE why = 'full';
CREATE INDEX held_digest ON held (digest) WHERE digest IS NOT NULL;

-- Offers accepted and not decided by their sender.
CREATE TABLE offered (
    source   TEXT NOT NULL,
    event_id BLOB NOT NULL,
    seq      INTEGER NOT NULL,
    body     BLOB NOT NULL,
    PRIMARY KEY (source, event_id)
) WITHOUT ROWID;

-- Mail of agents that live elsewhere now, on its way to them: `event_id` is ours and stands for
-- `original`, which `source` sent; once it has an `outcome`, `source` was told.
CREATE TABLE handover (
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
CREATE INDEX handover_original ON handover (source, original);
CREATE INDEX handover_age ON handover (at);

-- Agents of this gateway which another one asks for. `take_over`: though they are served here.
CREATE TABLE transfer_request (
    agent     TEXT NOT NULL,
    node      TEXT NOT NULL,
    take_over INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    PRIMARY KEY (agent, node)
) WITHOUT ROWID;

-- Outboxes of others which this gateway keeps for those who cannot reach them. `lives` is the
-- source's own word for them. It is kept from `start` on, and checked up to `seq` of `incarnation`,
-- where the chain is `chain`.
CREATE TABLE relayed (
    source      TEXT PRIMARY KEY,
    lives       BLOB,
    incarnation TEXT NOT NULL DEFAULT '',
    start       INTEGER NOT NULL DEFAULT 0,
    seq         INTEGER NOT NULL DEFAULT 0,
    chain       BLOB
) WITHOUT ROWID;
-- For whom, and where each of them is, in MessagePack, as it said so. Behind that there is nothing
-- for it up to and with `through`.
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

-- An agent may stand by for one that lives behind another gateway.
ALTER TABLE agent ADD COLUMN standby INTEGER NOT NULL DEFAULT 0;

-- What went wrong between gateways, for people; the room hears of the counts only.
CREATE TABLE incident (
    id       TEXT PRIMARY KEY,
    class    TEXT NOT NULL,
    subject  TEXT NOT NULL,
    detail   TEXT NOT NULL,
    raised_at INTEGER NOT NULL,
    source   TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX incident_age ON incident (raised_at);
