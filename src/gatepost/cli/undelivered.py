"""`gatepost undelivered`: lists, shows, replays and discards messages this gateway gave up."""

import time
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.connect import segment
from gatepost.cli.options import OPTIONS, Flag, Options, Yes
from gatepost.cli.problems import Exit, Problem, usage
from gatepost.wire import Count, Replayed, Replays, Undelivered, UndeliveredPage

Agent = Annotated[str | None, Parameter(help="Only messages from or to this agent.")]
Reason = Annotated[str | None, Parameter(help="Only messages given up for this reason.")]
OlderThan = Annotated[
    float | None,
    Parameter(
        validator=Number(gte=0), help="Only messages given up at least this many seconds ago."
    ),
]
All = Annotated[Flag, Parameter(name="--all", help="All undelivered messages.")]

_COLUMNS = ("Message", "From", "To", "Given up", "Reason", "Verdict", "Replayed as")
# A replay with a rate is answered only when it is complete.
_LONGEST_SECS = 24 * 3600.0


class Wanted(Struct, omit_defaults=True):
    event_ids: list[str] | None = None
    agent: str | None = None
    reason: str | None = None
    failed_before: int | None = None


class Replay(Wanted, omit_defaults=True):
    force: bool = False
    limit: int = 1000
    rate_per_sec: float | None = None


def list_(
    *,
    agent: Agent = None,
    reason: Reason = None,
    older_than: OlderThan = None,
    replayed: Annotated[bool | None, Parameter(negative="--not-replayed")] = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=1000))] = 100,
    after: str | None = None,
    options: Options = OPTIONS,
) -> None:
    """List messages this gateway gave up, oldest first.

    Parameters
    ----------
    replayed
        Only messages that were replayed, or that were not.
    limit
        Maximum number of messages.
    after
        Start after this message id.
    """
    with options.gateway() as gateway:
        found = gateway.get(
            "/v1/undelivered",
            UndeliveredPage,
            limit=limit,
            after=after,
            agent=agent,
            reason=reason,
            failed_before=_before(older_than),
            replayed=None if replayed is None else str(replayed).lower(),
        ).messages
    output.show(options, {"messages": found}, lambda: _list(found))
    if len(found) == limit:
        output.hint(f"There may be more: --after {found[-1].event_id}")


def _before(age: float | None) -> int | None:
    return None if age is None else int(time.time() - age)


def _list(found: list[Undelivered]) -> None:
    if not found:
        output.say("no matching undelivered messages")
        return
    rows = [
        (u.event_id, u.from_agent, u.to_agent, _ago(u), u.reason, _verdict(u), u.replayed_as or "")
        for u in found
    ]
    output.table(_COLUMNS, rows)


def _ago(letter: Undelivered) -> str:
    return f"{output.age(letter.failed_at / 1000)} ago"


def _verdict(letter: Undelivered) -> str:
    return f"{letter.verdict or 'unknown'}{'' if letter.safe else ' (needs --force)'}"


def show(event_id: str, /, *, options: Options = OPTIONS) -> None:
    """Show one undelivered message with its payload.

    Parameters
    ----------
    event_id
        The id of the message; `gatepost undelivered list` shows all.
    """
    with options.gateway() as gateway:
        letter = gateway.get(f"/v1/undelivered/{segment(event_id)}", Undelivered)
    output.show(options, letter, lambda: _show(letter))


def _show(letter: Undelivered) -> None:
    ends = f"from {letter.from_agent} to {letter.to_agent}"
    output.say(f"{letter.event_id} {ends} at {letter.node or 'no gateway'}", "bold")
    output.say(f"given up  {_ago(letter)}, sent {letter.attempts} times")
    output.say(f"reason    {letter.reason}")
    output.say(f"verdict   {_verdict(letter)}")
    if letter.replayed_as:
        output.say(f"replayed  as {letter.replayed_as}")
    output.say("")
    if letter.payload_ref is None:
        output.say(output.payload_text(letter.payload))
    else:
        output.say(f"see `gatepost fetch {letter.payload_ref}`")


def replay(
    *event_ids: str,
    agent: Agent = None,
    reason: Reason = None,
    older_than: OlderThan = None,
    all_: All = False,
    force: Flag = False,
    rate: Annotated[float | None, Parameter(validator=Number(gte=0.01))] = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=100_000))] = 1000,
    options: Options = OPTIONS,
) -> int:
    """Send undelivered messages again as new events.

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
    chosen = _wanted(event_ids, agent, reason, older_than, all_)
    body = Replay(
        chosen.event_ids, chosen.agent, chosen.reason, chosen.failed_before, force, limit, rate
    )
    wait = 0.0 if rate is None else min(limit / rate, _LONGEST_SECS)
    with options.gateway() as gateway:
        results = gateway.post("/v1/undelivered/replay", body, Replays, wait=wait).results
    output.show(options, {"results": results}, lambda: _report(results))
    return _end(results)


def _report(results: list[Replayed]) -> None:
    for each in results:
        outcome = (
            f"not replayed: {each.error.message}" if each.error else f"replayed as {each.as_event}"
        )
        output.say(f"{each.event_id} {outcome}")


def _end(results: list[Replayed]) -> int:
    if not results:
        raise Problem(
            "unknown_message", "no matching undelivered message; see `gatepost undelivered list`"
        )
    refused = [each.error for each in results if each.error is not None]
    if refused:
        count = output.plural(len(refused), "message")
        raise Problem(refused[0].code, f"{count} not replayed: {refused[0].message}")
    return Exit.OK


def discard(
    *event_ids: str,
    agent: Agent = None,
    reason: Reason = None,
    older_than: OlderThan = None,
    all_: All = False,
    yes: Yes = False,
    options: Options = OPTIONS,
) -> int:
    """Discard undelivered messages.

    Parameters
    ----------
    event_ids
        Ids of messages; or choose by the options below.
    """
    wanted = _wanted(event_ids, agent, reason, older_than, all_)
    named = output.plural(len(event_ids), "message") if event_ids else "the matching messages"
    if not output.confirm(f"Discard {named} for good?", yes, options):
        return Exit.FAILED
    with options.gateway() as gateway:
        count = gateway.post("/v1/undelivered/discard", wanted, Count).count
    done = f"{output.plural(count, 'undelivered message')} discarded"
    output.show(options, {"count": count}, lambda: output.say(done))
    return Exit.OK


def _wanted(
    event_ids: tuple[str, ...],
    agent: str | None,
    reason: str | None,
    older_than: float | None,
    every: bool,
) -> Wanted:
    chosen = bool(event_ids or agent or reason or older_than is not None)
    if chosen == every:
        raise usage("choose messages by id, --agent, --reason or --older-than, or all with --all")
    return Wanted(list(event_ids) or None, agent, reason, _before(older_than))
