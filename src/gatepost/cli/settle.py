"""`gatepost ack` and `gatepost nack`: settle leased messages."""

from typing import Annotated

from cyclopts import Parameter
from msgspec import Raw, Struct, field

from gatepost.cli import output
from gatepost.cli.connect import mailbox
from gatepost.cli.options import OPTIONS, AgentName, Flag, Options
from gatepost.cli.payload import json_payload_of
from gatepost.cli.problems import Exit, Problem, usage
from gatepost.wire import Settled

MsgIds = Annotated[
    list[str] | None,
    Parameter(negative=(), help="Message id instead of a lease handle; repeatable."),
]


class Turns(Struct, omit_defaults=True):
    receipts: list[str]
    msg_ids: list[str]
    replies: dict[str, Raw] = field(default_factory=dict)
    reason: str = ""


def ack(
    agent: AgentName,
    /,
    *receipts: str,
    msg_id: MsgIds = None,
    reply: str | None = None,
    json_payload: Flag = False,
    options: Options = OPTIONS,
) -> int:
    """Ack leased messages: their turns ended well.

    Parameters
    ----------
    agent
        The agent whose turns end.
    receipts
        Lease handles in the order in which `gatepost inbox --take` printed them.
    reply
        Answer to the sender; - reads it from standard input.
    json_payload
        The reply is JSON, not text.
    """
    turns = _turns(receipts, msg_id)
    if reply is not None:
        if msg_id:
            raise usage("--reply needs a lease handle, not --msg-id")
        answer = Raw(json_payload_of(reply, is_json=json_payload))
        turns.replies = dict.fromkeys(receipts, answer)
    return _settle("ack", agent, turns, options)


def nack(
    agent: AgentName,
    /,
    *receipts: str,
    msg_id: MsgIds = None,
    reason: str = "",
    options: Options = OPTIONS,
) -> int:
    """Nack leased messages: each is retried later, or becomes a dead letter.

    Parameters
    ----------
    agent
        The agent whose turns failed.
    receipts
        Lease handles, as `gatepost inbox --take` printed them.
    reason
        The reason; it is kept with the dead letter.
    """
    turns = _turns(receipts, msg_id)
    turns.reason = reason
    return _settle("nack", agent, turns, options)


def _turns(receipts: tuple[str, ...], msg_ids: list[str] | None) -> Turns:
    if not receipts and not msg_ids:
        raise usage("name at least one lease handle, as `gatepost inbox AGENT --take` prints it")
    return Turns(list(receipts), msg_ids or [])


def _settle(verb: str, agent: str, turns: Turns, options: Options) -> int:
    with options.gateway() as gateway:
        answer = gateway.post(f"{mailbox(agent)}/{verb}", turns, Settled)
    document = {"settled": answer.settled, "failures": answer.failures}
    output.show(options, document, lambda: _print(verb, turns, answer))
    if answer.failures:
        raise Problem(answer.failures[0].code, _failures(answer))
    return Exit.OK


def _print(verb: str, turns: Turns, answer: Settled) -> None:
    repeated = len(turns.receipts) + len(turns.msg_ids) - answer.settled - len(answer.failures)
    note = f", {repeated} already were" if repeated else ""
    output.say(f"{output.plural(answer.settled, 'message')} {verb}ed{note}")


def _failures(answer: Settled) -> str:
    return "; ".join(f"{failure.subject}: {failure.message}" for failure in answer.failures)
