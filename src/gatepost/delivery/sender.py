"""The sender's side: every message it emits is a delivery it follows until it is settled.

It is told by receipts, by time, and by what changes in the room. Only a receipt from the node a
message is routed to counts. All of it runs in the writer's thread.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Struct

from gatepost.delivery.incidents import Incidents
from gatepost.delivery.node import Node
from gatepost.delivery.pairs import Pair, Pairs, Place
from gatepost.delivery.patience import Patience
from gatepost.delivery.states import UNACCEPTED, Input, move
from gatepost.errors import GatepostError, NoRoute, SealError, UnknownBlob
from gatepost.events import (
    DeadLetter,
    Kind,
    PayloadRef,
    Receipt,
    Sealed,
    Signal,
    Trace,
    decode,
    decode_payload,
    encode_payload,
    format_event_id,
    parse_event_id,
)
from gatepost.journal.outbox import Draft
from gatepost.journal.tx import Row, Tx
from gatepost.routing import Directory, Route

_BATCH = 500

_OPEN = """
INSERT INTO delivery (event_id, kind, from_agent, to_agent, corr_id, state, emitted_at, accepted_at,
    replies_to, node, offer, pair_seq, expires_at, next_at, content_key, fingerprint, digest)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_FIELDS = """event_id, kind, from_agent, to_agent, corr_id, state, node, offer, attempt, pair_seq,
    expires_at, accepted_at, content_key, digest, reason"""
_FIND = f"SELECT {_FIELDS} FROM delivery WHERE event_id = ?"
_DUE = f"SELECT {_FIELDS} FROM delivery WHERE next_at <= ? ORDER BY next_at LIMIT {_BATCH}"
_NEXT_DUE = "SELECT min(next_at) FROM delivery WHERE next_at IS NOT NULL"
# Planned by a clock that was ahead. What waits until it expires does so by the time of day.
_SOONER = """
UPDATE delivery SET next_at = ?1 WHERE next_at > ?1 AND next_at < expires_at AND state = ?2
"""
_LATER = "UPDATE delivery SET next_at = ? WHERE event_id = ?"
_UNACCEPTED = ", ".join(f"'{state}'" for state in UNACCEPTED)


def _update(event: Input, assignments: str, returning: str = "") -> str:
    target, guard = move(event)
    tail = f" RETURNING {returning}" if returning else ""
    return f"UPDATE delivery SET {target}, {assignments} WHERE event_id = ? AND {guard}{tail}"


_ACCEPT = (
    _update(Input.ACCEPT, "accepted_at = ?, next_at = ?").replace(
        "WHERE event_id = ?", "WHERE event_id = ? AND node = ?"
    )
    + " RETURNING offer, corr_id, kind, emitted_at"
)
_PROCESS = _update(
    Input.PROCESS,
    "outcome = ?, reason = ?, processed_at = ?, next_at = NULL, content_key = NULL,"
    " accepted_at = coalesce(accepted_at, processed_at, ?)",
).replace("WHERE event_id = ?", "WHERE event_id = ? AND node = ?") + (
    " RETURNING from_agent, to_agent, corr_id, replies_to, kind, emitted_at"
)
_REPLY = _update(
    Input.REPLY,
    "outcome = 'ok', processed_at = ?, next_at = NULL, content_key = NULL, reply = ?,"
    " accepted_at = coalesce(accepted_at, ?)",
).replace("WHERE event_id = ?", "WHERE event_id = ? AND node = ?") + (
    " RETURNING from_agent, to_agent, corr_id, replies_to, kind, emitted_at"
)
_TIMEOUT = _update(Input.TIMEOUT, "next_at = ?")
_RETRY = _update(Input.RETRY, "attempt = ?, next_at = ?")
_REROUTE = _update(
    Input.REROUTE, "node = ?, offer = ?, attempt = ?, next_at = ?, content_key = ?, reason = NULL"
)
# Refused by a gateway that says the agent lives elsewhere now, and nobody else has it.
_PARK = _update(Input.TIMEOUT, "reason = 'moved', next_at = ?")
_UNPARK = f"""
UPDATE delivery SET next_at = ? WHERE processed_at IS NULL AND node = ? AND to_agent = ?
    AND state IN ({_UNACCEPTED}) AND reason = 'moved'
"""
_BREACH = _update(Input.BREACH, "next_at = ?")
# Without a number it has no place in its pair, so nobody waits for it.
_DOUBT = _update(Input.DOUBT, "next_at = ?, offer = 0, pair_seq = 0")
_DOUBTFUL = f"""
SELECT {_FIELDS} FROM delivery WHERE processed_at IS NULL AND node <> ? AND pair_seq > 0 LIMIT ?
"""
# Pairs that go to a node, or of which something is open there, and what is open elsewhere.
_PAIRS_AT = """
SELECT from_agent, to_agent, last, (
    SELECT min(pair_seq) FROM delivery d
    WHERE d.from_agent = p.from_agent AND d.to_agent = p.to_agent AND d.processed_at IS NULL
    AND d.node IS NOT ?1 AND d.pair_seq > 0
) FROM pair_seq p WHERE node = ?1 OR (from_agent, to_agent) IN (
    SELECT from_agent, to_agent FROM delivery WHERE node = ?1 AND processed_at IS NULL
)
"""
_GIVE_UP = _update(
    Input.GIVE_UP,
    "outcome = 'dead_letter', reason = ?, processed_at = ?, next_at = NULL, content_key = NULL",
)
_AMEND = """
UPDATE delivery SET verdict = ? WHERE event_id = ? AND node = ? AND state = 'dead_letter'
"""
_ROUTED = "SELECT 1 FROM delivery WHERE event_id = ? AND node = ?"
# That a turn has ended is the last word about it.
_AMEND_LETTER = """
UPDATE undelivered SET verdict = ? WHERE event_id = ? AND node = ?
    AND coalesce(verdict, '') NOT LIKE 'processed:%'
"""
_BURY = """
INSERT OR IGNORE INTO undelivered VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)
"""
_SENT_BODY = """
SELECT body FROM outbox WHERE event_id = ? AND kind <> 'ack' ORDER BY seq
"""
_OF_PAIR = f"""
SELECT {_FIELDS} FROM delivery WHERE from_agent = ? AND to_agent = ? AND processed_at IS NULL
    AND node = ? AND state IN ({_UNACCEPTED}) ORDER BY pair_seq
"""
_TAKEN_OF_PAIR = f"""
SELECT 1 FROM delivery WHERE from_agent = ? AND to_agent = ? AND processed_at IS NULL
    AND node = ? AND state NOT IN ({_UNACCEPTED}) LIMIT 1
"""
_WAITING_ROUTES = f"""
SELECT DISTINCT node, to_agent FROM delivery
WHERE processed_at IS NULL AND node IS NOT NULL AND state IN ({_UNACCEPTED})
"""
_NODES = "SELECT DISTINCT node FROM delivery WHERE processed_at IS NULL AND node IS NOT NULL"
_PAIRS_WAITING = f"""
SELECT DISTINCT from_agent FROM delivery WHERE processed_at IS NULL AND node = ? AND to_agent = ?
    AND state IN ({_UNACCEPTED}) AND offer
"""
_LOOK_AGAIN = f"""
UPDATE delivery SET next_at = min(next_at, ?) WHERE processed_at IS NULL AND node = ?
    AND state IN ({_UNACCEPTED}) AND next_at > ?
"""
_OUT_OF_LINE = "UPDATE delivery SET pair_seq = 0 WHERE event_id = ? AND node = ?"
_OPEN_AT = f"""
SELECT {_FIELDS} FROM delivery WHERE node = ? AND processed_at IS NULL ORDER BY event_id
"""
_SEQ_OF = "SELECT min(seq) FROM outbox WHERE event_id = ? AND to_node = ?"

# Why a gateway that came back from a backup refuses what it may have dealt with before.
RESTORED = "restored from a backup"
# What is known of the owner of something that expired before it was sent.
NEVER_SENT = "never sent"

Woken = Callable[[Any, GatepostError | None], None]
Settled = Callable[[Tx, "Ended"], None]
# The event's kind, how far it is, after how many milliseconds, and its id.
Counted = tuple[str, str, int, str]


class Delivery(NamedTuple):
    event_id: bytes
    kind: str
    from_agent: str
    to_agent: str
    corr_id: str
    state: str
    node: str
    offer: int
    attempt: int
    pair_seq: int
    expires_at: int
    accepted_at: int | None
    content_key: bytes | None
    digest: str | None
    reason: str | None

    @property
    def id(self) -> str:
        return format_event_id(self.event_id)

    @property
    def pair(self) -> Pair:
        return self.from_agent, self.to_agent


class Ended(NamedTuple):
    """A delivery came to its end, and with what."""

    event_id: str
    from_agent: str
    to_agent: str
    corr_id: str
    outcome: str
    reason: str | None
    replies_to: str = "caller"


class Outgoing(Struct):
    """One event for one agent, whoever asked for it."""

    event_id: str
    kind: str
    from_agent: str
    to_agent: str
    corr_id: str
    payload: bytes
    digest: str | None = None
    ref_event_id: str | None = None
    ttl: int | None = None
    traceparent: str | None = None
    replies_to: str = "caller"
    causation_id: str | None = None
    fingerprint: bytes | None = None
    priority: int | None = None
    stands_for: str | None = None


class Sender:
    """`route` is asked whenever a message needs a way. `on_end` hears of every receipt that
    counted, `on_own` of every event that is for this gateway itself.
    """

    def __init__(
        self,
        node: Node,
        patience: Patience,
        incidents: Incidents,
        route: Callable[[Tx, str, frozenset[str]], Route],
        on_end: Settled,
        on_own: Callable[[Tx, Draft], None],
    ) -> None:
        self._node = node
        self._patience = patience
        self._incidents = incidents
        self._route = route
        self._on_end = on_end
        self._on_own = on_own
        self.pairs = Pairs()
        self.directory = Directory()
        # Where something was sent to, so that somebody may want to dial it.
        self.nodes: set[str] = set()
        self.ignored = 0
        self.retries = 0
        self._due: int | None = 0
        # What the clock showed in the group before.
        self._clock_was: int | None = None
        # Hears of every receipt that counted.
        self.on_receipt: Callable[[Counted], None] = _nobody_counts

    # -- sending

    def emit(self, tx: Tx, out: Outgoing, route: Route) -> None:
        """Append the event for another gateway and open its delivery."""
        pair = self._place(tx, out, route.node)
        self.nodes.add(route.node)
        payload, ref, key = self._seal(tx, out, route.node)
        expires = tx.now + (self._patience.ttl if out.ttl is None else out.ttl)
        draft = Draft(
            event_id=out.event_id,
            kind=out.kind,
            source_agent_id=out.from_agent,
            to_node_id=route.node,
            to_agent_id=out.to_agent,
            pair_seq=pair.number,
            pair_base=pair.base,
            corr_id=out.corr_id,
            ref_event_id=out.ref_event_id,
            causation_id=out.causation_id,
            expires_at=expires,
            priority=route.priority if out.priority is None else out.priority,
            offer=route.offer,
            payload=payload,
            payload_ref=ref,
            trace=Trace(
                route_decision=route.decision,
                policy_version=route.version,
                traceparent=out.traceparent,
            ),
        )
        due = min(self._accept_by(tx, route.node, expires), expires)
        self.open(tx, out, "emitted", route, pair.number, expires, due, key)
        self._append(tx, draft)

    def _place(self, tx: Tx, out: Outgoing, node: str) -> Place:
        """Its place in its pair: the next, or that of an event of ours it stands for."""
        pair = (out.from_agent, out.to_agent)
        found = self.find(tx, out.stands_for) if out.stands_for else None
        if found is None or found.node != self._node.id or not found.pair_seq:
            return self.pairs.next(tx, pair, node)
        tx.run(_OUT_OF_LINE, (found.event_id, self._node.id))
        return Place(found.pair_seq, self.pairs.pin(tx, pair, node, found.pair_seq))

    def undeliverable(self, tx: Tx, out: Outgoing, reason: str, detail: str) -> None:
        """Nobody can take it: it is written down, given up and kept, all at once."""
        sealed, ref, key = self._seal(tx, out, self._node.id)
        expires = tx.now + (self._patience.ttl if out.ttl is None else out.ttl)
        tx.append(
            Draft(
                event_id=out.event_id,
                kind=out.kind,
                source_agent_id=out.from_agent,
                to_agent_id=out.to_agent,
                corr_id=out.corr_id,
                ref_event_id=out.ref_event_id,
                causation_id=out.causation_id,
                expires_at=expires,
                payload=sealed,
                payload_ref=ref,
                trace=Trace(route_decision="none", traceparent=out.traceparent),
            )
        )
        self.open(tx, out, "emitted", None, 0, expires, expires, key)
        if (found := self.find(tx, out.event_id)) is not None:
            self._give_up(tx, found, reason, detail, NEVER_SENT)

    def open(
        self,
        tx: Tx,
        out: Outgoing,
        state: str,
        route: Route | None,
        number: int,
        expires: int,
        due: int,
        key: bytes | None,
    ) -> None:
        """Write the delivery down."""
        node, offer = (route.node, route.offer) if route else (None, False)
        accepted = tx.now if state == "accepted" else None
        row = (out.kind, out.from_agent, out.to_agent, out.corr_id, state, tx.now, accepted)
        tail = (node, offer, number, expires, due, key, out.fingerprint, out.digest)
        tx.run(_OPEN, (parse_event_id(out.event_id), *row, out.replies_to, *tail))
        self._look_by(due)

    def breach_at(self, tx: Tx) -> int:
        return tx.now + self._patience.sla

    def _seal(
        self, tx: Tx, out: Outgoing, node: str
    ) -> tuple[Any, PayloadRef | None, bytes | None]:
        """(payload, reference, content key) of an event for one node."""
        key = self.key_of(node)
        if out.digest:
            content_key, size = blob(tx, out.digest)
            return UNSET, self._ref(out.digest, size, content_key, key), content_key
        sealed, content_key = self._node.sealer.seal(
            out.payload, [key], event_id=out.event_id, source_node_id=self._node.id
        )
        return encode_payload(sealed), None, content_key

    def _ref(self, digest: str, size: int, content_key: bytes, key: bytes) -> PayloadRef:
        return PayloadRef(digest, size, self._node.sealer.wrap(content_key, [key]))

    def key_of(self, node: str) -> bytes:
        if node == self._node.id:
            return self._node.key.public
        found = self.directory.gateways.get(node)
        if found is None:
            raise NoRoute(f"{node} is not in this room any more")
        return found.key

    def _accept_by(self, tx: Tx, node: str, expires: int) -> int:
        """When to wonder why nobody has accepted; whoever is away is not asked again."""
        if not self.directory.online(node):
            return expires
        return tx.now + self._patience.accept_timeout

    # -- receipts

    def receipt(self, tx: Tx, source: str, ref: str, receipt: Receipt) -> None:
        """What a gateway says became of an event of ours."""
        if receipt.status == "accepted":
            self._accepted(tx, source, ref)
        elif receipt.status == "processed":
            self._processed(tx, source, ref, receipt)
        else:
            self._refused(tx, source, ref, receipt.reason or "refused")

    def _accepted(self, tx: Tx, source: str, ref: str) -> None:
        id = parse_event_id(ref)
        due = self.breach_at(tx)
        row = tx.one(_ACCEPT, (tx.now, due, id, source))
        if row is None:
            self._late(tx, id, source, "accepted")
            return
        self._look_by(due)
        self.on_receipt((row[2], "accepted", tx.now - row[3], ref))
        if row[0]:
            self._signal(tx, source, ref, "confirm")
        self._on_end(tx, Ended(ref, "", "", row[1], "", None))

    def _processed(self, tx: Tx, source: str, ref: str, receipt: Receipt) -> None:
        id = parse_event_id(ref)
        what = (receipt.outcome, receipt.reason, tx.now, tx.now)
        row = tx.one(_PROCESS, (*what, id, source))
        if row is None:
            self._late(tx, id, source, f"processed: {receipt.outcome}")
            return
        from_agent, to_agent, corr_id, replies_to, kind, emitted = row
        self.on_receipt((kind, "processed", tx.now - emitted, ref))
        ends = (ref, from_agent, to_agent, corr_id)
        self._ended(tx, Ended(*ends, receipt.outcome or "ok", receipt.reason, replies_to))

    def replied(self, tx: Tx, source: str, ref: str, answer: bytes) -> Ended | None:
        """An answer came, which ends what it answers. None if it answers nothing that is open."""
        id = parse_event_id(ref)
        row = tx.one(_REPLY, (tx.now, answer, tx.now, id, source))
        if row is None:
            return None
        from_agent, to_agent, corr_id, replies_to, kind, emitted = row
        self.on_receipt((kind, "processed", tx.now - emitted, ref))
        ended = Ended(ref, from_agent, to_agent, corr_id, "ok", None, replies_to)
        self._ended(tx, ended)
        return ended

    def _ended(self, tx: Tx, ended: Ended) -> None:
        self._settle_pair(tx, (ended.from_agent, ended.to_agent))
        self._on_end(tx, ended)

    def _settle_pair(self, tx: Tx, pair: Pair) -> None:
        settled = self.pairs.settled(tx, pair)
        if settled is not None:
            node, through = settled
            said = Signal(signal="settled", from_agent=pair[0], to_agent=pair[1], through=through)
            self.say(tx, node, None, said)

    def _late(self, tx: Tx, id: bytes, source: str, verdict: str) -> None:
        """It amends a dead letter, repeats what is known, or means nothing."""
        tx.run(_AMEND, (verdict, id, source))
        known = tx.changes()
        tx.run(_AMEND_LETTER, (verdict, id, source))
        if not (known or tx.changes() or tx.one(_ROUTED, (id, source))):
            self.ignored += 1

    def _refused(self, tx: Tx, source: str, ref: str, reason: str) -> None:
        """Somebody else may take it; one that was accepted is lost and has to be told so."""
        found = self.find(tx, ref)
        if found is None:
            self._late(tx, parse_event_id(ref), source, f"refused: {reason}")
        elif found.node != source:
            self.ignored += 1
        elif found.state in ("processed", "replied"):
            self.ignored += 1
            if reason == RESTORED:
                # It settled this before it was restored; the number never comes to it again.
                settled = Signal(
                    signal="settled",
                    from_agent=found.from_agent,
                    to_agent=found.to_agent,
                    through=found.pair_seq,
                )
                self.say(tx, source, None, settled)
        elif found.state == "dead_letter":
            self._late(tx, found.event_id, source, f"refused: {reason}")
        elif reason == RESTORED:
            why = f"{source} was restored from a backup, and cannot say what it did"
            self._give_up(tx, found, "owner_restored", why)
        elif found.state not in UNACCEPTED:
            self._give_up(tx, found, "owner_lost_it", f"{source}: {reason}")
        elif reason == "resend" and found.attempt < self._patience.max_attempts:
            self._reroute(tx, found, Route(source, "retry", bool(found.offer)))
        elif reason == "moved":
            self._follow(tx, found)
        elif reason == "expired":
            self._give_up(tx, found, "expired", "it came too late", "refused: expired")
        else:
            self._elsewhere(tx, found, frozenset({source}), reason)

    def _follow(self, tx: Tx, found: Delivery) -> None:
        """Its agent lives elsewhere now. Whoever knows first has to wait for the other."""
        if self._finds_another(tx, found) or found.attempt >= self._patience.max_attempts:
            self._elsewhere(tx, found, frozenset({found.node}), "moved")
            return
        due = tx.now + self._patience.backoff(found.attempt, self._node.clock)
        tx.run(_PARK, (min(due, found.expires_at), found.event_id))
        self._look_by(min(due, found.expires_at))

    def _finds_another(self, tx: Tx, found: Delivery) -> bool:
        try:
            self._route(tx, found.to_agent, frozenset({found.node}))
        except GatepostError:
            return False
        return True

    def _elsewhere(self, tx: Tx, found: Delivery, refused: frozenset[str], reason: str) -> None:
        try:
            route = self._route(tx, found.to_agent, refused)
        except GatepostError:
            self._give_up(tx, found, "refused", f"{found.node}: {reason}", f"refused: {reason}")
            return
        # Who refused one has said before what it accepted of its pair, and lets none overtake it,
        # so the others go with it.
        for each in self._still(tx, tx.rows(_OF_PAIR, (*found.pair, found.node))):
            if each.attempt >= self._patience.max_attempts:
                why = f"{found.node}: {reason}"
                self._give_up(tx, each, "exhausted", why, f"refused: {reason}")
            else:
                self._reroute(tx, each, route)

    def find(self, tx: Tx, event_id: str) -> Delivery | None:
        row = tx.one(_FIND, (parse_event_id(event_id),))
        return None if row is None else Delivery(*row)

    # -- time

    def tick(self, tx: Tx) -> None:
        """Look at every delivery whose time has come."""
        if self._clock_was is None or tx.now < self._clock_was:
            self._shorten(tx)
        self._clock_was = tx.now
        if self._due is None or tx.now < self._due:
            return
        for found in self._still(tx, tx.rows(_DUE, (tx.now,))):
            self._look(tx, found)
        ((self._due,),) = tx.rows(_NEXT_DUE)

    def _shorten(self, tx: Tx) -> None:
        """The clock was set back, perhaps: nothing waits longer for that than it is meant to."""
        for state, most in self._patience.longest().items():
            tx.run(_SOONER, (tx.now + most, state))
        self._due = 0

    def _still(self, tx: Tx, rows: list[Row]) -> Iterator[Delivery]:
        """Each of these, unless what was done about one before it has changed it."""
        for row in rows:
            if tx.one(_FIND, (row[0],)) == row:
                yield Delivery(*row)

    def next_due(self) -> int | None:
        return self._due

    def look_at_the_clock(self) -> None:
        self._due = 0
        self._clock_was = None
        self.pairs.forget()

    def _look_by(self, due: int) -> None:
        if self._due is None or due < self._due:
            self._due = due

    def _look(self, tx: Tx, found: Delivery) -> None:
        if found.state not in UNACCEPTED:
            self._breach(tx, found)
        elif tx.now >= found.expires_at:
            verdict = None if self._was_sent(tx, found) else NEVER_SENT
            self._give_up(tx, found, "expired", "nobody accepted it in time", verdict)
        elif found.reason == "moved":
            self._elsewhere(tx, found, frozenset(), "moved")
        elif self._fall_back(tx, found):
            return
        elif not self.directory.online(found.node):
            tx.run(_LATER, (found.expires_at, found.event_id))
        elif self.pairs.waits(tx, found.pair, found.node, found.pair_seq):
            later = tx.now + self._patience.accept_timeout
            tx.run(_LATER, (min(later, found.expires_at), found.event_id))
        elif found.attempt >= self._patience.max_attempts:
            self._give_up(tx, found, "exhausted", f"{found.node} never answered")
        elif found.state == "emitted":
            wait = self._patience.backoff(found.attempt, self._node.clock)
            tx.run(_TIMEOUT, (min(tx.now + wait, found.expires_at), found.event_id))
        else:
            self._retry(tx, found)

    def _was_sent(self, tx: Tx, found: Delivery) -> bool:
        """Whether its owner may have heard of it. From now on it would refuse it as expired."""
        ((seq,),) = tx.rows(_SEQ_OF, (found.event_id, found.node))
        row = tx.one("SELECT sent_seq FROM recipient WHERE node_id = ?", (found.node,))
        return seq is None or (row is not None and seq <= row[0])

    def _retry(self, tx: Tx, found: Delivery) -> None:
        """The same event again, without its payload: that is in the log already."""
        due = min(tx.now + self._patience.accept_timeout, found.expires_at)
        tx.run(_RETRY, (found.attempt + 1, due, found.event_id))
        self.retries += 1
        trace = Trace(attempt=found.attempt + 1, route_decision="retry")
        self._append(tx, self._again(found, found.node, trace, 1))

    def _breach(self, tx: Tx, found: Delivery) -> None:
        """Accepted and not processed in time: an incident, and a question to the owner."""
        more = tx.now + self._patience.sla
        again = more if tx.now < found.expires_at + self._patience.ttl else None
        tx.run(_BREACH, (again, found.event_id))
        detail = f"{found.node} accepted it for {found.to_agent} and has not processed it"
        self._incidents.raise_(tx, "sla_breach", found.id, detail)
        if found.node != self._node.id:
            self._signal(tx, found.node, found.id, "status_request")

    def _again(self, found: Delivery, node: str, trace: Trace, base: int) -> Draft:
        return Draft(
            event_id=found.id,
            kind=found.kind,
            source_agent_id=found.from_agent,
            to_node_id=node,
            to_agent_id=found.to_agent,
            pair_seq=found.pair_seq,
            pair_base=base,
            corr_id=found.corr_id,
            expires_at=found.expires_at,
            attempt=found.attempt + 1,
            trace=trace,
        )

    # -- other routes

    def room_changed(self, tx: Tx, directory: Directory) -> None:
        """Somebody came, went or moved: who waits for them may have to wait no longer."""
        before, self.directory = self.directory, directory
        self.nodes |= {row[0] for row in tx.rows(_NODES)}
        for node, agent in tx.rows(_WAITING_ROUTES):
            if directory.agents.get(agent) != before.agents.get(agent):
                tx.run(_UNPARK, (tx.now, node, agent))
                self._look_by(tx.now)
            if directory.online(node):
                if not before.online(node):
                    soon = tx.now + self._patience.accept_timeout
                    tx.run(_LOOK_AGAIN, (soon, node, soon))
                    self._look_by(soon)
            else:
                for (sender,) in tx.rows(_PAIRS_WAITING, (node, agent)):
                    self._move_pair(tx, (sender, agent), node)

    def _fall_back(self, tx: Tx, found: Delivery) -> bool:
        if not found.offer or self.directory.online(found.node):
            return False
        return self._move_pair(tx, found.pair, found.node)

    def _move_pair(self, tx: Tx, pair: Pair, node: str) -> bool:
        """Route what nobody accepted of a pair to a fallback, unless `node` has work of it."""
        if tx.one(_TAKEN_OF_PAIR, (*pair, node)):
            return False
        try:
            route = self._route(tx, pair[1], frozenset())
        except GatepostError:
            return False
        if route.node == node:
            return False
        moved = tx.rows(_OF_PAIR, (*pair, node))
        if not all(Delivery(*row).offer for row in moved):
            # What is no offer may be accepted there at any moment.
            return False
        for found in self._still(tx, moved):
            self._reroute(tx, found, route)
        return bool(moved)

    def _reroute(self, tx: Tx, found: Delivery, route: Route) -> None:
        """Take it back from where it was routed, and send it whole to another node."""
        attempt = found.attempt + 1
        if route.node != found.node:
            said = Signal(signal="withdraw", pair_seq=found.pair_seq)
            self.say(tx, found.node, found.id, said)
        draft, key = self._resealed(tx, found, route)
        expires, due = found.expires_at, self._accept_by(tx, route.node, found.expires_at)
        row = (route.node, route.offer, attempt, min(due, expires), key, found.event_id)
        tx.run(_REROUTE, row)
        self._look_by(min(due, expires))
        base = self.pairs.pin(tx, found.pair, route.node, found.pair_seq)
        self._append(tx, msgspec.structs.replace(draft, pair_base=base))
        self._settle_pair(tx, found.pair)

    def _resealed(self, tx: Tx, found: Delivery, route: Route) -> tuple[Draft, bytes | None]:
        first = self._first(tx, found.event_id)
        key = self.key_of(route.node)
        trace = Trace(
            attempt=found.attempt + 1,
            route_decision=route.decision if route.decision != "owner" else "moved",
            policy_version=route.version,
            traceparent=first.trace and first.trace.traceparent,
        )
        content_key = found.content_key
        payload: Any = UNSET
        ref = None
        if found.digest:
            content_key, size = blob(tx, found.digest)
            ref = self._ref(found.digest, size, content_key, key)
        elif content_key is not None:
            sealed = decode_payload(first, Sealed)
            payload = encode_payload(self._node.sealer.reseal(sealed, content_key, [key]))
        draft = msgspec.structs.replace(
            self._again(found, route.node, trace, 1),
            offer=route.offer,
            priority=first.priority,
            ref_event_id=first.ref_event_id,
            causation_id=first.causation_id,
            payload=payload,
            payload_ref=ref,
        )
        return draft, content_key

    def _first(self, tx: Tx, event_id: bytes) -> Any:
        """The event as it was first appended, payload and all."""
        for (body,) in tx.rows(_SENT_BODY, (event_id,)):
            envelope = decode(body)
            if envelope.payload is not UNSET or envelope.payload_ref is not None:
                return envelope
        id = format_event_id(event_id)
        for draft in tx.appended:
            if draft.event_id == id and (draft.payload is not UNSET or draft.payload_ref):
                return draft
        raise SealError(f"the payload of {format_event_id(event_id)} is not in the outbox any more")

    # -- giving up

    def give_up_at(self, tx: Tx, node: str, sent_seq: int, reason: str) -> int:
        """`node` may have heard of these, and cannot say any more what it did with them."""
        lost = 0
        for found in self._still(tx, tx.rows(_OPEN_AT, (node,))):
            ((seq,),) = tx.rows(_SEQ_OF, (found.event_id, node))
            if seq is not None and seq <= sent_seq:
                self._give_up(tx, found, "owner_restored", reason)
                lost += 1
        for from_agent, to_agent, last, elsewhere in tx.rows(_PAIRS_AT, (node,)):
            # It does not know of what it has settled since; those numbers never come again.
            through = elsewhere - 1 if elsewhere else last
            ends = {"from_agent": from_agent, "to_agent": to_agent}
            self.say(tx, node, None, Signal(signal="settled", through=through, **ends))
        return lost

    def doubt(self, tx: Tx, limit: int) -> int:
        """In a restored journal: what is open may be done, so its owner is asked and never sent it.

        Repeat it until it returns 0.
        """
        rows = tx.rows(_DOUBTFUL, (self._node.id, limit))
        for found in (Delivery(*row) for row in rows):
            tx.run(_DOUBT, (tx.now + self._patience.sla, found.event_id))
            if found.offer:
                said = Signal(signal="withdraw", pair_seq=found.pair_seq)
                self.say(tx, found.node, found.id, said)
            self._signal(tx, found.node, found.id, "status_request")
        return len(rows)

    def _give_up(
        self, tx: Tx, found: Delivery, reason: str, detail: str, verdict: str | None = None
    ) -> None:
        """`verdict` is what is known of its last owner."""
        self._bury(tx, found, reason, verdict)
        said = DeadLetter(
            reason=reason, detail=detail, attempts=found.attempt, pair_seq=found.pair_seq
        )
        tx.run(_GIVE_UP, (reason, tx.now, found.event_id))
        self._append(
            tx,
            Draft(
                event_id=self._node.event_ids.next(),
                kind=Kind.DEAD_LETTER,
                source_agent_id=found.from_agent,
                to_node_id=found.node,
                to_agent_id=found.to_agent,
                corr_id=found.corr_id,
                ref_event_id=found.id,
                payload=encode_payload(said),
            ),
        )
        self._incidents.raise_(tx, "dead_letter", found.id, f"{reason}: {detail}")
        row = tx.one("SELECT replies_to FROM delivery WHERE event_id = ?", (found.event_id,))
        ends = (found.id, found.from_agent, found.to_agent, found.corr_id)
        self._ended(tx, Ended(*ends, "dead_letter", reason, row[0] if row else "caller"))

    def _bury(self, tx: Tx, found: Delivery, reason: str, verdict: str | None) -> None:
        """Keep the payload, for it may be sent again."""
        payload, trace, ref = b"null", None, None
        try:
            first = self._first(tx, found.event_id)
            trace = first.trace and first.trace.traceparent
            ref = first.ref_event_id and parse_event_id(first.ref_event_id)
            if found.content_key is not None and not found.digest:
                sealed = decode_payload(first, Sealed)
                payload = self._node.sealer.open_with(
                    sealed, found.content_key, event_id=found.id, source_node_id=self._node.id
                )
        except GatepostError as error:
            self._incidents.raise_(tx, "payload_lost", found.id, error.message)
        head = (found.event_id, found.kind, *found.pair, found.corr_id, found.node)
        row = (reason, found.attempt, tx.now, payload, found.digest, trace, ref or None, verdict)
        tx.run(_BURY, (*head, *row))

    # -- saying

    def _signal(self, tx: Tx, node: str, ref: str, name: str) -> None:
        self.say(tx, node, ref, Signal(signal=name))

    def say(self, tx: Tx, node: str, ref: str | None, said: Signal) -> None:
        self._append(
            tx,
            Draft(
                event_id=self._node.event_ids.next(),
                kind=Kind.SIGNAL,
                source_agent_id=said.from_agent or "gateway",
                to_node_id=node,
                ref_event_id=ref,
                payload=encode_payload(said),
            ),
        )

    def _append(self, tx: Tx, draft: Draft) -> None:
        tx.append(draft)
        if draft.to_node_id == self._node.id:
            self._on_own(tx, draft)


def _nobody_counts(receipt: Counted) -> None:
    """Until somebody does."""


def blob(tx: Tx, digest: str) -> tuple[bytes, int]:
    """(content key, size) of a blob this gateway has."""
    row = tx.one("SELECT key, size FROM blob WHERE digest = ?", (digest,))
    if row is None:
        raise UnknownBlob(f"no blob {digest} on this gateway; upload it first")
    return row[0], row[1]
