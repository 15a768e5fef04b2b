"""A stopped gateway's journal, read as plainly as possible."""

from bisect import bisect_left
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec import Raw, Struct

from gatepost.clock import SystemClock
from gatepost.errors import GatepostError
from gatepost.events import BlobStore

# Stands for a blob that is gone or damaged; it is no payload that anybody ever sent.
_UNREADABLE = b"unreadable"
# mail.state in the schema; mail in a lower state is still waiting or leased.
ACKED, DEAD, EXPIRED = 3, 4, 5

_EVENTS = "SELECT seq, body, digest FROM outbox ORDER BY seq"
_HEADS = "SELECT first_seq, last_seq, chain, signature FROM head ORDER BY last_seq"
_INCARNATIONS = "SELECT id, first_seq FROM incarnation ORDER BY first_seq"
_DELIVERIES = """
SELECT event_id, state, outcome, node, verdict, processed_at IS NOT NULL, pair_seq, from_agent,
    to_agent, reply, reply_ref FROM delivery
"""
_BLOB_KEYS = "SELECT digest, key FROM blob"
_MAIL = """
SELECT m.msg_id, b.name, m.state, m.tracked FROM mail m JOIN mailbox b ON b.id = m.mailbox
"""
_PASSED_ON = "SELECT source, original, event_id FROM forwarded"
_ATTEMPTS = "SELECT event_id, task FROM task_attempt"
_LIVE_TOKENS = "SELECT task FROM task_token WHERE revoked_at IS NULL"
_TASKS = """
SELECT t.id, t.agent, t.requester_node, t.executor, t.executor_node, t.state, t.error_code,
    p.result, p.result_ref FROM task t JOIN task_payload p ON p.id = t.id
"""
_COUNT_PUBLISHED = "SELECT count(*) FROM capability"
_COUNT_OFFERS = "SELECT source, count(*) FROM skill_offer GROUP BY source"
_INBOX = "SELECT source, event_id FROM inbox"
_CURSORS = "SELECT source, incarnation, seq FROM cursor"


class JournalPayloadRef(Struct):
    digest: str


class JournalEvent(Struct, rename="camel"):
    """As much of an envelope as a checker needs."""

    event_id: str
    seq: int
    kind: str
    source_node_id: str
    source_agent_id: str
    created_at: int
    pair_seq: int = 0
    prev_seq_to: int = 0
    to_node_id: str | None = None
    to_agent_id: str | None = None
    ref_event_id: str | None = None
    origin_node_id: str | None = None
    offer: int = 0
    payload_ref: JournalPayloadRef | None = None
    payload: Raw = Raw(b"{}")
    incarnation: str = ""
    body: bytes = b""
    digest: bytes = b""

    @property
    def is_whole(self) -> bool:
        """Whether it has its payload; a retry has none."""
        return self.payload_ref is not None or bytes(self.payload) != b"{}"

    def read_payload(self) -> dict[str, Any]:
        """The payload, of kinds that travel in the clear."""
        said: dict[str, Any] = msgspec.json.decode(self.payload)
        return said


class JournalDelivery(Struct):
    """`reply` is the digest of the reply's plain content; empty if there is none to be read."""

    state: str
    outcome: str | None
    node: str | None
    verdict: str | None
    closed: bool
    pair_seq: int
    from_agent: str
    to_agent: str
    reply: str = ""


class JournalMail(Struct):
    event_id: str
    mailbox: str
    state: int


class JournalTask(Struct):
    """`result` is the digest of the result's plain content; empty if there is none to be read."""

    id: str
    agent: str
    requester_node: str | None
    executor: str
    executor_node: str | None
    state: str
    error_code: str | None
    result: str = ""

    @property
    def has_ended(self) -> bool:
        return self.state in ("completed", "failed", "cancelled")


class GatewayJournal(Struct):
    """`key` is the node's public key; without it signatures are not looked at. `forwarded` is mail
    that another gateway got to deal with, as (source, event); `forwards` maps the events that stand
    for it, and further attempts at tasks, to their originals; `stands_for` maps the events that
    stand for forwarded mail to its (source, event). `published` counts its capabilities,
    `offers` the skills that it has from each other gateway.
    `live_tokens` are the tasks whose sessions have a token that is not revoked.
    """

    node: str
    key: bytes | None
    incarnations: list[tuple[str, int]]
    events: list[JournalEvent]
    heads: list[tuple[int, int, bytes, bytes]]
    deliveries: dict[str, JournalDelivery]
    mail: list[JournalMail]
    cursors: dict[tuple[str, str], int]
    forwarded: set[tuple[str, str]]
    inbox: set[tuple[str, str]]
    blobs: dict[str, str]
    tasks: dict[str, JournalTask]
    live_tokens: set[str]
    forwards: dict[str, str]
    stands_for: dict[str, tuple[str, str]]
    published: int
    offers: dict[str, int]

    def last_of_group(self, seq: int) -> int:
        """The last event of the commit group that an event belongs to."""
        group = bisect_left(self.heads, seq, key=itemgetter(1))
        return self.heads[group][1] if group < len(self.heads) else seq


_decode = msgspec.json.Decoder(JournalEvent).decode


def read_journal(path: Path, key: bytes | None = None, blobs: Path | None = None) -> GatewayJournal:
    """Read everything the checker wants; the gateway must not be running.

    `blobs` is the gateway's folder of blobs.
    """
    connection = apsw.Connection(f"file:{path}?mode=ro", flags=_FLAGS)
    try:
        return _read(connection, key, blobs)
    finally:
        connection.close()


_FLAGS = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI


def _read(connection: apsw.Connection, key: bytes | None, blobs: Path | None) -> GatewayJournal:
    def rows(sql: str) -> list[Any]:
        return connection.execute(sql).fetchall()

    ((node,),) = rows("SELECT value FROM fact WHERE name = 'node_id'")
    incarnations = rows(_INCARNATIONS)
    forwards, keys = rows(_PASSED_ON), dict(rows(_BLOB_KEYS))
    return GatewayJournal(
        node=str(node),
        key=key,
        incarnations=incarnations,
        events=[_event(incarnations, *row) for row in rows(_EVENTS)],
        heads=rows(_HEADS),
        deliveries=_read_deliveries(rows(_DELIVERIES), keys, blobs),
        mail=[JournalMail(*row) for *row, tracked in rows(_MAIL) if tracked],
        cursors={(source, incarnation): seq for source, incarnation, seq in rows(_CURSORS)},
        forwarded={(source, _id(original)) for source, original, _ in forwards},
        inbox={(source, _id(event)) for source, event in rows(_INBOX)},
        blobs=_digest_blobs(blobs),
        tasks=_read_tasks(rows(_TASKS), keys, blobs),
        live_tokens={_id(task) for (task,) in rows(_LIVE_TOKENS)},
        forwards={_id(event): _id(original) for _, original, event in forwards}
        | {_id(event): _id(task) for event, task in rows(_ATTEMPTS)},
        stands_for={_id(event): (source, _id(original)) for source, original, event in forwards},
        published=rows(_COUNT_PUBLISHED)[0][0],
        offers=dict(rows(_COUNT_OFFERS)),
    )


def _event(
    incarnations: list[tuple[str, int]], seq: int, body: bytes, digest: bytes
) -> JournalEvent:
    event = _decode(body)
    event.body, event.digest = body, digest
    begun = (each for each in incarnations if each[1] <= seq)
    event.incarnation = max(begun, key=lambda each: each[1])[0]
    return event


def _read_deliveries(
    rows: list[Any], keys: dict[str, bytes], blobs: Path | None
) -> dict[str, JournalDelivery]:
    found = {}
    for id, *known, reply, digest in rows:
        content = reply if digest is None else _read_blob(blobs, digest, keys.get(digest))
        found[_id(id)] = delivery = JournalDelivery(*known)
        delivery.reply = "" if content is None else sha256(content).hexdigest()
    return found


def _read_tasks(
    rows: list[Any], keys: dict[str, bytes], blobs: Path | None
) -> dict[str, JournalTask]:
    found = {}
    for id, *known, result, digest in rows:
        content = result if digest is None else _read_blob(blobs, digest, keys.get(digest))
        found[_id(id)] = task = JournalTask(_id(id), *known)
        task.result = "" if content is None else sha256(content).hexdigest()
    return found


def _read_blob(blobs: Path | None, digest: str, key: bytes | None) -> bytes | None:
    if blobs is None or key is None:
        return None
    try:
        return b"".join(BlobStore(blobs, SystemClock()).read_payload(digest, key))
    except (GatepostError, OSError):
        return _UNREADABLE


def _id(data: bytes) -> str:
    text = data.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _digest_blobs(folder: Path | None) -> dict[str, str]:
    """Name and true digest of each blob file."""
    files = [] if folder is None or not folder.is_dir() else sorted(folder.iterdir())
    return {
        f"sha256:{file.name}": f"sha256:{sha256(file.read_bytes()).hexdigest()}"
        for file in files
        if not file.name.startswith("tmp-")
    }
