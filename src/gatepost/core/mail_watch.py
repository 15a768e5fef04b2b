"""Notifies callers of new mail without leasing it.

Dispatchers lease mail to the consumers that wait for it. A watcher leases nothing: it is woken
after every commit group in which mail of its mailbox may have become ready, and looks for itself.
"""

import asyncio

from gatepost.journal import Tx
from gatepost.journal.writer import JobOutcome
from gatepost.mailbox import Dispatcher

_Watchers = dict[int, set[asyncio.Event]]


class MailWatch:
    """A participant of the commit group. Its state changes in the writer's thread only."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._watchers: _Watchers = {}
        self._woken: list[JobOutcome] = []

    def join(self, tx: Tx, mailbox: str, event: asyncio.Event) -> int:
        """Set `event` whenever mail may have come, until `leave`; return the mailbox's number."""
        id = self._dispatcher.mailbox_ref(tx, mailbox).id
        self._watchers.setdefault(id, set()).add(event)
        return id

    def leave(self, mailbox: int, event: asyncio.Event) -> None:
        watchers = self._watchers.get(mailbox, set())
        watchers.discard(event)
        if not watchers:
            self._watchers.pop(mailbox, None)

    def before_commit(self, tx: Tx) -> None:
        for id in self._dispatcher.ready_mailboxes & self._watchers.keys():
            self._woken += [(_wake, event, None) for event in self._watchers[id]]

    def after_commit(self) -> list[JobOutcome]:
        woken, self._woken = self._woken, []
        return woken

    def rolled_back(self) -> None:
        self._woken.clear()

    def next_due(self, tx: Tx) -> int | None:
        return None


def _wake(event: asyncio.Event, _: object) -> None:
    event.set()
