"""Builds new messages from the arguments of a call, and checks their names and ids."""

from msgspec import Raw

from gatepost.client._encoding import Moment, check_encodable, to_epoch_secs, unset_if_none
from gatepost.errors import InvalidRequest
from gatepost.events import EventIdGenerator, Order, check_agent_id, check_msg_id
from gatepost.wire.operations import PROTOCOL_VERSION, NewMessage

_NOTHING_GIVEN = (None,) * 5


class MessageDrafts:
    """`name` is the sender of calls without `from_`. A name that was checked once is remembered."""

    def __init__(self, name: str | None, ids: EventIdGenerator) -> None:
        self._name = name
        self._ids = ids
        self._names: set[str] = set()

    def next_id(self) -> str:
        return self._ids.next_id()

    def new_message(
        self,
        to: str,
        from_: str | None,
        payload: Raw,
        msg_id: str | None,
        created_at: int | None,
        ttl_secs: float | None,
        order: Order | None = None,
        not_before: Moment | None = None,
        max_retries: int | None = None,
    ) -> NewMessage:
        self.check_name(to)
        id = self._ids.next_id() if msg_id is None else check_msg_id(msg_id)
        new = NewMessage(
            self.resolve_sender(from_), to, payload, id, protocol_version=PROTOCOL_VERSION
        )
        if (created_at, ttl_secs, order, not_before, max_retries) != _NOTHING_GIVEN:
            new.created_at, new.ttl_secs = unset_if_none(created_at), unset_if_none(ttl_secs)
            new.order, new.not_before = unset_if_none(order), to_epoch_secs(not_before)
            new.max_retries = unset_if_none(max_retries)
            check_encodable(new)
        return new

    def resolve_sender(self, from_: str | None) -> str:
        sender = from_ or self._name
        if sender is None:
            raise InvalidRequest("name the sender: pass `from_=`, or `Client(name)` for all calls")
        self.check_name(sender)
        return sender

    def check_name(self, name: str) -> None:
        if name not in self._names:
            self._names.add(check_agent_id(name))
