"""`gatepost invite`, `join`, `nodes`, `revoke` and `room`: the room and its nodes."""

import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from cyclopts import Parameter

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway, quote_segment
from gatepost.cli.options import (
    COMMON_GROUP,
    DEFAULT_OPTIONS,
    Flag,
    GatewayOptions,
    OutputOptions,
    YesOption,
)
from gatepost.cli.problems import (
    CommandProblem,
    ExitCode,
    lost_answer_problem,
    usage_problem,
)
from gatepost.cli.watched_view import WatchOption, show_watched
from gatepost.config import is_loopback
from gatepost.errors import ConfigError
from gatepost.tls import read_authorities
from gatepost.wire.gateway_views import Status
from gatepost.wire.operations import Tier
from gatepost.wire.room_views import (
    SEED_PATTERN,
    InviteResult,
    InviteView,
    JoinResult,
    NodeIdentity,
    NodeList,
    NodeView,
    RecordView,
    RevocationView,
    RoomView,
    RotateResult,
    VerifyResult,
)
from gatepost.wire.view_texts import describe_waiting

_WATCH_SECS = 30.0
# Long enough for a join through Tor.
_JOIN_SECS = 180.0
_RESTART_SECS = 60.0
_RESTART_POLL_SECS = 0.05
_MAX_INVITE_CHARS = 1024
_MAX_DESCRIPTOR_CHARS = 48 * 1024


@Parameter(name="*", group=COMMON_GROUP)
@dataclass(frozen=True, kw_only=True)
class JoinOptions(OutputOptions):
    """The common options without `--token-file`, which names the invite's file here."""

    state_dir: Path | None = None
    "State directory of the gateway. Default: $GATEPOST_HOME, else ~/.gatepost."
    url: str | None = None
    "Address of the gateway. Default: $GATEPOST_URL, else the one running on the state directory."
    context: str | None = None
    "Gateway and token that `gatepost context add` named. Default: $GATEPOST_CONTEXT."

    def find_gateway(self) -> CliGateway:
        named = GatewayOptions(
            json=self.json, state_dir=self.state_dir, url=self.url, context=self.context
        )
        return named.find_gateway()


_JOIN_OPTIONS = JoinOptions()


def invite_node(
    *,
    tier: Tier = "edge",
    node: str | None = None,
    ttl: Annotated[int, Parameter(name="--ttl")] = 3600,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Invite another gateway into this one's room.

    Prints the invite, a secret that works once, and how to use it. The first invite
    founds the room.

    For example:

      gatepost invite --tier edge --node mbp-jane
      gatepost invite --node mbp-jane > invite.txt

    Parameters
    ----------
    tier
        The role of the new node: backbone nodes may invite others, edge nodes may not.
    node
        The id of the new node, so that no other node can use the invite.
    ttl
        Seconds until the invite expires.
    """
    with options.find_gateway() as gateway:
        body = {"tier": tier, "node": node, "ttl_secs": ttl}
        invited = gateway.post("/v1/room/invites", body, InviteResult)
    output.print_result(options, invited, lambda: _print_invite(invited))
    if invited.seed is not None and is_loopback(urlsplit(invited.seed).hostname or ""):
        output.print_warning(
            f"no other machine can use this invite: this gateway listens on {invited.seed}"
            " only; `gatepost init --public` writes settings with which others reach it"
        )


def _print_invite(invited: InviteResult) -> None:
    output.print_line(invited.token)
    node = invited.invite.node or "the new node"
    seed = invited.seed or "https://THIS-GATEWAY:PORT"
    output.print_hint(f"on {node}, paste the line above into\n  gatepost join {seed} --token -")


def list_invites(*, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """List the invites this gateway issued.

    For example:

      gatepost invites
    """
    with options.find_gateway() as gateway:
        found = gateway.get("/v1/room/invites", list[InviteView])
    rows = [(i.id, i.tier, i.node or "any", i.state, i.used_by or "") for i in found]
    columns = ("Invite", "Tier", "For", "State", "Used by")
    output.print_result(
        options, found, lambda: _print_table_or_note(columns, rows, "no invites yet")
    )


def withdraw_invite(invite_id: str, /, *, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Withdraw an invite that was not used yet.

    For example:

      gatepost withdraw 3618f0c1d4f9b164

    Parameters
    ----------
    invite_id
        The id of the invite; `gatepost invites` shows all.
    """
    with options.find_gateway() as gateway:
        taken = gateway.delete(f"/v1/room/invites/{quote_segment(invite_id)}", InviteView)
    output.print_result(
        options, taken, lambda: output.print_line(f"invite {taken.id} is {taken.state}")
    )


def join_room(
    seed: str | None = None,
    /,
    *,
    via: str | None = None,
    invite_file: Annotated[Path | None, Parameter(name="--token-file")] = None,
    token: Annotated[str | None, Parameter(name="--token", allow_leading_hyphen=True)] = None,
    ca: Path | None = None,
    node_id: str | None = None,
    options: JoinOptions = _JOIN_OPTIONS,
) -> None:
    """Join the room of the gateway that issued an invite, or a mesh by its join secret.

    The invite, or the join secret, is read from a file or from standard input. Other
    users of the machine could see it on the command line.

    The invite of a gateway with a self-signed certificate names that certificate, so nothing else
    is needed. `--ca` is for certificates of a private authority.

    For example:

      gatepost join https://vps-jane:7433 --token -
      gatepost join https://vps-jane:7433 --token-file invite.txt
      gatepost join --via https://vps-jane:7433 --token-file join-secret
      gatepost join --via descriptor.json --token -

    Parameters
    ----------
    seed
        The gateway that issued the invite, as https://HOST:PORT.
    via
        Join with the join secret: the address of any node of the mesh, as https://HOST:PORT, or
        the file that `gatepost mesh descriptor --file` wrote.
    invite_file
        File that holds the invite, or with --via the join secret.
    token
        `-` reads the invite or the join secret from standard input. Neither is taken from the
        command line: other users could see it.
    ca
        File with the certificate of the authority that signed the gateway's certificate. This
        gateway keeps it for every later connection.
    node_id
        Join under this name. The gateway must be new: in no room, and without a message sent. It
        starts again under the name, and keeps it.
    """
    trusted = "" if ca is None else _read_authorities(ca)
    if (seed is None) == (via is None):
        raise usage_problem("name the gateway that issued the invite, or use --via")
    secret = _read_invite(invite_file, token)
    if via is not None:
        path, body = "/v1/room/join-mesh", {"secret": secret, "ca": trusted, **_read_via(via)}
    else:
        path, body = "/v1/room/join", {"token": secret, "ca": trusted}
        body["seed"] = _read_address(seed or "")
    if node_id is not None:
        _choose_node_id(options, node_id)
    with options.find_gateway() as gateway:
        joined = gateway.post(path, body, JoinResult, wait=_JOIN_SECS)
    text = f"joined the room of {joined.genesis} through {joined.host}, as {joined.tier} node"
    output.print_result(options, joined, lambda: output.print_line(text))


def _choose_node_id(options: JoinOptions, id: str) -> None:
    """Return once the gateway serves under this id; it starts again if it had another."""
    with options.find_gateway() as gateway:
        if gateway.get("/v1/status", Status).node_id == id:
            return
        gateway.put("/v1/node", NodeIdentity, NodeIdentity(id))
    deadline = time.monotonic() + _RESTART_SECS
    while time.monotonic() < deadline:
        with suppress(CommandProblem), options.find_gateway() as gateway:
            if gateway.get("/v1/status", Status).node_id == id:
                return
        time.sleep(_RESTART_POLL_SECS)
    raise lost_answer_problem(f"the gateway does not answer as {id!r} yet")


def _read_address(seed: str) -> str:
    address = seed.rstrip("/")
    if not re.fullmatch(SEED_PATTERN, address):
        raise usage_problem(f"{seed} is no address of a gateway: write https://HOST:PORT")
    return address


def _read_via(via: str) -> dict[str, str]:
    """The address, or the content of the descriptor file."""
    if via.startswith(("http://", "https://")):
        return {"via": via.rstrip("/")}
    try:
        with Path(via).open(encoding="utf-8") as file:
            return {"descriptor": file.read(_MAX_DESCRIPTOR_CHARS)}
    except (OSError, UnicodeDecodeError):
        raise usage_problem(
            f"{via} is neither an address such as https://HOST:PORT, nor a file that can be read"
        ) from None


def _read_authorities(file: Path) -> str:
    try:
        return read_authorities(file, "--ca")
    except ConfigError as error:
        raise usage_problem(error.message) from None


def _read_invite(file: Path | None, token: str | None) -> str:
    if (file is None) == (token is None):
        raise usage_problem(
            "give the invite with --token-file FILE, or with --token - on standard input"
        )
    if token is not None and token != "-":
        raise usage_problem(
            "an invite on the command line can be seen by others: use --token - instead"
        )
    if file is None:
        output.print_hint("paste the invite, then press Enter")
        return sys.stdin.readline(_MAX_INVITE_CHARS).strip()
    try:
        return file.read_text(encoding="utf-8")[:_MAX_INVITE_CHARS].strip()
    except (OSError, UnicodeDecodeError):
        raise CommandProblem("usage", f"{file} cannot be read", ExitCode.USAGE) from None


def list_nodes(*, watch: WatchOption = False, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """List the nodes of the room.

    For example:

      gatepost nodes
      gatepost nodes --watch
    """
    if watch:
        show_watched(options, {"nodes", "room"}, lambda gateway: _list_nodes(gateway, options))
    with options.find_gateway() as gateway:
        _list_nodes(gateway, options)


def _list_nodes(gateway: CliGateway, options: GatewayOptions) -> None:
    found = gateway.get("/v1/room/nodes", NodeList)
    output.print_result(options, found, lambda: _print_nodes(found))


def _print_nodes(found: NodeList) -> None:
    output.print_problems(found.mesh_problems)
    rows = [_node_row(node) for node in found.nodes]
    rows += [(node.id, "", "revoked", "", "") for node in found.revoked]
    columns = ("Node", "Tier", "State", "Waiting for it", "Because")
    _print_table_or_note(columns, rows, "no nodes yet")
    known = {node.peer.problem for node in found.nodes if node.peer is not None}
    for url, problem in found.problems.items():
        if problem not in known:
            output.print_line(f"not connected to {url}: {problem}", "yellow")


def _node_row(node: NodeView) -> tuple[str, ...]:
    head, peer = (node.id, node.tier, node.state or node.status), node.peer
    return (
        (*head, "", "")
        if peer is None
        else (*head, describe_waiting(peer, output.now_ms()), peer.why)
    )


def revoke_node(
    node: str,
    /,
    *,
    reason: str = "",
    drop_admitted: Flag = False,
    yes: YesOption = False,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Revoke a node: it is disconnected now and can never join again.

    For example:

      gatepost revoke mbp-jane --reason "laptop lost"
      gatepost revoke vps-2 --drop-admitted

    Parameters
    ----------
    node
        The id of the node; `gatepost nodes` shows all.
    reason
        The reason, for the audit log.
    drop_admitted
        Also remove the nodes that it admitted. Default: they stay members.
    """
    question = f"Revoke {node}? Its id and its key can never join again."
    if not output.confirm_action(question, yes, options):
        return ExitCode.FAILED
    with options.find_gateway() as gateway:
        path = f"/v1/room/nodes/{quote_segment(node)}/revoke"
        standing: list[str] | None = [] if drop_admitted else None
        done = gateway.post(path, {"reason": reason, "standing": standing}, RevocationView)
    ended = output.format_count(done.connections_ended, "connection")
    output.print_result(
        options,
        done,
        lambda: output.print_line(
            f"{done.node} is revoked; {ended} closed; its events count up to number {done.last_seq}"
        ),
    )
    return ExitCode.OK


def show_room(*, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Show every record of the room.

    For example:

      gatepost room show
      gatepost room show --json | jq .records
    """
    with options.find_gateway() as gateway:
        room = gateway.get("/v1/room", RoomView)
    output.print_result(options, room, lambda: _print_room(room))


def _print_room(room: RoomView) -> None:
    output.print_line(f"{room.room}, founded by {room.genesis}", "bold")
    output.print_line(f"genesis key {room.genesis_key}")
    rows = [(r.map, r.key, r.version, r.state, _data_text(r)) for r in room.records]
    _print_table_or_note(("Map", "Key", "Version", "State", "Data"), rows, "no records")


def _data_text(record: RecordView) -> str:
    parsed = msgspec.json.decode(record.record)
    return msgspec.json.encode(parsed.get("data")).decode() if "data" in parsed else ""


def watch_room(*, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Print every record as it changes, until Ctrl-C.

    For example:

      gatepost room watch
      gatepost room watch --json
    """
    with options.find_gateway() as gateway:
        seen = gateway.get("/v1/room", RoomView)
        print(f"watching {seen.room}; Ctrl-C stops", file=sys.stderr, flush=True)
        while True:
            seen = _print_changes(gateway, seen, options)


def _print_changes(gateway: CliGateway, before: RoomView, options: GatewayOptions) -> RoomView:
    wait = {"seen": before.changes, "wait_secs": _WATCH_SECS}
    room = gateway.get("/v1/room", RoomView, _WATCH_SECS, **wait)
    known = {bytes(record.record) for record in before.records}
    for record in room.records:
        if bytes(record.record) not in known:
            _print_record(record, options)
    return room


def _print_record(record: RecordView, options: GatewayOptions) -> None:
    text = f"{record.map} {record.key} v{record.version} {record.state} {_data_text(record)}"
    output.print_result(options, record, lambda: output.print_line(text))
    sys.stdout.flush()


def verify_room(*, options: GatewayOptions = DEFAULT_OPTIONS) -> int:
    """Check the signature of every record this gateway keeps.

    Exits with 1 if one is invalid.

    For example:

      gatepost room verify
    """
    with options.find_gateway() as gateway:
        found = gateway.get("/v1/room/verify", VerifyResult)
    output.print_result(options, found, lambda: _print_verification(found))
    return ExitCode.FAILED if found.problems else ExitCode.OK


def rotate_room(*, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Move the room to a new document without records that are no longer needed.

    All gateways follow; a gateway that is offline follows when it is back.

    For example:

      gatepost room rotate
    """
    with options.find_gateway() as gateway:
        moved = gateway.post("/v1/room/rotate", {}, RotateResult)
    count = output.format_count(moved.records, "record")
    output.print_result(
        options, moved, lambda: output.print_line(f"the room is {moved.room} now, with {count}")
    )


def _print_verification(found: VerifyResult) -> None:
    for problem in found.problems:
        output.print_line(problem, "red")
    count = output.format_count(found.records, "record")
    output.print_line(f"{count}, {len(found.problems) or 'none'} of them invalid")


def _print_table_or_note(
    columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str
) -> None:
    if rows:
        output.print_table(columns, rows)
    else:
        output.print_line(empty)
