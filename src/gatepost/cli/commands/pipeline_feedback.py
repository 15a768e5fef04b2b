"""`gatepost pipeline feedback` and `replay`: results of the pipeline, sent back to a gateway."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OPTIONS, Flag, GatewayOptions
from gatepost.cli.problems import ExitCode, unreachable_problem
from gatepost.cli.progress_bar import ProgressBar
from gatepost.cli.spark_jobs import (
    MasterOption,
    PositiveCount,
    TablesOption,
    open_spark,
    require_pipeline,
    run_in_thread,
    tables_folder_or_default,
)
from gatepost.errors import Unavailable

if TYPE_CHECKING:
    from gatepost.pipeline.dead_letter_replay import ChosenLetters, RemoteLetters, ReplayOutcome
    from gatepost.pipeline.feedback import FeedbackOutcome
    from gatepost.pipeline.gateway_api import GatewayApi


class ReplayDocument(Struct):
    """`elsewhere`: letters that other gateways hold. `answered`: skipped, as they were answered."""

    node: str | None
    outcomes: "list[ReplayOutcome]"
    elsewhere: "list[RemoteLetters]"
    answered: int
    more: bool


def post_feedback(*, tables: TablesOption = None, options: GatewayOptions = DEFAULT_OPTIONS) -> int:
    """Post incidents, reviews and ETA advice to a gateway.

    The gateway ignores items it has already, so this can be repeated. It needs a token
    file whose token has the scope ansible.admin.feedback. If the file holds an invite,
    as `gatepost agent invite` prints it, the invite is replaced by its session.

    For example:

      gatepost pipeline feedback
      gatepost pipeline feedback --url https://vps-jane:7433 --token-file feedback.token
    """
    folder = tables_folder_or_default(tables, options.state_dir)
    with require_pipeline():
        from gatepost.pipeline.feedback import post_feedback
    with _open_gateway(options) as gateway:
        posted = post_feedback(folder, gateway)
    output.print_result(options, posted, lambda: _print_posted(posted))
    return ExitCode.OK if all(each.ok for each in posted) else ExitCode.FAILED


def _print_posted(posted: "list[FeedbackOutcome]") -> None:
    rows = [
        (p.what, p.found, p.new, p.given - p.new, p.skipped, len(p.refused), _problem_text(p))
        for p in posted
    ]
    columns = ("Kind", "Found", "New", "Known", "Skipped", "Refused", "Problem")
    output.print_table(columns, rows)


def _problem_text(posted: "FeedbackOutcome") -> str:
    return posted.error or (posted.refused[0] if posted.refused else "")


def replay_dead_letters(
    *,
    where: str,
    limit: PositiveCount = 1000,
    rate: Annotated[float | None, Parameter(validator=Number(gte=0.01))] = None,
    dry_run: Flag = False,
    tables: TablesOption = None,
    master: MasterOption = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Choose dead letters with SQL, and replay them at their gateway.

    Replays only at the gateway of the given token; for other gateways it prints
    commands to run there. Letters that were replayed before are skipped.

    For example:

      gatepost pipeline replay --where "to_agent = 'bob'" --dry-run
      gatepost pipeline replay --where "reason = 'no_route'" --rate 5

    Parameters
    ----------
    where
        An SQL condition over the table deliveries, such as "to_agent = 'bob'".
    limit
        Maximum number of dead letters, oldest first.
    rate
        Maximum number per second. Ctrl-C stops the replay but does not undo it.
    dry_run
        Only list them; replay nothing.
    """
    folder = tables_folder_or_default(tables, options.state_dir)
    with open_spark(master, options, "choosing") as spark:
        from gatepost.pipeline.dead_letter_replay import choose_letters

        chosen = run_in_thread(spark, lambda: choose_letters(spark, folder, where, limit))
    document = _dry_run_document(chosen) if dry_run else _replay_at_gateway(chosen, rate, options)
    output.print_result(options, document, lambda: _print_replay(document, chosen))
    refused = any(outcome.state == "refused" for outcome in document.outcomes)
    return ExitCode.FAILED if refused else ExitCode.OK


def _dry_run_document(chosen: "ChosenLetters") -> ReplayDocument:
    from gatepost.pipeline.dead_letter_replay import replay_commands

    return ReplayDocument(None, [], replay_commands(chosen.letters), chosen.answered, chosen.more)


def _replay_at_gateway(
    chosen: "ChosenLetters", rate: float | None, options: GatewayOptions
) -> ReplayDocument:
    """Replay letters at our gateway; for other gateways list the commands to run there."""
    from gatepost.pipeline import dead_letter_replay as job

    with _open_gateway(options) as gateway:
        node = gateway.fetch_node_id()
        here = [letter for letter in chosen.letters if letter.node == node]
        others = [letter for letter in chosen.letters if letter.node != node]
        with ProgressBar("replaying", len(here), options, "messages") as progress:
            outcomes = job.replay_letters(gateway, here, rate=rate, done=progress.advance)
    return ReplayDocument(node, outcomes, job.replay_commands(others), chosen.answered, chosen.more)


def _print_replay(document: ReplayDocument, chosen: "ChosenLetters") -> None:
    if not chosen.letters:
        output.print_line("no matching dead letters")
    if document.outcomes:
        rows = [(o.event_id, o.state.replace("_", " "), o.detail) for o in document.outcomes]
        output.print_table(("Message", f"At {document.node}", "As, or why"), rows)
    for held in document.elsewhere:
        output.print_line(
            f"{held.node} holds {output.format_count(held.letters, 'dead letter')}; run there:",
            "bold",
        )
        for command in held.commands:
            output.print_line(f"  {command}")
    if document.answered:
        output.print_line(f"{document.answered} were given up but answered later: not replayed")
    if document.more:
        output.print_hint("There are more: raise --limit.")


@contextmanager
def _open_gateway(options: GatewayOptions) -> "Iterator[GatewayApi]":
    from gatepost.cli.gateway_api import locate_gateway
    from gatepost.pipeline.gateway_api import GatewayApi

    target = locate_gateway(options, os.environ).load_token()
    try:
        with GatewayApi(target.url, target.token, verify=target.tls or True) as gateway:
            yield gateway
    except Unavailable as error:
        raise unreachable_problem(error.message) from None
