"""Reports actions of members that honest gateways never take.

The records themselves are handled by the room. This module informs the operator: by the abuse log,
which opens an incident that names the node, by an audit line, and by the evidence kept for `room
verify`.
"""

from functools import partial

from gatepost.core.gateway_core import Core
from gatepost.delivery.abuse import AbuseKind
from gatepost.events import fingerprint_key
from gatepost.journal.audit import record_audit_entry
from gatepost.room import AdmissionLink, Genesis, RoomChange, SignedRecord, store

_MAX_REPORTED = 1000


class RoomAbuse:
    """Reports every fact once."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reported_keys: set[tuple[str, bytes]] = set()

    def report_change(self, change: RoomChange, genesis: Genesis) -> None:
        for known, _ in change.conflicts:
            self._report_signed_twice(known)
        for proof in change.proofs:
            self._core.submit(partial(store.save_evidence, proof=proof))
            if not change.conflicts:
                # A peer noticed it and sent the proof.
                self._report_signed_twice(proof.first)
        for signed, link in change.second_keys:
            self._report_second_key(signed, link, genesis)
        for pair in change.collisions:
            self._report_collision(*pair)

    def report_cost(self, node: str) -> None:
        """The node has to pause, because checking its records took too long."""
        detail = "its records keep this gateway busy; they are read more slowly"
        self._core.abuse.report_abuse(node, AbuseKind.ROOM_COST, detail)

    def _report_signed_twice(self, signed: SignedRecord) -> None:
        where = f"version {signed.version} of {signed.map} {signed.key}"
        detail = f"it signed {where} twice, with different content"
        self._core.abuse.report_abuse(signed.writer, AbuseKind.SIGNED_TWICE, detail)

    def _report_collision(self, served: SignedRecord, loser: SignedRecord) -> None:
        """Report the writer of the record that lost; honest nodes do not make such keys."""
        names = [f"{signed.map} {signed.key} of {signed.writer}" for signed in (loser, served)]
        detail = f"its record {names[0]} has the Yjs client of {names[1]}, and does not count"
        self._core.abuse.report_abuse(loser.writer, AbuseKind.SLOT_COLLISION, detail)

    def _report_second_key(
        self, signed: SignedRecord, link: AdmissionLink, genesis: Genesis
    ) -> None:
        """Report the node that admitted the second key."""
        at = signed.chain.index(link)
        issuer = signed.chain[at - 1].node if at else genesis.node
        detail = f"it admitted a second key, {fingerprint_key(link.key)}, as {link.node}"
        self._core.abuse.report_abuse(issuer, AbuseKind.SECOND_KEY, detail)
        identity = (link.node, link.key)
        if identity not in self._reported_keys and len(self._reported_keys) < _MAX_REPORTED:
            self._reported_keys.add(identity)
            self._core.submit(
                lambda tx: record_audit_entry(tx, issuer, "room.second_key", link.node, detail)
            )
