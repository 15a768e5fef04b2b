"""One hour's deliveries as columns of numbers, with the columns that several tables share.

Needs pyarrow and numpy, but not Spark.
"""

from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from gatepost.pipeline.kernels.columns import ABSENT, Flags, Numbers
from gatepost.pipeline.kernels.groups import CodedColumns, earliest_known

HOUR_TEXT_COLUMNS: Final = (
    "node",
    "kind",
    "from_agent",
    "to_agent",
    "to_node",
    "outcome",
    "reason",
)
HOUR_COLUMNS: Final = (
    *HOUR_TEXT_COLUMNS,
    *("event_id", "corr_id", "sent_at", "size", "attempts", "accepted_at", "processed_at"),
    *("replied_at", "dead_at", "duplicates", "amended", "closed", "task"),
)
"""The columns that are read of a delivery."""
SLO_COLUMNS: Final = (
    *("node", "kind", "outcome", "sent_at", "size", "attempts", "accepted_at", "processed_at"),
    *("replied_at", "dead_at", "duplicates", "amended", "closed", "task"),
)
"""The columns that service levels are made of."""


class HourDeliveries(CodedColumns):
    """The deliveries of an hour, or of some of its nodes; orphans are left out."""

    def __init__(self, number: int, deliveries: pa.Table) -> None:
        known = deliveries.filter(deliveries["kind"].is_valid())
        self.deliveries = known
        # Fields of a task become columns such as `task.eta_at`.
        super().__init__(known.flatten())
        self.hour = number

    def has_number(self, name: str) -> Flags:
        """Whether each row has a number in this column."""
        present: Flags = self.number_column(name) != ABSENT
        return present

    @cached_property
    def sent_at(self) -> Numbers:
        return self.number_column("sent_at")

    @cached_property
    def accept_ms(self) -> Numbers:
        return self._since_sent(self.number_column("accepted_at"))

    @cached_property
    def ended_at(self) -> Numbers:
        """The time at which the delivery's turn ended, or its reply came."""
        return earliest_known(self.number_column("processed_at"), self.number_column("replied_at"))

    @cached_property
    def is_dropped(self) -> Flags:
        """Whether the turn ended without being done."""
        return self.is_any("outcome", "dead_letter", "expired")

    @cached_property
    def process_ms(self) -> Numbers:
        """The time from send to done; ABSENT if it was not done."""
        return np.where(self.is_dropped, ABSENT, self._since_sent(self.ended_at))

    @cached_property
    def is_dead(self) -> Flags:
        """Whether the delivery ended without being done. What its sender gave up may be done."""
        return (self.has_number("dead_at") & ~self.bool_column("amended")) | self.is_dropped

    @cached_property
    def is_task(self) -> Flags:
        return self.is_any("kind", "task_create")

    @cached_property
    def task_ended_at(self) -> Numbers:
        """The time at which a task completed, failed or was cancelled, in this order."""
        completed, failed = (
            self.number_column("task.completed_at"),
            self.number_column("task.failed_at"),
        )
        ended = np.where(completed == ABSENT, failed, completed)
        return np.where(ended == ABSENT, self.number_column("task.cancelled_at"), ended)

    @cached_property
    def took_ms(self) -> Numbers:
        """The time a task took; ABSENT if it was not completed."""
        return self._since_sent(self.number_column("task.completed_at"))

    @cached_property
    def task_state(self) -> pa.Array:
        """The state of each task; null for other deliveries."""
        conditions = {
            "completed": self.has_number("task.completed_at"),
            "failed": self.has_number("task.failed_at"),
            "cancelled": self.has_number("task.cancelled_at"),
            "running": self.has_number("processed_at")
            | np.asarray(self.table["task.progress"].is_valid()),
            "dead_letter": self.has_number("dead_at"),
            "accepted": self.has_number("accepted_at"),
        }
        states = pa.array([*conditions, "pending"])
        code = np.select(list(conditions.values()), list(range(len(conditions))), len(conditions))
        return states.take(pa.array(code, mask=~self.is_task))

    def _since_sent(self, at: Numbers) -> Numbers:
        return np.where(at == ABSENT, ABSENT, at - self.sent_at)
