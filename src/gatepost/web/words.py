"""How pages say times, sizes, counts and states: one text and one colour for each."""

from datetime import UTC, datetime
from typing import Final, Literal

from gatepost.durations import format_duration
from gatepost.ledger import TERMS, Term
from gatepost.web.html import Markup, join, tag

Tone = Literal["ok", "move", "wait", "dead", "exp", "plain"]

TERM_TONES: Final[dict[Term, Tone]] = {
    "processed": "ok",
    "in_motion": "move",
    "waiting": "wait",
    "dead_letters": "dead",
    "expired": "exp",
}
_TASK_TONES: Final[dict[str, Tone]] = {
    "completed": "ok",
    "running": "move",
    "accepted": "move",
    "failed": "dead",
    "cancelled": "exp",
    "unknown": "wait",
}
_NODE_TONES: Final[dict[str, Tone]] = {"online": "ok", "degraded": "wait", "offline": "dead"}
# A sign beside each colour: nothing is told by a colour alone.
TONE_SIGNS: Final[dict[Tone, str]] = {
    "ok": "✓",
    "move": "→",
    "wait": "…",
    "dead": "✕",
    "exp": "–",
    "plain": "·",
}


def term_name(term: Term) -> str:
    return term.replace("_", " ")


def task_tone(state: str) -> Tone:
    return _TASK_TONES.get(state, "plain")


def node_tone(status: str) -> Tone:
    return _NODE_TONES.get(status, "plain")


def chip(tone: Tone, text: str) -> Markup:
    sign = tag("i", {"aria-hidden": "true"}, TONE_SIGNS[tone])
    return tag("span", {"class": f"chip {tone}"}, sign, " ", text)


def dot(tone: Tone) -> Markup:
    return tag("span", {"class": f"dot {tone}", "aria-hidden": "true"}, TONE_SIGNS[tone])


def count_of(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def ago(at: int | None, now: int) -> Markup:
    """How long ago, which the page keeps up to date."""
    if at is None:
        return tag("span", {"class": "dim"}, "never")
    secs = max(0, now - at) / 1000
    text = f"{format_duration(secs)} ago" if secs >= 1 else "just now"
    moment = datetime.fromtimestamp(at / 1000, UTC)
    return tag(
        "time",
        {"datetime": moment.isoformat(), "data-at": at, "title": f"{moment:%F %T} UTC"},
        text if at <= now else f"in {format_duration((at - now) / 1000)}",
    )


def clock_time(at: int) -> Markup:
    moment = datetime.fromtimestamp(at / 1000, UTC)
    text = f"{moment:%H:%M:%S}.{at % 1000:03d}"
    return tag("time", {"datetime": moment.isoformat(), "title": f"{moment:%F %T} UTC"}, text)


def file_size(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def progress(term: Term, *, accepted: bool, ended: bool) -> Markup:
    """Three steps: sent, accepted, ended."""
    done = 3 if ended else 2 if accepted else 1
    bars = (tag("i", {"class": "on" if step <= done else None}) for step in (1, 2, 3))
    tone = TERM_TONES[term]
    return tag("span", {"class": f"phase {tone}", "aria-hidden": "true"}, join(bars))


ALL_TERMS = TERMS
