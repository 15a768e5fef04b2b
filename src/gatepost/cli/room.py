"""`gatepost invite`, `join`, `nodes`, `revoke` and `room`: the room and its nodes."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from gatepost.cli import output
from gatepost.cli.connect import Gateway, segment
from gatepost.cli.options import COMMON, OPTIONS, Flag, Options, Output, Yes
from gatepost.cli.problems import Exit, Problem, usage
from gatepost.gateway.api.room_views import (
    InviteResult,
    InviteView,
    JoinResult,
    NodeList,
    NodeView,
    RecordView,
    RevocationView,
    RoomView,
    RotateResult,
    VerifyResult,
)
from gatepost.wire import Tier

_WATCH_SECS = 30.0
_JOIN_SECS = 30.0
_MAX_TOKEN = 1024


@Parameter(name="*", group=COMMON)
@dataclass(frozen=True, kw_only=True)
class JoinOptions(Output):
    """The common options without `--token-file`, which names the invite's file here."""

    state_dir: Path | None = None
    "State directory of the gateway. Default: $GATEPOST_HOME, else ~/.gatepost."
    url: str | None = None
    "Address of the gateway. Default: $GATEPOST_URL, else the one running on the state directory."

    def gateway(self) -> Gateway:
        return Options(json=self.json, state_dir=self.state_dir, url=self.url).gateway()


_JOIN_OPTIONS = JoinOptions()


def invite(
    *,
    tier: Tier = "edge",
    node: str | None = None,
    ttl: Annotated[int, Parameter(name="--ttl")] = 3600,
    qr: Flag = False,
    options: Options = OPTIONS,
) -> None:
    """Invite a node.

    Parameters
    ----------
    tier
        The role of the new node: backbone nodes may invite others, edge nodes may not.
    node
        The id of the new node, so that no other node can use the invite.
    ttl
        Seconds until the invite expires.
    qr
        Draw the QR code even if the output is not a terminal.
    """
    with options.gateway() as gateway:
        body = {"tier": tier, "node": node, "ttl_secs": ttl}
        invited = gateway.post("/v1/room/invites", body, InviteResult)
    output.show(options, invited, lambda: _say_invited(invited, qr=qr))


def _say_invited(invited: InviteResult, *, qr: bool) -> None:
    output.say(invited.token)
    if qr or sys.stdout.isatty():
        from gatepost.access.invite_qr import render_qr

        print(render_qr(invited.token))
    node = invited.invite.node or "the new node"
    seed = invited.seed or "https://THIS-GATEWAY"
    output.hint(f"on {node}, paste the line above into\n  gatepost join {seed} --token -")


def invites(*, options: Options = OPTIONS) -> None:
    """List the invites this gateway issued."""
    with options.gateway() as gateway:
        found = gateway.get("/v1/room/invites", list[InviteView])
    rows = [(i.id, i.tier, i.node or "any", i.state, i.used_by or "") for i in found]
    columns = ("Invite", "Tier", "For", "State", "Used by")
    output.show(options, found, lambda: _table(columns, rows, "no invites yet"))


def withdraw(invite_id: str, /, *, options: Options = OPTIONS) -> None:
    """Withdraw an invite that was not used yet.

    Parameters
    ----------
    invite_id
        The id of the invite; `gatepost invites` shows all.
    """
    with options.gateway() as gateway:
        taken = gateway.delete(f"/v1/room/invites/{segment(invite_id)}", InviteView)
    output.show(options, taken, lambda: output.say(f"invite {taken.id} is {taken.state}"))


def join(
    seed: str,
    /,
    *,
    invite_file: Annotated[Path | None, Parameter(name="--token-file")] = None,
    token: Annotated[str | None, Parameter(name="--token", allow_leading_hyphen=True)] = None,
    options: JoinOptions = _JOIN_OPTIONS,
) -> None:
    """Join the room of another gateway.

    Parameters
    ----------
    seed
        The gateway that issued the invite, as https://HOST:PORT.
    invite_file
        File that holds the invite.
    token
        `-` reads the invite from standard input. Invites on the command line are refused: other
        users could see them.
    """
    body = {"seed": seed.rstrip("/"), "token": _token(invite_file, token)}
    with options.gateway() as gateway:
        joined = gateway.post("/v1/room/join", body, JoinResult, wait=_JOIN_SECS)
    text = f"joined the room of {joined.genesis} through {joined.host}, as {joined.tier} node"
    output.show(options, joined, lambda: output.say(text))


def _token(file: Path | None, token: str | None) -> str:
    if (file is None) == (token is None):
        raise usage("give the invite with --token-file FILE, or with --token - on standard input")
    if token is not None and token != "-":
        raise usage("an invite on the command line can be seen by others: use --token - instead")
    if file is None:
        output.hint("paste the invite, then press Enter")
        return sys.stdin.readline(_MAX_TOKEN).strip()
    try:
        return file.read_text(encoding="utf-8")[:_MAX_TOKEN].strip()
    except (OSError, UnicodeDecodeError):
        raise Problem("usage", f"{file} cannot be read", Exit.USAGE) from None


def nodes(*, options: Options = OPTIONS) -> None:
    """List the nodes of the room."""
    with options.gateway() as gateway:
        found = gateway.get("/v1/room/nodes", NodeList)
    output.show(options, found, lambda: _say_nodes(found))


def _say_nodes(found: NodeList) -> None:
    rows = [
        (n.id, n.tier, n.status, _link(n), f"{output.age(n.last_heartbeat_at / 1000)} ago")
        for n in found.nodes
    ]
    rows += [(node.id, "", "revoked", "", "") for node in found.revoked]
    _table(("Node", "Tier", "Status", "Connected", "Last heartbeat"), rows, "no nodes yet")
    for url, problem in found.problems.items():
        output.hint(f"not connected to {url}: {problem}")


def _link(node: NodeView) -> str:
    return "this one" if node.is_self else "yes" if node.connected else "no"


def revoke(node: str, /, *, reason: str = "", yes: Yes = False, options: Options = OPTIONS) -> int:
    """Revoke a node: it is disconnected now and can never join again.

    Parameters
    ----------
    node
        The id of the node; `gatepost nodes` shows all.
    reason
        The reason, for the audit log.
    """
    question = f"Revoke {node}? Its id and its key can never join again."
    if not output.confirm(question, yes, options):
        return Exit.FAILED
    with options.gateway() as gateway:
        path = f"/v1/room/nodes/{segment(node)}/revoke"
        done = gateway.post(path, {"reason": reason}, RevocationView)
    ended = output.plural(done.connections_ended, "connection")
    output.show(options, done, lambda: output.say(f"{done.node} is revoked; {ended} closed"))
    return Exit.OK


def show(*, options: Options = OPTIONS) -> None:
    """Show every record of the room."""
    with options.gateway() as gateway:
        room = gateway.get("/v1/room", RoomView)
    output.show(options, room, lambda: _say_room(room))


def _say_room(room: RoomView) -> None:
    output.say(f"{room.room}, founded by {room.genesis}", "bold")
    rows = [(r.map, r.key, r.version, r.state, _data(r)) for r in room.records]
    _table(("Map", "Key", "Version", "State", "Data"), rows, "no records")


def _data(record: RecordView) -> str:
    parsed = msgspec.json.decode(record.record)
    return msgspec.json.encode(parsed.get("data")).decode() if "data" in parsed else ""


def watch(*, options: Options = OPTIONS) -> None:
    """Print every record as it changes, until Ctrl-C."""
    with options.gateway() as gateway:
        seen = gateway.get("/v1/room", RoomView)
        print(f"watching {seen.room}; Ctrl-C stops", file=sys.stderr, flush=True)
        while True:
            seen = _next(gateway, seen, options)


def _next(gateway: Gateway, before: RoomView, options: Options) -> RoomView:
    wait = {"seen": before.changes, "wait_secs": _WATCH_SECS}
    room = gateway.get("/v1/room", RoomView, _WATCH_SECS, **wait)
    known = {bytes(record.record) for record in before.records}
    for record in room.records:
        if bytes(record.record) not in known:
            _say_record(record, options)
    return room


def _say_record(record: RecordView, options: Options) -> None:
    text = f"{record.map} {record.key} v{record.version} {record.state} {_data(record)}"
    output.show(options, record, lambda: output.say(text))
    sys.stdout.flush()


def verify(*, options: Options = OPTIONS) -> int:
    """Check the signature of every record this gateway keeps."""
    with options.gateway() as gateway:
        found = gateway.get("/v1/room/verify", VerifyResult)
    output.show(options, found, lambda: _say_verified(found))
    return Exit.FAILED if found.problems else Exit.OK


def rotate(*, options: Options = OPTIONS) -> None:
    """Move the room to a new document without records that are no longer needed."""
    with options.gateway() as gateway:
        moved = gateway.post("/v1/room/rotate", {}, RotateResult)
    count = output.plural(moved.records, "record")
    output.show(options, moved, lambda: output.say(f"the room is {moved.room} now, with {count}"))


def _say_verified(found: VerifyResult) -> None:
    for problem in found.problems:
        output.say(problem, "red")
    count = output.plural(found.records, "record")
    output.say(f"{count}, {len(found.problems) or 'none'} of them invalid")


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    if rows:
        output.table(columns, rows)
    else:
        output.say(empty)
