"""One message for several agents: a copy for each, each with its own event id and delivery.

The copies' ids follow from the id of the whole, so that a repeated call finds them again.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from gatepost.delivery.agents import Agents
from gatepost.errors import GatepostError, InvalidTargets
from gatepost.events import format_event_id, parse_event_id
from gatepost.journal.transaction import Tx
from gatepost.routing import RoutingDirectory
from gatepost.wire.operations import Failure, NewSend, Sent

MAX_TARGETS = 1000

# A UUIDv7 begins with its time; the rest of a copy's id is drawn from the id of the whole.
_TIME_BYTES = 6


def find_targets(tx: Tx, new: NewSend, directory: RoutingDirectory, agents: Agents) -> list[str]:
    """The agents a message is for, each once; "*" means every agent of the room but the sender."""
    if isinstance(new.to_agents, UnsetType):
        return [new.to_agent]
    if new.to_agents != "*":
        return list(dict.fromkeys(new.to_agents))
    there = {id for id, home in directory.agents.items() if home.owner is not None}
    there |= {agent.id for agent in agents.list(tx) if not agent.standby}
    found = sorted(there - {new.from_agent})
    if not found:
        raise InvalidTargets("there is no other agent to send this to")
    if len(found) > MAX_TARGETS:
        raise InvalidTargets(
            f"there are {len(found)} agents, and a message goes to {MAX_TARGETS} at most:"
            " name them in several calls"
        )
    return found


def make_copies(
    new: NewSend, whole: str, fingerprint: bytes, to: list[str]
) -> Iterator[tuple[NewSend, bytes]]:
    """Each copy as a separate message, with its fingerprint."""
    corr_id = whole if isinstance(new.corr_id, UnsetType) else new.corr_id
    for agent in to:
        key = new.idempotency_key
        copy = replace(
            new,
            to_agent=agent,
            to_agents=UNSET,
            event_id=copy_event_id(whole, agent),
            corr_id=corr_id,
            # Keys of clients cannot contain a space, so these cannot collide with them.
            idempotency_key=key if isinstance(key, UnsetType) else f"{key} {agent}",
        )
        yield copy, blake2b(fingerprint + agent.encode(), digest_size=16).digest()


def send_copies(
    tx: Tx,
    whole: str,
    copies: Iterable[tuple[NewSend, bytes]],
    send: Callable[[Tx, NewSend, bytes], Sent],
) -> Sent:
    """Send each copy, or report its error; InvalidTargets if none could be sent."""
    sent = [_send_copy(tx, copy, mark, send) for copy, mark in copies]
    failures = [copy.error for copy in sent if copy.error is not None]
    if len(failures) == len(sent):
        raise InvalidTargets(f"it could be sent to none of them: {failures[0].message}")
    (first, *_) = (copy for copy in sent if copy.error is None)
    return Sent(whole, first.corr_id, copies=sent)


def _send_copy(
    tx: Tx, copy: NewSend, fingerprint: bytes, send: Callable[[Tx, NewSend, bytes], Sent]
) -> Sent:
    mark = tx.begin_operation()
    try:
        sent = send(tx, copy, fingerprint)
    except GatepostError as error:
        tx.undo_operation(mark)
        sent = Sent(str(copy.event_id), error=Failure.from_error(error, copy.to_agent))
    else:
        tx.keep_operation()
    sent.to_agent = copy.to_agent
    return sent


def copy_event_id(whole: str, agent: str) -> str:
    id = parse_event_id(whole)
    drawn = bytearray(blake2b(id + agent.encode(), digest_size=16 - _TIME_BYTES).digest())
    drawn[0] = drawn[0] & 0x0F | 0x70
    drawn[2] = drawn[2] & 0x3F | 0x80
    return format_event_id(id[:_TIME_BYTES] + bytes(drawn))
