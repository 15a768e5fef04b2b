"""Did every message end once, in order, and in everybody's eyes the same way?

The checker shares no code with what it checks: it reads the journals of stopped gateways and, if
there is one, the account of what clients were told.
"""

from gatepost.testing.history.check import check_history
from gatepost.testing.history.journals import GatewayJournal, read_journal
from gatepost.testing.history.verdict import (
    RULES,
    HistoryVerdict,
    HistoryViolation,
    Observations,
    ObservedSend,
    ObservedTurn,
    OutcomeCounts,
)

__all__ = [
    "RULES",
    "GatewayJournal",
    "HistoryVerdict",
    "HistoryViolation",
    "Observations",
    "ObservedSend",
    "ObservedTurn",
    "OutcomeCounts",
    "check_history",
    "read_journal",
]
