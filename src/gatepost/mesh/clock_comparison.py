"""Compares the clocks of nodes, to find wrong ones and their offsets.

Every datagram carries the time of its sender, so a node knows how far each clock is from its own. A
clock is wrong if it differs from those of more voters than it agrees with; a voter agrees with
itself. Voters are the nodes that may lead. So neither a stranger nor a single liar can make a clock
count as wrong.
"""

from collections import Counter
from collections.abc import Container, Mapping
from statistics import median_low

from msgspec import Struct

_UNITS = ((2 * 86_400, 86_400, "days"), (2 * 3600, 3600, "h"), (120, 60, "min"))


class ClockFinding(Struct, frozen=True):
    """A clock that differs from those of `differs_from` of the `compared_with` other voters.

    `offset_secs` is positive if it is ahead of them. Without `is_wrong`, as many agree with it as
    differ from it.
    """

    node: str
    offset_secs: int
    differs_from: int
    compared_with: int
    is_wrong: bool

    def describe(self) -> str:
        """The finding, and what an operator does about it."""
        way = "ahead of" if self.offset_secs > 0 else "behind"
        gap = describe_gap(abs(self.offset_secs))
        peers = f"{self.differs_from} of {self.compared_with} peers"
        advice = (
            "set its clock (timedatectl)"
            if self.is_wrong
            else "one of these clocks is wrong, so set it (timedatectl)"
        )
        return f"clock of {self.node} is {gap} {way} {peers}: {advice}"


def compare_clocks(
    offsets: Mapping[str, int], voters: Container[str], tolerance: int
) -> tuple[ClockFinding, ...]:
    """The wrong clocks; if none is, all clocks that differ from others.

    `offsets` are the seconds by which the clocks of all nodes are ahead of any one clock.
    """
    counts = Counter(offset for node, offset in offsets.items() if node in voters)
    if not any(abs(a - b) > tolerance for a in offsets.values() for b in counts):
        return ()
    found = [
        finding
        for node, offset in sorted(offsets.items())
        if (finding := _compare_clock(node, offset, counts, node in voters, tolerance)).differs_from
    ]
    return tuple(each for each in found if each.is_wrong) or tuple(found)


def _compare_clock(
    node: str, offset: int, counts: Counter[int], is_voter: bool, tolerance: int
) -> ClockFinding:
    gaps = Counter({offset - other: count for other, count in counts.items()})
    differing = Counter({gap: count for gap, count in gaps.items() if abs(gap) > tolerance})
    differs, agrees = differing.total(), gaps.total() - differing.total()
    gap = median_low(differing.elements()) if differs else 0
    return ClockFinding(node, gap, differs, gaps.total() - is_voter, differs > agrees)


def describe_gap(secs: int) -> str:
    for least, unit, name in _UNITS:
        if secs >= least:
            return f"{round(secs / unit)} {name}"
    return f"{secs} s"
