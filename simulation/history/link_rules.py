"""The rules of outboxes, links, relays and blobs: one function each."""

from collections import defaultdict
from collections.abc import Iterator
from hashlib import sha256

from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from simulation.history.histories import CheckedMesh, EventHistory
from simulation.history.journals import GatewayJournal
from simulation.history.verdict import HistoryViolation


def _check_chains(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for journal in mesh.journals.values():
        yield from _check_chain(journal)


def _check_chain(journal: GatewayJournal) -> Iterator[HistoryViolation]:
    digests = {event.seq: event.digest for event in journal.events}
    for event in journal.events:
        if sha256(event.body).digest() != event.digest:
            yield HistoryViolation("chain", journal.node, event.event_id, f"digest of {event.seq}")
    starts = {first: incarnation for incarnation, first in journal.incarnations}
    chain, incarnation = b"", ""
    after = (journal.incarnations[0][1] if journal.incarnations else 1) - 1
    for first, last, claimed, signature in journal.heads:
        if first in starts:
            incarnation = starts[first]
            chain = sha256(_frame_parts("gatepost/genesis/1", journal.node, incarnation)).digest()
        if first != after + 1 or not all(seq in digests for seq in range(first, last + 1)):
            yield HistoryViolation(
                "chain", journal.node, "", f"a gap before or in {first} to {last}"
            )
            return
        for seq in range(first, last + 1):
            chain = sha256(chain + digests[seq]).digest()
        if chain != claimed or not _is_signed(journal, incarnation, first, last, chain, signature):
            yield HistoryViolation("chain", journal.node, "", f"the head of {first} to {last}")
            return
        after = last
    if digests and after != max(digests):
        yield HistoryViolation("chain", journal.node, "", f"no head after {after}")


def _is_signed(
    journal: GatewayJournal, incarnation: str, first: int, last: int, chain: bytes, signature: bytes
) -> bool:
    if journal.key is None:
        return True
    span = first.to_bytes(8, "big") + last.to_bytes(8, "big")
    statement = _frame_parts("gatepost/head/1", journal.node, incarnation, span, chain)
    try:
        VerifyKey(journal.key).verify(statement, signature)
    except BadSignatureError:
        return False
    return True


def _frame_parts(domain: str, *parts: str | bytes) -> bytes:
    encoded = [part.encode() if isinstance(part, str) else part for part in (domain, *parts)]
    return b"".join(len(part).to_bytes(4, "big") + part for part in encoded)


def _check_told(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for journal in mesh.journals.values():
        last: dict[str, int] = defaultdict(int)
        for event in journal.events:
            reader = event.to_node_id
            if reader is None or reader == journal.node:
                continue
            if event.prev_seq_to != last[reader]:
                detail = f"{event.seq} for {reader} follows {event.prev_seq_to}, not {last[reader]}"
                yield HistoryViolation("told", journal.node, event.event_id, detail)
            last[reader] = event.seq
        if mesh.drained:
            yield from _check_taken(mesh, journal, last)


def _check_taken(
    mesh: CheckedMesh, journal: GatewayJournal, last: dict[str, int]
) -> Iterator[HistoryViolation]:
    for reader, seq in last.items():
        other = mesh.journals.get(reader)
        if other is None or {reader, journal.node} & (mesh.seen.absent | mesh.seen.lost):
            continue
        mine = (at for (source, _), at in other.cursors.items() if source == journal.node)
        if (taken := max(mine, default=0)) < seq:
            yield HistoryViolation(
                "told", journal.node, "", f"{reader} has read up to {taken} of {seq}"
            )


def _check_written(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    """Applies to outboxes that are whole, from their first event on, and never rewound."""
    for journal in mesh.journals.values():
        for source, event_id in sorted(journal.inbox):
            other = mesh.journals.get(source)
            if other is None or source in ({journal.node} | mesh.seen.restored):
                continue
            if (source, event_id) not in mesh.histories:
                whole = not other.events or other.events[0].seq == other.incarnations[0][1]
                if whole:
                    detail = f"{source} never wrote it"
                    yield HistoryViolation("written", journal.node, event_id, detail)
            elif journal.node not in mesh.histories[source, event_id].routes:
                detail = f"{source} wrote it for others"
                yield HistoryViolation("written", journal.node, event_id, detail)


def _check_complete(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    """Applies to brief histories only, for an inbox is compacted after a while.

    An event for an agent that nobody knows is refused, and has no row in the inbox.
    """
    if not mesh.seen.brief:
        return
    refused = {journal.node: _refused_events(journal) for journal in mesh.journals.values()}
    for history in mesh.histories.values():
        first = history.first
        reader = mesh.journals.get(first.to_node_id or "")
        if reader is None or reader.node == history.source or mesh.is_excused(history):
            continue
        read = reader.cursors.get((history.source, first.incarnation), 0)
        if first.seq > read or history.id in refused[reader.node]:
            continue
        is_lost = not mesh.seen.lost.isdisjoint((history.source, reader.node))
        if is_lost and _is_last_read(mesh, history, reader.node, read):
            # If its emitter left it out of a frame, nothing that follows gives it away.
            continue
        if (history.source, history.id) not in reader.inbox:
            detail = f"{reader.node} has read up to {read}, and never took {first.seq}"
            yield HistoryViolation("complete", history.source, history.id, detail)


def _is_last_read(mesh: CheckedMesh, history: EventHistory, reader: str, read: int) -> bool:
    events = (each for each in mesh.journals[history.source].events if each.to_node_id == reader)
    return history.first.seq == max(each.seq for each in events if each.seq <= read)


def _refused_events(journal: GatewayJournal) -> set[str | None]:
    receipts = [event for event in journal.events if event.kind == "ack"]
    return {each.ref_event_id for each in receipts if each.read_payload()["status"] == "refused"}


def _check_payload(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    """Forwarded mail has another event id: its payload must be any that its sender sent."""
    sent: dict[tuple[str, str], set[str]] = defaultdict(set)
    exact: dict[str, str] = {}
    for send in mesh.seen.sends:
        sent[send.sender, send.target].add(send.payload)
        if send.event_id:
            exact[send.event_id] = send.payload
    for turn in mesh.seen.turns:
        if turn.kind != "message" or not turn.payload:
            continue
        known = exact.get(turn.event_id)
        allowed = sent[turn.sender, turn.agent] if known is None else {known}
        if turn.payload not in allowed:
            detail = f"{turn.agent} got another payload from {turn.sender}"
            yield HistoryViolation("payload", turn.node, turn.event_id, detail)


def _check_reply_payload(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    """A reply to forwarded mail answers another event id: it must be any that its agent gave."""
    given = AgentReplies(mesh)
    for turn in mesh.seen.turns:
        if turn.kind != "reply" or not turn.payload:
            continue
        if turn.payload not in given.find_replies(turn.ref_event_id, turn.sender, turn.agent):
            detail = f"{turn.agent} got another reply than {turn.sender} gave"
            yield HistoryViolation("payload", turn.node, turn.event_id, detail)
    for history in mesh.histories.values() if mesh.seen.turns else ():
        delivery = history.delivery
        if delivery is None or not delivery.reply:
            continue
        pair = (delivery.to_agent, delivery.from_agent)
        if delivery.reply not in given.find_replies(history.id, *pair):
            detail = f"{history.source} keeps another reply than {delivery.to_agent} gave"
            yield HistoryViolation("payload", history.source, history.id, detail)


class AgentReplies:
    """The replies that agents gave in their turns."""

    def __init__(self, mesh: CheckedMesh) -> None:
        self._by_pair: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._by_event: dict[str, set[str]] = defaultdict(set)
        for turn in mesh.seen.turns:
            if turn.reply:
                self._by_pair[turn.agent, turn.sender].add(turn.reply)
                self._by_event[turn.event_id].add(turn.reply)
        self._forwarded = {id for each in mesh.journals.values() for _, id in each.forwarded}

    def find_replies(self, event_id: str, agent: str, sender: str) -> set[str]:
        """All that `agent` may have replied to an event of `sender`."""
        exact = self._by_event.get(event_id)
        if exact and event_id not in self._forwarded:
            return exact
        return self._by_pair[agent, sender]


def _check_blobs(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for history in mesh.histories.values():
        ref = history.first.payload_ref
        for receipt in history.receipts if ref is not None and mesh.seen.blobs else ():
            if receipt.status != "accepted" or mesh.is_premature(history, receipt) or ref is None:
                continue
            digest = ref.digest
            stored = mesh.seen.blobs.get((receipt.node, digest))
            if stored is None or stored > mesh.time_on_disk(receipt.node, receipt.event):
                detail = f"{receipt.node} accepted it before {digest} was there"
                yield HistoryViolation("blob here", receipt.node, history.id, detail)
            elif mesh.journals[receipt.node].blobs.get(digest) != digest:
                detail = f"{digest} is not intact at {receipt.node}"
                yield HistoryViolation("blob here", receipt.node, history.id, detail)


def _check_noticed(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for node, forgery, noticed in mesh.seen.forged:
        if not noticed:
            yield HistoryViolation("noticed", node, "", forgery)


def _check_left_out(mesh: CheckedMesh) -> Iterator[HistoryViolation]:
    for (reader, source, seq), read in mesh.seen.left_out.items() if mesh.drained else ():
        if not read and (mesh.seen.restored | mesh.seen.lost).isdisjoint((reader, source)):
            yield HistoryViolation("left out", reader, "", f"event {seq} of {source} never came")


LINK_RULES = (
    _check_chains,
    _check_told,
    _check_written,
    _check_complete,
    _check_payload,
    _check_reply_payload,
    _check_blobs,
    _check_noticed,
    _check_left_out,
)
