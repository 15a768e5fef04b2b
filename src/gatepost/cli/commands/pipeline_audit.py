"""`gatepost pipeline audit`: checks every promise against every archived event."""

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OUTPUT, OutputOptions
from gatepost.cli.problems import CommandProblem, ExitCode
from gatepost.cli.spark_jobs import DEFAULT_LOCATIONS, JobLocations, open_runner, print_engine
from gatepost.errors import GatepostError
from gatepost.ledger import Ledger

if TYPE_CHECKING:
    from gatepost.pipeline.engine_use import EngineUse
    from gatepost.pipeline.jobs.audit import AuditResult
    from gatepost.pipeline.report.model import ReportViolation

AUDIT_EXITS: Final[dict[str, ExitCode]] = {
    "kept": ExitCode.OK,
    "broken": ExitCode.FAILED,
    "undecided": ExitCode.UNDECIDED,
}


class AuditDocument(Struct):
    """`verdict` is kept, broken or undecided; `unjudged` counts the reasons for the last.

    `keys`: the source of the nodes' public keys, `room` or `self-asserted`.
    `unwitnessed`: the nodes whose archive no other gateway proves to be the newest.
    `ledger`: what became of the messages, as of the last `gatepost pipeline run`.
    `engine`: what ran the audit.
    """

    verdict: str
    events: int
    violations: dict[str, int]
    unjudged: int
    keys: str
    unwitnessed: list[str]
    ledger: Ledger | None
    samples: "list[ReportViolation]"
    engine: "EngineUse"


def audit_archive(
    *,
    absent: list[str] | None = None,
    places: JobLocations = DEFAULT_LOCATIONS,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Check every promise of the protocol against every event.

    Exits with 0 if all were kept, with 1 if one was broken, with 2 if the audit could not judge.

    For example:

      gatepost pipeline audit
      gatepost pipeline audit --archive /srv/archive --json
      gatepost pipeline audit --absent old-laptop

    Parameters
    ----------
    absent
        A node of the room that keeps no archive here. May be repeated.
    """
    archive, tables, wanted = places.archive_uri(), places.tables_folder(), places.load_objectives()
    try:
        with open_runner(places, options, "auditing") as runner:
            from gatepost.pipeline.jobs.audit import audit_archive as check

            found = runner.call(
                lambda transport: check(transport, archive, tables, wanted, absent or ())
            )
            use = runner.engine_use()
    except GatepostError as error:
        # Exit code 1 would say that a promise was broken.
        raise CommandProblem(error.code, error.message, ExitCode.UNDECIDED) from None
    document = make_document(found, tables, use)
    output.print_result(options, document, lambda: print_audit(document, found))
    if not options.json:
        print_engine(use)
    return AUDIT_EXITS[found.verdict]


def make_document(found: "AuditResult", tables: str, use: "EngineUse") -> AuditDocument:
    from gatepost.pipeline.report.gatherer import read_last_audit

    known = read_last_audit(tables)
    return AuditDocument(
        found.verdict,
        found.events,
        found.violations,
        found.unjudged,
        found.keys,
        list(found.unwitnessed),
        found.ledger,
        known.samples if known else [],
        use,
    )


def print_audit(document: AuditDocument, found: "AuditResult") -> None:
    _print_counts(document)
    if found.ledger is not None:
        output.print_line(str(found.ledger))
    events, broken = output.format_count(found.events, "event"), sum(found.violations.values())
    if found.verdict == "kept":
        output.print_line(f"{events}: every promise kept", "green")
    elif found.verdict == "broken":
        output.print_line(f"{events}: {output.format_count(broken, 'broken promise')}", "red")
    if found.unjudged:
        reasons = output.format_count(found.unjudged, "reason")
        output.print_line(f"{events}: the audit could not judge every node ({reasons})", "yellow")
    if found.self_asserted:
        nodes = ", ".join(found.self_asserted)
        output.print_line(f"keys: {found.keys} (no other gateway vouches for {nodes})")
    if found.unwitnessed:
        nodes = ", ".join(found.unwitnessed)
        output.print_line(f"not proven: newest; highest head seen by others: none ({nodes})")


def _print_counts(document: AuditDocument) -> None:
    """The broken rules with their counts, causes first, and samples of each."""
    from gatepost.pipeline.audit.rules import SENTENCES

    if document.violations:
        counts = [(rule, count, SENTENCES[rule]) for rule, count in document.violations.items()]
        output.print_table(("Rule", "Broken", "Promise"), counts)
        output.print_line("")
    if document.samples:
        rows = [
            (found.node or "", "" if found.seq is None else found.seq, found.rule, found.detail)
            for found in document.samples
        ]
        output.print_table(("Node", "Seq", "Rule", "What was found"), rows)
    left = sum(document.violations.values()) + document.unjudged - len(document.samples)
    if left > 0:
        output.print_line(f"… and {left} more, in the table violations")
