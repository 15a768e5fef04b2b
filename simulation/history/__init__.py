"""The checker of a history: every message ends once, in order, and all gateways agree on its end.

The checker shares no code with the gateways it checks. It reads the journals of stopped gateways
and, if there is one, the record of the answers that clients got.
"""

from simulation.history.check import check_history
from simulation.history.journals import GatewayJournal, read_journal
from simulation.history.verdict import (
    RULES,
    HistoryVerdict,
    HistoryViolation,
    Observations,
    ObservedSend,
    ObservedTask,
    ObservedTaskEnd,
    ObservedTurn,
    ObservedWait,
    ObservedWork,
    OutcomeCounts,
)

__all__ = [
    "RULES",
    "GatewayJournal",
    "HistoryVerdict",
    "HistoryViolation",
    "Observations",
    "ObservedSend",
    "ObservedTask",
    "ObservedTaskEnd",
    "ObservedTurn",
    "ObservedWait",
    "ObservedWork",
    "OutcomeCounts",
    "check_history",
    "read_journal",
]
