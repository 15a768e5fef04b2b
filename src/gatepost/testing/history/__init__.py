"""Did every message end once, in order, and in everybody's eyes the same way?

The checker shares no code with what it checks: it reads the journals of stopped gateways and, if
there is one, the account of what clients were told.
"""

from gatepost.testing.history.check import check
from gatepost.testing.history.journals import Journal, read_journal
from gatepost.testing.history.verdict import (
    RULES,
    Seen,
    SendSeen,
    Truth,
    TurnSeen,
    Verdict,
    Violation,
)

__all__ = [
    "RULES",
    "Journal",
    "Seen",
    "SendSeen",
    "Truth",
    "TurnSeen",
    "Verdict",
    "Violation",
    "check",
    "read_journal",
]
