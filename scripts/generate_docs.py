"""Writes the generated diagrams and tables of docs/ from the code."""

import ast
import sys
import tomllib
from enum import StrEnum
from pathlib import Path

from gatepost.delivery import LocalNode, RetryPolicy, build_core
from gatepost.delivery import delivery_states as deliveries
from gatepost.delivery.inbox import inbox_states as inbox
from gatepost.errors import (
    ERRORS_BY_CODE,
    ArchiveError,
    ChainError,
    ConfigError,
    EncryptionError,
    GatepostError,
    JournalError,
    PipelineError,
    TransportUnavailable,
)
from gatepost.events import NodeKey
from gatepost.mailbox import MailboxPolicy
from gatepost.mailbox.states import TERMINAL_STATES, TRANSITIONS
from gatepost.mesh import election_states, peer_states
from gatepost.migration import phase_marker
from gatepost.pipeline.audit.rules import RULES
from gatepost.pipeline.tables.schemas import TABLES
from gatepost.tasks import session_states, task_states
from gatepost.testing import ManualClock

# Errors that end a program or a check rather than answer a request.
LOCAL = (
    *(ConfigError, EncryptionError, ChainError, ArchiveError, PipelineError, JournalError),
    TransportUnavailable,
)
ROOT = Path(__file__).parent.parent
DOCS, PACKAGE = ROOT / "docs", ROOT / "src" / "gatepost"

sys.path.insert(0, str(ROOT))  # For `python scripts/generate_docs.py`.
from scripts.check_tables import load_rules  # noqa: E402
from scripts.journey import JOURNEY, function_name  # noqa: E402

LAYERS = {
    "errors": "every error Gatepost raises on purpose: one tree, each with a wire code",
    "clock": "time and randomness",
    "child_process": "child processes, started without a fork of the interpreter",
    "fair_share": "fair shares of places that several sources fill",
    "durations": "durations in words",
    "display_text": "counts, sizes and times for people; control characters are escaped",
    "files": "atomic replacement of files, synced folders, file locks",
    "config": "settings, each with its limits and its description",
    "events": "envelope, ids, codec, payload encryption, hash chain, blobs",
    "wire": "what travels between programs and their gateway: operations, answers, HTTP bodies",
    "ledger": "what became of messages, in five terms",
    "connect": "finding a gateway and talking to it: endpoint, session, HTTP calls, errors",
    "tls": "certificates and pins",
    "journal": "the SQLite file, the writer with its commit groups, the outbox",
    "archive": "the outbox as signed Parquet segments ([pipeline.md](pipeline.md))",
    "room": "the document all gateways share: signed records in Yjs ([room.md](room.md))",
    "proof": "proofs of messages, and their verification ([proofs.md](proofs.md))",
    "access": "invites, tickets, proofs and sessions of nodes and external agents",
    "mailbox": "lease, ack, nack and dead letters of an agent's mail ([protocol.md](protocol.md))",
    "routing": "the node a message goes to: owner, fallback, or none",
    "delivery": "messages between agents: send, accept, engage, close ([pipes.md](pipes.md))",
    "links": "everything between two gateways: outboxes, relays, blobs, dialling, joining",
    "tasks": "tasks, sessions, capabilities and their policy, with their API ([hub.md](hub.md))",
    "presence": "which gateways are online, silent or dead, and the words for it",
    "listening": "taking connections and requests: listeners, limits, who may call",
    "core": "one gateway without its network: journal, delivery, tasks, background loops",
    "mesh": "who is alive and who leads, and the transports ([mesh.md](mesh.md))",
    "gateway": "the process: composition, API transports, administration, monitoring",
    "a2a": "the door for A2A, and couriers to agents elsewhere ([a2a.md](a2a.md))",
    "mcp": "the MCP server, and what connects clients to it ([mcp.md](mcp.md))",
    "web": "the dashboard: pages for the operator ([dashboard.md](dashboard.md))",
    "client": "the library for authors of agents",
    "tui": "`gatepost top`: the room in a terminal ([terminal.md](terminal.md))",
    "pipeline": "Spark jobs over the archives ([pipeline.md](pipeline.md))",
    "migration": "moving from a legacy shared document ([migration.md](migration.md))",
    "testing": "public fakes: clocks and processes",
    "bench": "measurements",
    "cli": "the command line",
}
# A module that imports one of these reads time or files, or has threads or sockets.
IO_MODULES = {
    *("asyncio", "concurrent", "fcntl", "httpx", "os", "pathlib", "secrets", "shutil", "signal"),
    *("socket", "ssl", "subprocess", "tempfile", "threading", "time", "uvicorn", "uvloop"),
    "websockets",
}
_MAX_NAMED = 4


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
    lines += [f"    {state.value} --> [*]" for state in deliveries.TERMINAL_STATES]
    return "\n".join([*lines, "```"])


def draw_inbox_states() -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    for (source, event), target in inbox.TRANSITIONS.items():
        start = "[*]" if source is inbox.InboxState.UNSEEN else source.value
        lines.append(f"    {start} --> {target.value}: {event.value}")
    lines += [f"    {state.value} --> [*]" for state in inbox.FINAL]
    return "\n".join([*lines, "```"])


def draw_task_states() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> pending: create"]
    for (source, input), target in task_states.TRANSITIONS.items():
        lines.append(f"    {source.value} --> {target.value}: {input.value}")
    lines += [f"    {state.value} --> [*]" for state in task_states.TERMINAL_STATES]
    return "\n".join([*lines, "```"])


def draw_session_states() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> claimed: claim"]
    for (source, input), target in session_states.TRANSITIONS.items():
        lines.append(f"    {source.value} --> {target.value}: {input.value}")
    lines.append(f"    {session_states.RELEASABLE.value} --> [*]: release")
    return "\n".join([*lines, "    recycled --> [*]", "```"])


def draw_migration_phases() -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    for (source, command), target in phase_marker.TRANSITIONS.items():
        start = "[*]" if source is None else _node_of(source)
        lines.append(f"    {start} --> {_node_of(target)}: {command.value}")
    return "\n".join([*lines, "```"])


def _node_of(state: StrEnum) -> str:
    """The name of a state as Mermaid takes it: without a hyphen."""
    return state.value.replace("-", "_")


def draw_peer_states() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> hinted: hint"]
    for (source, input), target in peer_states.TRANSITIONS.items():
        end = "[*]" if target is peer_states.PeerState.FORGOTTEN else target.value
        lines.append(f"    {source.value} --> {end}: {input.value}")
    return "\n".join([*lines, "```"])


def draw_election_states() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> standby"]
    for (source, input), target in election_states.TRANSITIONS.items():
        lines.append(f"    {source.value} --> {target.value}: {input.value}")
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


def layer_table() -> str:
    rows = [
        f"| {', '.join(f'`{name}`' for name in layer)} | {'; '.join(LAYERS[n] for n in layer)}"
        f" | {describe_io(layer)} |"
        for layer in read_layers()
    ]
    return "\n".join(["| layer | purpose | modules with I/O |", "|---|---|---|", *rows])


def read_layers() -> list[list[str]]:
    """The layers of the import contract, lowest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "layers")
    return [_layer_names(layer) for layer in reversed(layers)]


def _layer_names(layer: str) -> list[str]:
    return layer.replace("|", " ").replace(":", " ").replace("(", " ").replace(")", " ").split()


def describe_io(layer: list[str]) -> str:
    found = [module for name in layer for module in _modules_with_io(name)]
    if len(found) > _MAX_NAMED:
        return "many"
    return ", ".join(f"`{module}`" for module in found) or "none"


def _modules_with_io(name: str) -> list[str]:
    """The modules of a layer that have I/O, named from the package on; subpackages as a whole."""
    single = PACKAGE / f"{name}.py"
    files = [single] if single.exists() else sorted((PACKAGE / name).rglob("*.py"))
    found = [path for path in files if imported_modules(path) & IO_MODULES]
    names = [path.relative_to(PACKAGE).with_suffix("").parts[:2] for path in found]
    return list(dict.fromkeys(".".join(parts) for parts in names))


def imported_modules(path: Path) -> set[str]:
    """The top-level names of all modules that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


def owner_table() -> str:
    """Each owner of tables of the journal, and its tables."""
    rules = load_rules((ROOT / "pyproject.toml").read_text())
    tables: dict[str, list[str]] = {}
    for table, owner in rules.owners.items():
        tables.setdefault(owner, []).append(f"`{table}`")
    lines = ["| owner | tables |", "|---|---|"]
    lines += [f"| `{_path_of(owner)}` | {', '.join(names)} |" for owner, names in tables.items()]
    return "\n".join(lines)


def _path_of(owner: str) -> str:
    """A module or package of gatepost as the documents write it."""
    path = owner.replace(".", "/")
    return f"{path}/" if (PACKAGE / path).is_dir() else f"{path}.py"


def decision_table() -> str:
    """Each decision, its meaning, and the function that the coordinator applies it with."""
    node = LocalNode("docs", "0", NodeKey(bytes(32)), ManualClock())
    core = build_core(node, RetryPolicy(), MailboxPolicy())
    rows = [
        f"| `{decision.__name__}` | {_first_sentence(decision)} | `{function_name(handler)}` |"
        for decision, handler in core.coordinator._handlers.items()
    ]
    return "\n".join(["| decision | meaning | applied by |", "|---|---|---|", *rows])


def _first_sentence(decision: type) -> str:
    text = " ".join((decision.__doc__ or "").split())
    return text.partition(". ")[0].rstrip(".")


def list_journey() -> str:
    """All legs with numbered steps; a leg that does not follow the one above names its step."""
    lines: list[str] = []
    last, heading, previous, ends = 0, "", "", {"": 0}
    for leg in JOURNEY:
        if leg.transaction != heading:
            heading = leg.transaction
            lines += [f"### {heading}", ""]
        follows = "" if leg.after == previous else f" This follows step {ends[leg.after]}."
        lines += [leg.text + follows, ""]
        for number, step in enumerate(leg.steps, last + 1):
            lines.append(f"{number}. {step.place}: `{step.name}` {step.text}")
        lines.append("")
        last += len(leg.steps)
        previous, ends[leg.name] = leg.name, last
    return "\n".join(lines[:-1])


PARTS = {
    "table: layers": layer_table,
    "table: owners": owner_table,
    "table: decisions": decision_table,
    "list: journey": list_journey,
    "diagram: mailbox.states": draw_mailbox_states,
    "diagram: delivery.states": draw_delivery_states,
    "diagram: inbox.states": draw_inbox_states,
    "diagram: task.states": draw_task_states,
    "diagram: session.states": draw_session_states,
    "diagram: migration.phases": draw_migration_phases,
    "diagram: peer.states": draw_peer_states,
    "diagram: election.states": draw_election_states,
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
