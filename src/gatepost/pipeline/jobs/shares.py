"""Divides the input of a job into shares, each for one kernel."""

from collections.abc import Iterable
from typing import Protocol, TypeVar


class HasRows(Protocol):
    @property
    def rows(self) -> int: ...


Item = TypeVar("Item", bound=HasRows)


def pack_shares(items: Iterable[Item], rows: int) -> list[list[Item]]:
    """Pack consecutive items into shares of about `rows` rows."""
    shares: list[list[Item]] = []
    left = 0
    for item in items:
        if left <= 0:
            shares.append([])
            left = rows
        shares[-1].append(item)
        left -= item.rows
    return shares


def even_share_rows(total: int, most: int, slots: int) -> int:
    """The rows of a share, at most about `most`, so that all slots get as many shares."""
    rounds = max(1, -(-total // (most * slots)))
    return max(1, -(-total // (rounds * slots)))
