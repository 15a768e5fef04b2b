"""Writes the diagrams and tables of docs/ from the tables in the code."""

import sys
from pathlib import Path

from gatepost.delivery import delivery_states as deliveries
from gatepost.delivery.receiver import inbox_states as inbox
from gatepost.errors import (
    BY_CODE,
    ArchiveError,
    ChainError,
    ConfigError,
    GatepostError,
    JournalError,
    PipelineError,
    SealError,
)
from gatepost.mailbox.states import TERMINAL, TRANSITIONS
from gatepost.pipeline.audit.rules import RULES
from gatepost.pipeline.tables.schemas import TABLES

# Errors that end a program or a check rather than answer a request.
LOCAL = (ConfigError, SealError, ChainError, ArchiveError, PipelineError, JournalError)
DOCS = Path(__file__).parent.parent / "docs"


def mailbox_states() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> pending: enqueue"]
    for (source, event), target in TRANSITIONS.items():
        lines.append(f"    {source.wire} --> {target.wire}: {event.value}")
    lines += [f"    {state.wire} --> [*]" for state in TERMINAL]
    return "\n".join([*lines, "```"])


def delivery_states() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> emitted: send"]
    for (source, event), target in deliveries.TRANSITIONS.items():
        lines.append(f"    {source.value} --> {target.value}: {event.value}")
    lines += [f"    {state.value} --> [*]" for state in deliveries.TERMINAL]
    return "\n".join([*lines, "```"])


def inbox_states() -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    for (source, event), target in inbox.TRANSITIONS.items():
        start = "[*]" if source is inbox.InboxState.UNSEEN else source.value
        lines.append(f"    {start} --> {target.value}: {event.value}")
    lines += [f"    {state.value} --> [*]" for state in inbox.FINAL]
    return "\n".join([*lines, "```"])


def errors() -> str:
    wire = [cls for cls in BY_CODE.values() if not issubclass(cls, LOCAL)]
    rows = sorted((cls.status, cls.code) for cls in wire if cls is not GatepostError)
    return "\n".join(["| status | code |", "|---|---|", *(f"| {s} | `{c}` |" for s, c in rows)])


def pipeline_tables() -> str:
    return "\n\n".join(
        "\n".join(
            [
                f"### `{table.name}`",
                "",
                table.meaning,
                "",
                "| column | type | |",
                "|---|---|---|",
                *(f"| `{c.name}` | {_type(c.type)} | {c.meaning} |" for c in table.columns),
            ]
        )
        for table in TABLES.values()
    )


def _type(text: str) -> str:
    """What is made of many parts is only named."""
    return text.partition("<")[0] if "struct<" in text else text


def pipeline_rules() -> str:
    rows = (f"| `{rule}` | {sentence} |" for rule, sentence in RULES.items())
    return "\n".join(["| rule | promise |", "|---|---|", *rows])


PARTS = {
    "diagram: mailbox.states": mailbox_states,
    "diagram: delivery.states": delivery_states,
    "diagram: inbox.states": inbox_states,
    "table: errors": errors,
    "table: pipeline.tables": pipeline_tables,
    "table: pipeline.rules": pipeline_rules,
}


def filled(text: str) -> str:
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
        new = filled(old)
        if new != old:
            stale.append(page.name)
            if not check:
                page.write_text(new)
    verb = "stale" if check else "written"
    print(f"{verb}: {', '.join(stale)}" if stale else "docs are up to date")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
