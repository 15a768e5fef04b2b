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
from gatepost.migration.json_values import NotJsonValue, to_json_value

LegacyKind = Literal["messages", "tasks"]

# Marks a record that the mirror wrote, in contrast to one from the legacy system.
EVENT_FIELD = "gatepostEventId"

_SENDER_NAMES = ("fromagentid", "fromagent", "from", "sender")
_RECIPIENT_NAMES = (
    "toagentid",
    "toagent",
    "to",
    "toagents",
    "toagentids",
    "recipient",
    "recipients",
)
# Names are compared without case, dashes and underscores. Each field has one or more groups of
# spellings. Values under spellings of one group must agree; a later group is used only if the
# groups before it have no value.
_FIELDS_BY_KIND: dict[LegacyKind, dict[str, tuple[tuple[str, ...], ...]]] = {
    "messages": {
        "sender": (_SENDER_NAMES, ("fromnodeid", "fromnode")),
        "to": (_RECIPIENT_NAMES, ("tonodeid", "tonode")),
        "body": (("content", "text", "body", "payload"),),
    },
    "tasks": {
        "sender": (
            _SENDER_NAMES,
            ("createdby", "createdbyagent", "createdbyagentid"),
            ("fromnodeid",),
        ),
        "to": (
            ("assignedto", "assignedtoagent", "assignedtoagentid", "assignee"),
            _RECIPIENT_NAMES,
        ),
        "body": (("title",), ("description",), ("content", "text", "body", "payload")),
    },
}
_SHARED_FIELDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "corr_id": (("corrid", "correlationid"),),
    "status": (("status", "state"),),
    "created_at": (("createdat",), ("timestamp",), ("created",)),
    "seen_by": (("readby", "readbyagents", "deliveredto"),),
    "event_id": ((EVENT_FIELD.lower(),),),
}
# Known but not needed: a task is sent whole, and the id is the key in its map.
_IGNORED_FIELDS = {
    "messages": {"id", "messageid"},
    "tasks": {"id", "taskid", "description", "result"},
}

_OPEN_STATUSES: dict[LegacyKind, frozenset[str]] = {
    "messages": frozenset({"pending", "queued", "new", "sent", "unread"}),
    "tasks": frozenset({"pending", "open", "assigned", "claimed", "accepted", "inprogress"}),
}
_DONE_STATUSES: dict[LegacyKind, frozenset[str]] = {
    "messages": frozenset({"delivered", "read", "acked", "processed"}),
    "tasks": frozenset({"completed", "complete", "done", "failed", "cancelled", "canceled"}),
}

# Tells seconds from milliseconds: read in the wrong unit, a time is before 1974 or after 5138.
_MILLIS_FROM, _MILLIS_TO = 10**11, 10**14


class LegacyItem(Struct, frozen=True, kw_only=True):
    """One legacy record for one agent. `record` is the source record."""

    kind: LegacyKind
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


class RejectedItem(Struct, frozen=True):
    """An item that cannot be imported: `code` for counting, `reason` for a person."""

    kind: LegacyKind
    id: str
    code: str
    reason: str
    record: Any
    to: str | None = None


class AgentNames(Struct, frozen=True):
    """Maps legacy names to agents; `sender` is the default where a record names none."""

    agents: Mapping[str, str] = msgspec.field(default_factory=dict)
    sender: str = "legacy"


class _RecordNotUnderstood(Exception):
    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def parse_legacy_record(
    kind: LegacyKind, id: str, record: Any, names: AgentNames
) -> list[LegacyItem | RejectedItem]:
    """Parse a record into at least one item or reject, so that no record gets lost."""
    try:
        return list(_parse_items(kind, id, record, names))
    except _RecordNotUnderstood as problem:
        return [RejectedItem(kind, id, problem.code, problem.reason, record)]


def unmapped_fields(kind: LegacyKind, record: Any) -> list[str]:
    """Names of fields that the import drops. A task is sent whole, so it has none."""
    if kind == "tasks" or not isinstance(record, dict):
        return []
    fields = [*_FIELDS_BY_KIND[kind].values(), *_SHARED_FIELDS.values()]
    known = {name for field in fields for group in field for name in group} | _IGNORED_FIELDS[kind]
    return [key for key in record if isinstance(key, str) and _normalize_name(key) not in known]


def sort_by_age(items: Iterable[LegacyItem]) -> list[LegacyItem]:
    """Sort oldest first. Items without a date come last, in their original order."""
    return sorted(items, key=lambda item: (item.created_at is None, item.created_at or 0))


def _parse_items(kind: LegacyKind, id: str, record: Any, names: AgentNames) -> Iterator[LegacyItem]:
    fields = _RecordFields(kind, id, record)
    sender = _parse_agent(fields.agreed_value("sender") or names.sender, "sender", names)
    body = _build_payload(kind, id, fields)
    status, seen_by = (
        _parse_status(kind, fields.agreed_value("status")),
        _parse_seen_by(fields.agreed_value("seen_by")),
    )
    corr_id, created_at = (
        _parse_corr_id(fields.agreed_value("corr_id")),
        _parse_millis(fields.agreed_value("created_at")),
    )
    for to, legacy_name in _parse_recipients(fields.values_of("to"), names).items():
        yield LegacyItem(
            kind=kind,
            id=id,
            sender=sender,
            to=to,
            payload=body,
            key=legacy_key(kind, id, legacy_name),
            digest=_content_digest(kind, id, legacy_name, fields),
            record=fields.record,
            corr_id=corr_id,
            created_at=created_at,
            done=status == "done" or legacy_name in seen_by,
            event_id=_parse_event_id(fields.agreed_value("event_id")),
        )


class _RecordFields:
    """A record's fields, looked up under their canonical names."""

    def __init__(self, kind: LegacyKind, id: str, record: Any) -> None:
        try:
            to_json_value(id)
            self.record = to_json_value(record)
        except NotJsonValue as error:
            raise _RecordNotUnderstood("not_json", f"this is not a JSON record: {error}") from None
        if not isinstance(self.record, dict):
            raise _RecordNotUnderstood("not_a_record", "this is not a record with fields")
        self._groups = _FIELDS_BY_KIND[kind] | _SHARED_FIELDS
        self._values_by_name: dict[str, list[tuple[str, Any]]] = {}
        for key, value in self.record.items():
            if value is not None:
                self._values_by_name.setdefault(_normalize_name(key), []).append((key, value))

    def values_of(self, field: str) -> list[tuple[str, Any]]:
        """(Key, value) of all spellings present, from the first group with any."""
        for group in self._groups[field]:
            if found := [pair for name in group for pair in self._values_by_name.get(name, [])]:
                return found
        return []

    def agreed_value(self, field: str) -> Any:
        """The value of all spellings present, which must agree; None without any."""
        found = self.values_of(field)
        for key, value in found[1:]:
            if value != found[0][1]:
                raise _ambiguous_error(found[0][0], key)
        return found[0][1] if found else None


def _normalize_name(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()


def _ambiguous_error(one: str, other: str) -> _RecordNotUnderstood:
    return _RecordNotUnderstood("ambiguous", f"`{one}` and `{other}` have different values")


def _parse_agent(name: Any, role: str, names: AgentNames) -> str:
    if not isinstance(name, str):
        raise _RecordNotUnderstood("bad_agent", f"the {role} is not a name")
    mapped = names.agents.get(name.strip(), name.strip())
    try:
        return check_agent_id(mapped)
    except InvalidId as error:
        advice = f"rename it with --map-agent '{name[:40]}=NAME'"
        raise _RecordNotUnderstood("bad_agent", f"{role}: {error.message}; {advice}") from None


def _parse_recipients(found: list[tuple[str, Any]], names: AgentNames) -> dict[str, str]:
    """Legacy name by agent of each recipient. Two names of one agent count once."""
    spelled = [(key, value if isinstance(value, list) else [value]) for key, value in found]
    for key, value in spelled[1:]:
        if value != spelled[0][1]:
            raise _ambiguous_error(spelled[0][0], key)
    recipients: dict[str, str] = {}
    for name in spelled[0][1] if spelled else []:
        recipients.setdefault(_parse_agent(name, "recipient", names), name.strip())
    if not recipients:
        raise _RecordNotUnderstood("no_recipient", "the record names no recipient")
    return recipients


def _build_payload(kind: LegacyKind, id: str, fields: _RecordFields) -> Any:
    body = fields.agreed_value("body")
    if body is None:
        raise _RecordNotUnderstood("no_content", "the record has nothing to deliver")
    return body if kind == "messages" else {"legacyTask": {"id": id} | fields.record}


def _parse_status(kind: LegacyKind, status: Any) -> Literal["open", "done"]:
    if status is None:
        return "open"
    name = _normalize_name(status.strip()) if isinstance(status, str) else ""
    if name in _OPEN_STATUSES[kind]:
        return "open"
    if name in _DONE_STATUSES[kind]:
        return "done"
    raise _RecordNotUnderstood("bad_status", f"unknown status {str(status)[:40]!r}")


def _parse_seen_by(names: Any) -> set[str]:
    if not isinstance(names, list | dict | None):
        raise _RecordNotUnderstood("bad_status", "the field of readers is not a list of names")
    return {name for name in names or () if isinstance(name, str)}


def _parse_corr_id(value: Any) -> str | None:
    if value is None or value == "":
        return None
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    try:
        return check_msg_id(text if isinstance(text, str) else "")
    except InvalidId as error:
        raise _RecordNotUnderstood("bad_corr_id", f"correlation id: {error.message}") from None


def _parse_event_id(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _parse_millis(value: Any) -> int | None:
    if value is None:
        return None
    number = _parse_number(value)
    if number is None or not 0 < number < _MILLIS_TO:
        raise _RecordNotUnderstood("bad_time", f"{str(value)[:40]!r} is not a time")
    return int(number if number >= _MILLIS_FROM else number * 1000)


def _parse_number(value: Any) -> float | None:
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


def legacy_key(kind: LegacyKind, id: str, legacy_name: str) -> str:
    """The idempotency key of an item. It stays the same when agents are renamed."""
    return f"legacy:{kind}:{_hash_json([kind, id, legacy_name])[:40]}"


def _content_digest(kind: LegacyKind, id: str, to: str, fields: _RecordFields) -> str:
    """Digest of the content that must not change after the import. Status and result may."""
    bodies = [fields.record.get(name) for name in ("title", "description")]
    content = [fields.agreed_value("body"), *(bodies if kind == "tasks" else [])]
    return _hash_json([kind, id, fields.agreed_value("sender"), to, content])


def _hash_json(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()
