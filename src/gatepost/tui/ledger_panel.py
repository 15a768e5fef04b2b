"""The head of every screen: the gateway, the ledger of the room, whether it is proved."""

import re
from collections.abc import Set

from msgspec import Struct
from rich.text import Text

from gatepost.display_text import format_age, format_count, one_line
from gatepost.ledger import TERMS, Ledger, Term
from gatepost.tui.ledger_history import BUCKET_MS, LedgerHistory, draw_sparkline
from gatepost.tui.table_view import WIDE
from gatepost.wire.overview_views import RoomLedger
from gatepost.wire.view_texts import describe_unknown

_TERM_STYLES = {
    "processed": "green",
    "in_motion": "cyan",
    "waiting": "yellow",
    "dead_letters": "red",
    "expired": "magenta",
}
# What a narrow terminal has room for.
_NARROW_BARS, _WIDE_BARS = 10, 20


class Connection(Struct):
    """Where the screens get everything, and why they do not just now."""

    place: str = ""
    node: str = ""
    problem: str = ""
    retry_secs: float = 0.0
    heard_at: int | None = None

    @property
    def state(self) -> tuple[str, str]:
        """How it stands, in words, and the style."""
        if self.problem:
            return "✗ not connected", "bold red"
        return ("● live", "green") if self.heard_at is not None else ("… connecting", "yellow")

    def draw_problem(self, now_ms: int) -> Text | None:
        if not self.problem:
            return None
        heard = self.heard_at
        shown = "" if heard is None else f"as of {format_age(heard, now_ms)} ago: "
        said = f"✗ {shown}{self.problem}; tries again every {self.retry_secs:.1g} s"
        return Text(one_line(said), style="bold red", no_wrap=True, overflow="ellipsis")


def draw_title(connection: Connection, can_write: bool, width: int) -> Text:
    said, style = connection.state
    text = Text("gatepost top ", style="bold")
    where = " at ".join(filter(None, (connection.node, connection.place)))
    text.append(one_line(where)).append("  " if where else "").append(said, style=style)
    mode = "WRITE" if can_write else "read-only"
    text.truncate(max(0, width - len(mode) - 2), overflow="ellipsis", pad=True)
    return text.append(f"  {mode}", style="bold black on yellow" if can_write else "dim")


def draw_ledger(room: RoomLedger | None, width: int) -> Text:
    """The equation, in the words of all surfaces, with a mark at a term that is wrong.

    Lines break between terms, and never inside one.
    """
    if room is None:
        return Text("the ledger is not known yet", style="dim")
    wrong = {each.term for each in room.broken}
    styles = ["bold", *(_term_style(term, room.ledger, wrong) for term in TERMS)]
    text, line = Text(), 0
    for part, style in zip(re.split(r" (?=[+=])", str(room.ledger)), styles, strict=True):
        if line and line + 1 + len(part) > width:
            text.append("\n")
            line = 0
        elif line:
            text.append(" ")
        sign = part[:2] if part[0] in "+=" else ""
        text.append(sign).append(part.removeprefix(sign), style=style)
        line += len(part) + 1
    return text


def _term_style(term: Term, ledger: Ledger, wrong: Set[Term]) -> str:
    if term in wrong:
        return "bold white on red"
    return _TERM_STYLES[term] if getattr(ledger, term) else "dim"


def draw_proof(room: RoomLedger | None, now_ms: int) -> Text:
    """What is proved of the ledger; else the promise that is broken, or what is not known."""
    if room is None:
        return Text("")
    if room.broken:
        first = room.broken[0]
        more = f" (and {len(room.broken) - 1} more)" if len(room.broken) > 1 else ""
        said = f"✗ {first.term.replace('_', ' ')}: {first.promise}{more}: {first.evidence}"
        return Text(one_line(f"{said} · {first.command}"), style="bold red")
    if room.unknown:
        unknown = [describe_unknown(node, now_ms) for node in room.nodes if node.problem]
        return Text(one_line("? " + "; ".join(unknown)), style="yellow")
    where = format_count(len(room.nodes), "gateway")
    return Text(f"✓ adds up over {where}, no broken promise is known", style="green")


def draw_history(history: LedgerHistory, ledger: Ledger, now_ms: int, width: int) -> Text:
    """Sparklines of the last seconds: messages sent and processed, and those that wait."""
    bars = _WIDE_BARS if width >= WIDE else _NARROW_BARS
    text = Text()
    for name in ("sent", "processed"):
        grown = history.growth(name, now_ms, bars)
        rate = sum(grown) * 1000 / (bars * BUCKET_MS)
        text.append(f"{name} ").append(draw_sparkline(grown), style=_TERM_STYLES.get(name, "bold"))
        text.append(f" {rate:,.1f}/s  ")
    levels = ("waiting",) if width < WIDE else ("waiting", "in_motion", "dead_letters")
    for name in levels:
        drawn = draw_sparkline(history.levels(name, now_ms, bars))
        text.append(f"{name.replace('_', ' ')} ").append(drawn, style=_TERM_STYLES[name])
        text.append(f" {getattr(ledger, name):,}  ")
    text.truncate(width, overflow="ellipsis")
    return text
