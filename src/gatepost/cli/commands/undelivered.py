"""`gatepost undelivered`: messages this gateway gave up, and giving up messages by hand."""

import time
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.letters import (
    LetterBox,
    PageLimit,
    check_replayed,
    discard_letters,
    print_letter,
    print_page,
    require_choice,
)
from gatepost.cli.options import DEFAULT_OPTIONS, Flag, GatewayOptions, YesOption
from gatepost.cli.problems import ExitCode
from gatepost.wire.gateway_views import Replayed, Replays, Undelivered, UndeliveredPage
from gatepost.wire.operations import Count

AgentOption = Annotated[str | None, Parameter(help="Only messages from or to this agent.")]
ReasonOption = Annotated[str | None, Parameter(help="Only messages given up for this reason.")]
OlderThanOption = Annotated[
    float | None,
    Parameter(
        validator=Number(gte=0), help="Only messages given up at least this many seconds ago."
    ),
]
AllOption = Annotated[Flag, Parameter(name="--all", help="All undelivered messages.")]

_BOX = LetterBox("/v1/undelivered", "undelivered message")
_COLUMNS = ("Message", "From", "To", "Given up", "Reason", "Verdict", "Replayed as")
# A replay with a rate is answered only when it is complete.
_MAX_REPLAY_SECS = 24 * 3600.0


class CliUndeliveredFilter(Struct, omit_defaults=True):
    event_ids: list[str] | None = None
    agent: str | None = None
    reason: str | None = None
    failed_before: int | None = None


class CliUndeliveredReplay(CliUndeliveredFilter, omit_defaults=True):
    force: bool = False
    limit: int = 1000
    rate_per_sec: float | None = None


class CliGiveUp(Struct, omit_defaults=True):
    event_ids: list[str] | None = None
    node: str | None = None
    agent: str | None = None


def list_undelivered(
    *,
    agent: AgentOption = None,
    reason: ReasonOption = None,
    older_than: OlderThanOption = None,
    replayed: Annotated[bool | None, Parameter(negative="--not-replayed")] = None,
    limit: PageLimit = 100,
    after: str | None = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """List messages this gateway gave up, oldest first.

    For example:

      gatepost undelivered list
      gatepost undelivered list --agent bob --reason expired --older-than 3600

    Parameters
    ----------
    replayed
        Only messages that were replayed, or that were not.
    limit
        Maximum number of messages.
    after
        Start after this message id.
    """
    with options.find_gateway() as gateway:
        found = gateway.get(
            _BOX.path,
            UndeliveredPage,
            limit=limit,
            after=after,
            agent=agent,
            reason=reason,
            failed_before=_failed_before(older_than),
            replayed=None if replayed is None else str(replayed).lower(),
        ).messages
    print_page(
        options,
        found,
        limit,
        lambda letter: letter.event_id,
        _print_undelivered_list,
        "no matching undelivered messages",
    )


def _failed_before(age: float | None) -> int | None:
    return None if age is None else int(time.time() - age)


def _print_undelivered_list(found: Sequence[Undelivered]) -> None:
    rows = [
        (
            u.event_id,
            u.from_agent,
            u.to_agent,
            output.format_ago(u.failed_at),
            u.reason,
            _verdict_text(u),
            u.replayed_as or "",
        )
        for u in found
    ]
    output.print_messages(_COLUMNS, rows, [u.subject for u in found])


def _verdict_text(letter: Undelivered) -> str:
    late = "" if letter.verdict_at is None else f", {output.format_ago(letter.verdict_at)}"
    return f"{letter.verdict or 'unknown'}{late}{'' if letter.safe else ' (needs --force)'}"


def show_undelivered(event_id: str, /, *, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Show one undelivered message with its payload.

    For example:

      gatepost undelivered show ID

    Parameters
    ----------
    event_id
        The id of the message; `gatepost undelivered list` shows all.
    """
    with options.find_gateway() as gateway:
        letter = gateway.get(_BOX.letter_path(event_id), Undelivered)
    output.print_result(options, letter, lambda: _print_undelivered(letter))


def _print_undelivered(letter: Undelivered) -> None:
    facts = {
        "given up": f"{output.format_ago(letter.failed_at)}, sent {letter.attempts} times",
        "subject": letter.subject or "",
        "reason": letter.reason,
        "verdict": _verdict_text(letter),
        "replayed": f"as {letter.replayed_as}" if letter.replayed_as else "",
    }
    ends = f"from {letter.from_agent} to {letter.to_agent}"
    print_letter(
        f"{letter.event_id} {ends} at {letter.node or 'no gateway'}", facts, _payload_text(letter)
    )


def _payload_text(letter: Undelivered) -> str:
    if letter.payload_ref is None:
        return output.payload_text(letter.payload)
    return f"see `gatepost fetch {letter.payload_ref}`"


def replay_undelivered(
    *event_ids: str,
    agent: AgentOption = None,
    reason: ReasonOption = None,
    older_than: OlderThanOption = None,
    all_: AllOption = False,
    force: Flag = False,
    rate: Annotated[float | None, Parameter(validator=Number(gte=0.01))] = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=100_000))] = 1000,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Send undelivered messages again as new events.

    The gateway that was asked last may have taken the turn after all. Without
    --force, only messages are replayed that it denied, or for which none was asked.

    For example:

      gatepost undelivered replay ID
      gatepost undelivered replay --agent bob --rate 5
      gatepost undelivered replay ID --force

    Parameters
    ----------
    event_ids
        Ids of messages; or choose by the options below.
    force
        Include messages whose turn may have been taken, and messages replayed before.
    rate
        Maximum number per second.
    limit
        Maximum number of messages.
    """
    chosen = _build_filter(event_ids, agent, reason, older_than, all_)
    body = CliUndeliveredReplay(
        chosen.event_ids, chosen.agent, chosen.reason, chosen.failed_before, force, limit, rate
    )
    wait = 0.0 if rate is None else min(limit / rate, _MAX_REPLAY_SECS)
    with options.find_gateway() as gateway:
        results = gateway.post(f"{_BOX.path}/replay", body, Replays, wait=wait).results
    output.print_result(options, {"results": results}, lambda: _print_replayed(results))
    refused = [each.error for each in results if each.error is not None]
    return check_replayed(
        len(results),
        refused,
        f"{output.format_count(len(refused), 'message')} not replayed",
        "no matching undelivered message; see `gatepost undelivered list`",
    )


def _print_replayed(results: list[Replayed]) -> None:
    for each in results:
        outcome = (
            f"not replayed: {each.error.message}" if each.error else f"replayed as {each.as_event}"
        )
        output.print_line(f"{each.event_id} {outcome}")


def discard_undelivered(
    *event_ids: str,
    agent: AgentOption = None,
    reason: ReasonOption = None,
    older_than: OlderThanOption = None,
    all_: AllOption = False,
    yes: YesOption = False,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Discard undelivered messages and their payloads.

    For example:

      gatepost undelivered discard ID
      gatepost undelivered discard --all --yes

    Parameters
    ----------
    event_ids
        Ids of messages; or choose by the options below.
    """
    wanted = _build_filter(event_ids, agent, reason, older_than, all_)
    return discard_letters(_BOX, wanted, _BOX.choice_text(event_ids, every=all_), yes, options)


def give_up_messages(
    *event_ids: str,
    node: Annotated[str | None, Parameter(help="All open messages for this gateway.")] = None,
    agent: Annotated[str | None, Parameter(help="All open messages for this agent.")] = None,
    yes: YesOption = False,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Give up open messages whose gateway never comes back.

    They become undelivered messages with the reason `given_up`, and free their
    senders' later messages. A receipt that comes after all is shown as verdict.

    For example:

      gatepost undelivered give-up --node lab
      gatepost undelivered give-up ID

    Parameters
    ----------
    event_ids
        Ids of messages that were sent from here; or choose by the options below.
    """
    require_choice(bool(event_ids or node or agent), False, "messages by id, --node or --agent")
    choice = output.format_count(len(event_ids), "message") if event_ids else "all open messages"
    scope = "".join(f" for {name}" for name in (node, agent) if name)
    if not output.confirm_action(f"Give up {choice}{scope}?", yes, options):
        return ExitCode.FAILED
    body = CliGiveUp(list(event_ids) or None, node, agent)
    with options.find_gateway() as gateway:
        count = gateway.post(f"{_BOX.path}/give-up", body, Count).count
    text = f"{output.format_count(count, 'message')} given up"
    output.print_result(options, {"count": count}, lambda: output.print_line(text))
    return ExitCode.OK


def _build_filter(
    event_ids: tuple[str, ...],
    agent: str | None,
    reason: str | None,
    older_than: float | None,
    every: bool,
) -> CliUndeliveredFilter:
    chosen = bool(event_ids or agent or reason or older_than is not None)
    require_choice(chosen, every, "messages by id, --agent, --reason or --older-than")
    return CliUndeliveredFilter(list(event_ids) or None, agent, reason, _failed_before(older_than))
