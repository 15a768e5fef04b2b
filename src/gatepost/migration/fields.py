"""Parses legacy records, in all their spellings, into items to import.

A record may have several recipients. Each recipient gives one item, because each is delivered,
refused or finished on its own. A record that cannot be parsed gives a RejectedItem with the reason.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gatepost.errors import InvalidId
from gatepost.events import check_agent_id, check_msg_id
from gatepost.migration.values import NotPlain, plain

Kind = Literal["messages", "tasks"]

# Marks a record that the mirror wrote, in contrast to one from the legacy system.
EVENT_FIELD = "gatepostEventId"

_SENDER = ("fromagentid", "fromagent", "from", "sender")
_TO = ("toagentid", "toagent", "to", "toagents", "toagentids", "recipient", "recipients")
# Names are compared without case, dashes and underscores. Each field has one or more groups of
# spellings. Values under spellings of one group must agree; a later group is used only if the
# groups before it have no value.
_FIELDS: dict[Kind, dict[str, tuple[tuple[str, ...], ...]]] = {
    "messages": {
        "sender": (_SENDER, ("fromnodeid", "fromnode")),
        "to": (_TO, ("tonodeid", "tonode")),
        "body": (("content", "text", "body", "payload"),),
    },
    "tasks": {
        "sender": (_SENDER, ("createdby", "createdbyagent", "createdbyagentid"), ("fromnodeid",)),
        "to": (("assignedto", "assignedtoagent", "assignedtoagentid", "assignee"), _TO),
        "body": (("title",), ("description",), ("content", "text", "body", "payload")),
    },
}
_SHARED: dict[str, tuple[tuple[str, ...], ...]] = {
    "corr_id": (("corrid", "correlationid"),),
    "status": (("status", "state"),),
    "created_at": (("createdat",), ("timestamp",), ("created",)),
    "seen_by": (("readby", "readbyagents", "deliveredto"),),
    "event_id": ((EVENT_FIELD.lower(),),),
}
# Known but not needed: a task is sent whole, and the id is the key in its map.
_IGNORED = {"messages": {"id", "messageid"}, "tasks": {"id", "taskid", "description", "result"}}

_OPEN: dict[Kind, frozenset[str]] = {
    "messages": frozenset({"pending", "queued", "new", "sent", "unread"}),
    "tasks": frozenset({"pending", "open", "assigned", "claimed", "accepted", "inprogress"}),
}
_DONE: dict[Kind, frozenset[str]] = {
    "messages": frozenset({"delivered", "read", "acked", "processed"}),
    "tasks": frozenset({"completed", "complete", "done", "failed", "cancelled", "canceled"}),
}

# Tells seconds from milliseconds: read in the wrong unit, a time is before 1974 or after 5138.
_MILLIS_FROM, _MILLIS_TO = 10**11, 10**14


class Item(Struct, frozen=True, kw_only=True):
    """One legacy record for one agent. `record` is the source record."""

    kind: Kind
    id: str
    sender: str
    to: str
    payload: Any
    key: str
    digest: str
    record: Any
    corr_id: str | None = None
    created_at: int | None = None
    done: bool = False
    event_id: str | None = None


class Reject(Struct, frozen=True):
    """An item that cannot be imported: `code` for counting, `reason` for a person."""

    kind: Kind
    id: str
    code: str
    reason: str
    record: Any
    to: str | None = None


class Names(Struct, frozen=True):
    """Maps legacy names to agents; `sender` is the default where a record names none."""

    agents: Mapping[str, str] = msgspec.field(default_factory=dict)
    sender: str = "legacy"


class _NotUnderstood(Exception):
    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def understand(kind: Kind, id: str, record: Any, names: Names) -> list[Item | Reject]:
    """Parse a record into at least one item or reject, so that no record gets lost."""
    try:
        return list(_items(kind, id, record, names))
    except _NotUnderstood as problem:
        return [Reject(kind, id, problem.code, problem.reason, record)]


def unmapped(kind: Kind, record: Any) -> list[str]:
    """Names of fields that the import drops. A task is sent whole, so it has none."""
    if kind == "tasks" or not isinstance(record, dict):
        return []
    fields = [*_FIELDS[kind].values(), *_SHARED.values()]
    known = {name for field in fields for group in field for name in group} | _IGNORED[kind]
    return [key for key in record if isinstance(key, str) and _bare(key) not in known]


def by_age(items: Iterable[Item]) -> list[Item]:
    """Sort oldest first. Items without a date come last, in their original order."""
    return sorted(items, key=lambda item: (item.created_at is None, item.created_at or 0))


def _items(kind: Kind, id: str, record: Any, names: Names) -> Iterator[Item]:
    fields = _Fields(kind, id, record)
    sender = _agent(fields.first("sender") or names.sender, "sender", names)
    body = _payload(kind, id, fields)
    status, seen_by = _status(kind, fields.first("status")), _seen_by(fields.first("seen_by"))
    corr_id, created_at = _corr_id(fields.first("corr_id")), _millis(fields.first("created_at"))
    for to, legacy_name in _recipients(fields.values("to"), names).items():
        yield Item(
            kind=kind,
            id=id,
            sender=sender,
            to=to,
            payload=body,
            key=legacy_key(kind, id, legacy_name),
            digest=_digest(kind, id, legacy_name, fields),
            record=fields.record,
            corr_id=corr_id,
            created_at=created_at,
            done=status == "done" or legacy_name in seen_by,
            event_id=_event_id(fields.first("event_id")),
        )


class _Fields:
    """A record's fields, looked up under their canonical names."""

    def __init__(self, kind: Kind, id: str, record: Any) -> None:
        try:
            plain(id)
            self.record = plain(record)
        except NotPlain as error:
            raise _NotUnderstood("not_json", f"this is not a JSON record: {error}") from None
        if not isinstance(self.record, dict):
            raise _NotUnderstood("not_a_record", "this is not a record with fields")
        self._groups = _FIELDS[kind] | _SHARED
        self._found: dict[str, list[tuple[str, Any]]] = {}
        for key, value in self.record.items():
            if value is not None:
                self._found.setdefault(_bare(key), []).append((key, value))

    def values(self, field: str) -> list[tuple[str, Any]]:
        """(Key, value) of all spellings present, from the first group with any."""
        for group in self._groups[field]:
            if found := [pair for name in group for pair in self._found.get(name, [])]:
                return found
        return []

    def first(self, field: str) -> Any:
        """The value of all spellings present, which must agree; None without any."""
        found = self.values(field)
        for key, value in found[1:]:
            if value != found[0][1]:
                raise _ambiguous(found[0][0], key)
        return found[0][1] if found else None


def _bare(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()


def _ambiguous(one: str, other: str) -> _NotUnderstood:
    return _NotUnderstood("ambiguous", f"`{one}` and `{other}` have different values")


def _agent(name: Any, role: str, names: Names) -> str:
    if not isinstance(name, str):
        raise _NotUnderstood("bad_agent", f"the {role} is not a name")
    mapped = names.agents.get(name.strip(), name.strip())
    try:
        return check_agent_id(mapped)
    except InvalidId as error:
        advice = f"rename it with --map-agent '{name[:40]}=NAME'"
        raise _NotUnderstood("bad_agent", f"{role}: {error.message}; {advice}") from None


def _recipients(found: list[tuple[str, Any]], names: Names) -> dict[str, str]:
    """Legacy name by agent of each recipient. Two names of one agent count once."""
    spelled = [(key, value if isinstance(value, list) else [value]) for key, value in found]
    for key, value in spelled[1:]:
        if value != spelled[0][1]:
            raise _ambiguous(spelled[0][0], key)
    recipients: dict[str, str] = {}
    for name in spelled[0][1] if spelled else []:
        recipients.setdefault(_agent(name, "recipient", names), name.strip())
    if not recipients:
        raise _NotUnderstood("no_recipient", "the record names no recipient")
    return recipients


def _payload(kind: Kind, id: str, fields: _Fields) -> Any:
    body = fields.first("body")
    if body is None:
        raise _NotUnderstood("no_content", "the record has nothing to deliver")
    return body if kind == "messages" else {"legacyTask": {"id": id} | fields.record}


def _status(kind: Kind, status: Any) -> Literal["open", "done"]:
    if status is None:
        return "open"
    name = _bare(status.strip()) if isinstance(status, str) else ""
    if name in _OPEN[kind]:
        return "open"
    if name in _DONE[kind]:
        return "done"
    raise _NotUnderstood("bad_status", f"unknown status {str(status)[:40]!r}")


def _seen_by(names: Any) -> set[str]:
    if not isinstance(names, list | dict | None):
        raise _NotUnderstood("bad_status", "the field of readers is not a list of names")
    return {name for name in names or () if isinstance(name, str)}


def _corr_id(value: Any) -> str | None:
    if value is None or value == "":
        return None
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    try:
        return check_msg_id(text if isinstance(text, str) else "")
    except InvalidId as error:
        raise _NotUnderstood("bad_corr_id", f"correlation id: {error.message}") from None


def _event_id(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _millis(value: Any) -> int | None:
    if value is None:
        return None
    number = _as_number(value)
    if number is None or not 0 < number < _MILLIS_TO:
        raise _NotUnderstood("bad_time", f"{str(value)[:40]!r} is not a time")
    return int(number if number >= _MILLIS_FROM else number * 1000)


def _as_number(value: Any) -> float | None:
    if isinstance(value, int | float):
        return None if isinstance(value, bool) else value
    if not isinstance(value, str):
        return None
    if value.strip().isdecimal():
        return int(value) if len(value) < 20 else None
    try:
        moment = datetime.fromisoformat(value.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000
    except (ValueError, OverflowError):
        return None


def legacy_key(kind: Kind, id: str, legacy_name: str) -> str:
    """The idempotency key of an item. It stays the same when agents are renamed."""
    return f"legacy:{kind}:{_hash([kind, id, legacy_name])[:40]}"


def _digest(kind: Kind, id: str, to: str, fields: _Fields) -> str:
    """Digest of the content that must not change after the import. Status and result may."""
    bodies = [fields.record.get(name) for name in ("title", "description")]
    content = [fields.first("body"), *(bodies if kind == "tasks" else [])]
    return _hash([kind, id, fields.first("sender"), to, content])


def _hash(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()
