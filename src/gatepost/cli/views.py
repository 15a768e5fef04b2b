"""What the gateway answers beyond the mailbox protocol; only the fields that are shown."""

from msgspec import Struct


class Agent(Struct):
    id: str
    type: str
    created_at: int
    seen_at: int


class MailboxCounts(Struct):
    name: str
    waiting: int
    in_flight: int
    dead_letters: int


class AuditEntry(Struct):
    at: int
    actor: str
    action: str
    subject: str
    detail: str


class Stored(Struct):
    digest: str
    size: int


class Status(Struct):
    node_id: str
    version: str
    pid: int
    accepting: bool
    problem: str | None
    agents: int
    waiting: int
    in_flight: int
    dead_letters: int
    outbox_seq: int
    journal_bytes: int
