"""Objectives as this gateway measures them, and as the pipeline found them in all archives."""

import math
from typing import Final

from msgspec import Struct

from gatepost.durations import format_duration
from gatepost.web.api_calls import ApiCalls
from gatepost.web.html import NOTHING, Markup, join, tag
from gatepost.web.words import dot
from gatepost.wire.overview_views import RoomLedger

_PREFIX: Final = "gatepost_delivery_seconds_bucket{"
Buckets = list[tuple[float, float]]
# Name, label of the histogram, quantile, goal in seconds.
_LATENCIES: Final = (
    ("send → accepted", "accepted", 0.99, 0.05),
    ("send → processed", "processed", 0.95, 60.0),
)
_DEAD_GOAL: Final = 0.001


class Objective(Struct, frozen=True):
    """`shares`: what was measured, as the share of each bucket; `is_met` is None if unknown."""

    name: str
    goal: str
    value: str
    note: str
    is_met: bool | None
    shares: tuple[float, ...] = ()

    @property
    def sign(self) -> Markup:
        """Whether it is met, in a sign."""
        return NOTHING if self.is_met is None else dot("ok" if self.is_met else "dead")

    def drawing(self) -> Markup:
        """The shares as bars; the numbers are beside it."""
        tone = "plain" if self.is_met is None else "ok" if self.is_met else "dead"
        width = 100 / max(1, len(self.shares))
        bars = (
            tag(
                "rect",
                {
                    "x": round(place * width, 2),
                    "width": round(width * 0.8, 2),
                    "y": round(36 - 34 * share, 2),
                    "height": round(34 * share + 1, 2),
                },
            )
            for place, share in enumerate(self.shares)
        )
        view = {"viewBox": "0 0 100 38", "preserveAspectRatio": "none", "aria-hidden": "true"}
        return tag("svg", {**view, "class": f"spark {tone}"}, join(bars))


async def read_objectives(calls: ApiCalls) -> list[Objective]:
    text = (await calls.get_bytes("/metrics")).decode()
    room = await calls.get("/v1/ledger", RoomLedger)
    found = [
        _latency(name, read_buckets(text, until), quantile, goal)
        for name, until, quantile, goal in _LATENCIES
    ]
    sent, dead = room.ledger.sent, room.ledger.dead_letters
    share = dead / sent if sent else 0.0
    met = None if not sent else share < _DEAD_GOAL
    value = "–" if not sent else f"{share * 1000:.2f} ‰"
    return [
        *found,
        Objective("Dead letters", "fewer than 1 in 1,000", value, f"{dead:,} of {sent:,}", met),
    ]


def read_buckets(metrics: str, until: str) -> Buckets:
    """(upper bound in seconds, count up to it) of messages, from the text of /metrics."""
    found: Buckets = []
    for line in metrics.splitlines():
        if line.startswith(_PREFIX) and 'kind="message"' in line and f'until="{until}"' in line:
            bound = line.partition('le="')[2].partition('"')[0]
            found.append((float(bound), float(line.rpartition(" ")[2])))
    return sorted(found)


def _latency(name: str, buckets: Buckets, quantile: float, goal: float) -> Objective:
    aim = f"p{quantile * 100:.0f}, goal {format_duration(goal)}"
    total = buckets[-1][1] if buckets else 0
    if not total:
        return Objective(name, aim, "–", "no message yet", None)
    reached = next(bound for bound, count in buckets if count >= quantile * total)
    counts = [count for _, count in buckets]
    parts = [later - earlier for earlier, later in zip([0.0, *counts], counts, strict=False)]
    top = max(parts)
    within = max((count for bound, count in buckets if bound <= goal), default=0) / total
    value = "over 5 min" if math.isinf(reached) else f"≤ {format_duration(reached)}"
    return Objective(
        name,
        aim,
        value,
        f"{within * 100:.2f} % within",
        reached <= goal,
        tuple(part / top for part in parts),
    )
