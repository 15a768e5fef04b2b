"""Requests to a peer that wait for their answers."""

from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class OpenRequests(Generic[Answer]):
    """The requests of one kind on one link, by number. The caller sets their deadline."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[Answer], None]] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._callbacks)

    def add(self, answered: Callable[[Answer], None]) -> int:
        """Return the number under which the peer is asked. `answered` gets its answer."""
        self._numbers += 1
        self._callbacks[self._numbers] = answered
        return self._numbers

    def answer(self, number: int, answer: Answer) -> None:
        """Pass an answer on; ignore it if the request was forgotten or never made."""
        answered = self._callbacks.pop(number, None)
        if answered is not None:
            answered(answer)

    def forget(self, number: int) -> None:
        self._callbacks.pop(number, None)

    def clear(self) -> None:
        self._callbacks.clear()
