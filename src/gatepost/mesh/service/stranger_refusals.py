"""Datagrams of strangers that are refused: many of them at once are an incident.

A few are usual: scans, members that this gateway does not know yet, nodes that were revoked.
"""

from gatepost.access import TokenBucket
from gatepost.clock import Clock
from gatepost.delivery.abuse import AbuseKind, AbuseLog
from gatepost.mesh.refusals import Refusal

_USUAL_RATE, _USUAL_BURST = 5.0, 200
# A report takes longer than a refusal.
_REPORT_RATE, _REPORT_BURST = 20.0, 200


class StrangerRefusals:
    def __init__(self, abuse: AbuseLog, clock: Clock) -> None:
        self._abuse = abuse
        self._usual = TokenBucket(_USUAL_RATE, _USUAL_BURST, clock)
        self._reports = TokenBucket(_REPORT_RATE, _REPORT_BURST, clock)

    def note_refusal(self, source: str, refusal: Refusal) -> None:
        """Count a datagram from an address; report it, if there are more than usual."""
        if self._usual.try_take() or not self._reports.try_take():
            return
        address = source.rpartition(":")[0] or source
        detail = f"more datagrams that are refused than usual, the last one as {refusal}"
        self._abuse.report_abuse(f"address:{address}", AbuseKind.DATAGRAM_FLOOD, detail)
