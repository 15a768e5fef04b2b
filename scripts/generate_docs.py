"""Writes the generated diagrams and tables of docs/ from the code."""

import sys
from pathlib import Path

from gatepost.delivery import delivery_states as deliveries
from gatepost.delivery.receiver import inbox_states as inbox
from gatepost.errors import (
    ERRORS_BY_CODE,
    ArchiveError,
    ChainError,
    ConfigError,
    EncryptionError,
    GatepostError,
    JournalError,
    PipelineError,
)
from gatepost.mailbox.states import TERMINAL_STATES, TRANSITIONS
from gatepost.pipeline.audit.rules import RULES
from gatepost.pipeline.tables.schemas import TABLES

# Errors that end a program or a check rather than answer a request.
LOCAL = (ConfigError, EncryptionError, ChainError, ArchiveError, PipelineError, JournalError)
DOCS = Path(__file__).parent.parent / "docs"


def draw_mailbox_states() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> pending: enqueue"]
    for (source, event), target in TRANSITIONS.items():
        lines.append(f"    {source.wire_name} --> {target.wire_name}: {event.value}")
    lines += [f"    {state.wire_name} --> [*]" for state in TERMINAL_STATES]
    return "\n".join([*lines, "```"])


def draw_delivery_states() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> emitted: send"]
    for (source, event), target in deliveries.TRANSITIONS.items():
        lines.append(f"    {source.value} --> {target.value}: {event.value}")
    lines += [f"    {state.value} --> [*]" for state in deliveries.TERMINAL]
    return "\n".join([*lines, "```"])


def draw_inbox_states() -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    for (source, event), target in inbox.TRANSITIONS.items():
        start = "[*]" if source is inbox.InboxState.UNSEEN else source.value
        lines.append(f"    {start} --> {target.value}: {event.value}")
    lines += [f"    {state.value} --> [*]" for state in inbox.FINAL]
    return "\n".join([*lines, "```"])


def error_table() -> str:
    wire = [cls for cls in ERRORS_BY_CODE.values() if not issubclass(cls, LOCAL)]
    rows = sorted((cls.status, cls.code) for cls in wire if cls is not GatepostError)
    return "\n".join(["| status | code |", "|---|---|", *(f"| {s} | `{c}` |" for s, c in rows)])


def describe_tables() -> str:
    return "\n\n".join(
        "\n".join(
            [
                f"### `{table.name}`",
                "",
                table.meaning,
                "",
                "| column | type | |",
                "|---|---|---|",
                *(f"| `{c.name}` | {_short_type(c.type)} | {c.meaning} |" for c in table.columns),
            ]
        )
        for table in TABLES.values()
    )


def _short_type(text: str) -> str:
    """The type without the fields of a struct."""
    return text.partition("<")[0] if "struct<" in text else text


def rule_table() -> str:
    rows = (f"| `{rule}` | {sentence} |" for rule, sentence in RULES.items())
    return "\n".join(["| rule | promise |", "|---|---|", *rows])


PARTS = {
    "diagram: mailbox.states": draw_mailbox_states,
    "diagram: delivery.states": draw_delivery_states,
    "diagram: inbox.states": draw_inbox_states,
    "table: errors": error_table,
    "table: pipeline.tables": describe_tables,
    "table: pipeline.rules": rule_table,
}


def fill_sections(text: str) -> str:
    """Replace the text between the markers of each part."""
    for name, make in PARTS.items():
        start, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, found, rest = text.partition(start)
        if found:
            text = before + start + make() + "\n" + end + rest.partition(end)[2]
    return text


def main(check: bool) -> int:
    stale = []
    for page in sorted(DOCS.glob("*.md")):
        old = page.read_text()
        new = fill_sections(old)
        if new != old:
            stale.append(page.name)
            if not check:
                page.write_text(new)
    verb = "stale" if check else "written"
    print(f"{verb}: {', '.join(stale)}" if stale else "docs are up to date")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
