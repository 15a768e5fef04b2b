"""Inviting, joining, looking and revoking from the command line, with two real gateways."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from gatepost.config import load_settings
from gatepost.tls import own_certificate_pin
from tests.cli.conftest import Cli, gateway
from tests.gateway.tools import dump
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cli, Cli]]:
    """Ann's gateway, and jane's, an edge node in ann's room."""
    with ExitStack() as running:
        clis = []
        for name in ("ann", "jane"):
            home = tmp_path_factory.mktemp(name) / "state"
            home.mkdir(mode=0o700)
            clis.append(running.enter_context(gateway(home, GATEPOST_NODE__ID=name)))
        ann, jane = clis
        _join(jane, ann)
        yield ann, jane


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Cli]:
    """The gateway of a node that no other test knows, in no room yet."""
    home = tmp_path / "state"
    home.mkdir(mode=0o700)
    with gateway(home, GATEPOST_NODE__ID=tmp_path.name) as cli:
        yield cli


def _join(cli: Cli, host: Cli) -> str:
    token = host.invite("--tier", "edge", "--node", _node_id(cli))
    return cli.ok("join", _url(host), "--token", "-", stdin=token.encode())


def _started(home: Path, **env: str) -> AbstractContextManager[Cli]:
    """A gateway that may speak TLS, so only the command line itself can tell that it runs."""
    return gateway(home, lambda cli: cli("status").code == 0, **env)


def _url(cli: Cli) -> str:
    return _endpoint(cli)["url"]


def _node_id(cli: Cli) -> str:
    return _endpoint(cli)["node_id"]


def _endpoint(cli: Cli) -> dict[str, str]:
    return dict(json.loads((cli.home / "endpoint.json").read_bytes()))


def test_invite_here_and_join_there(pair: tuple[Cli, Cli], newcomer: Cli) -> None:
    ann, id = pair[0], _node_id(newcomer)
    alone = newcomer("nodes", "--json")
    assert (alone.code, alone.error["code"]) == (1, "conflict")
    assert "gatepost invite" in alone.error["message"]
    assert _join(newcomer, ann) == "joined the room of ann through ann, as edge node\n"
    nodes = {node["id"]: node for node in ann.json("nodes")["nodes"]}
    assert (nodes[id]["tier"], nodes[id]["added_by"]) == ("edge", "ann")
    assert "ann\tbackbone\tonline, this one" in ann.ok("nodes")
    assert f"\tused\t{id}" in ann.ok("invites")


def test_an_invite_for_another_name_says_both_names_and_a_new_gateway_can_take_that_one(
    pair: tuple[Cli, Cli], tmp_path: Path
) -> None:
    token = pair[0].invite("--node", "laptop").encode()
    join = ("join", _url(pair[0]), "--token", "-")
    with gateway(tmp_path / "state") as cli:
        before = _node_id(cli)
        refused = cli(*join, stdin=token)
        assert refused.code == 1
        assert f"gatepost invite --node {before}" in refused.err
        assert "gatepost join --node-id laptop" in refused.err
        cli.ok("agent", "add", "bob")
        cli.ok(*join, "--node-id", "laptop", stdin=token)
        assert _node_id(cli) == "laptop"
        assert [agent["id"] for agent in cli.json("agent", "list")] == ["bob"]
        again = cli(*join, "--node-id", "desktop", stdin=token)
        assert (again.code, "its name for good" in again.err) == (1, True)
    with gateway(tmp_path / "state") as cli:
        assert _node_id(cli) == "laptop", "the journal keeps the name"


def test_a_gateway_that_sent_messages_or_has_its_name_from_the_settings_keeps_it(
    pair: tuple[Cli, Cli], newcomer: Cli, tmp_path: Path
) -> None:
    join = ("join", _url(pair[0]), "--node-id", "laptop", "--token", "-")
    token = pair[0].invite("--node", "laptop").encode()
    named = newcomer(*join, stdin=token)
    assert (named.code, "`node.id`" in named.err) == (1, True)
    with gateway(tmp_path / "other") as cli:
        cli.call("PUT", "/agents/bob")
        cli.message_to("bob")
        before = _node_id(cli)
        refused = cli(*join, stdin=token)
        assert (refused.code, "has sent messages as" in refused.err) == (1, True)
        assert _node_id(cli) == before


def test_a_terminal_shows_how_to_use_an_invite_and_later_only_that_there_is_one(
    pair: tuple[Cli, Cli],
) -> None:
    seen = pair[0].seen("invite", "--node", "phone")
    token = next(line for line in seen.splitlines() if line.startswith("gp1."))
    assert f"gatepost join {_url(pair[0])} --token -" in seen
    assert token not in pair[0].ok("invites")


def test_an_invite_on_the_command_line_is_refused(pair: tuple[Cli, Cli]) -> None:
    token = pair[0].invite().strip()
    result = pair[1]("join", _url(pair[0]), "--token", token)
    assert (result.code, "can be seen by others" in result.err) == (2, True)
    assert token not in result.err
    assert pair[1]("join", _url(pair[0])).code == 2


def test_joining_says_what_was_wrong(pair: tuple[Cli, Cli], tmp_path: Path) -> None:
    file = tmp_path / "invite"
    file.write_text("nonsense\n")
    result = pair[1]("join", _url(pair[0]), "--token-file", str(file), "--json")
    assert (result.code, result.error["code"]) == (1, "invalid_token")
    assert "not an invite" in result.error["message"]
    missing = pair[1]("join", _url(pair[0]), "--token-file", str(tmp_path / "none"))
    assert (missing.code, "cannot be read" in missing.err) == (2, True)


@pytest.mark.parametrize("seed", ["vps.example:7433", "ftp://vps.example", "https://a b", ""])
def test_joining_needs_an_address_and_says_which_form_it_has(
    pair: tuple[Cli, Cli], tmp_path: Path, seed: str
) -> None:
    (tmp_path / "invite").write_text("nonsense\n")
    result = pair[1]("join", seed, "--token-file", str(tmp_path / "invite"))
    assert result.code == 2
    assert f"{seed} is no address of a gateway: write https://HOST:PORT" in result.err


def test_an_invite_is_withdrawn(pair: tuple[Cli, Cli]) -> None:
    invited = json.loads(pair[0].invite("--json"))
    id = invited["invite"]["id"]
    assert pair[0].ok("withdraw", id) == f"invite {id} is revoked\n"
    assert pair[0]("withdraw", "0" * 16).code == 1


def test_the_room_is_shown_and_verified(pair: tuple[Cli, Cli]) -> None:
    ann, jane = pair
    shown = jane.json("room", "show")
    assert (shown["room"], shown["genesis"]) == ("ansible-control", "ann")
    assert {"nodes", "invites"} <= {record["map"] for record in shown["records"]}
    assert "nodes\tjane\t" in ann.ok("room", "show")
    assert ann.ok("room", "verify").endswith("none of them invalid\n")
    assert jane.json("room", "verify")["problems"] == []


def test_changes_are_watched(pair: tuple[Cli, Cli]) -> None:
    ann, jane = pair
    with jane.running("room", "watch", "--json") as watching:
        # It says when it has begun to look, so nothing need be waited for.
        assert watching.stderr is not None and watching.stdout is not None
        assert "watching" in watching.stderr.readline()
        ann.call("PUT", "/agents/newcomer")
        record = json.loads(watching.stdout.readline())
    assert (record["map"], record["key"]) == ("agents", "newcomer@ann")


def test_revoking_asks_first_and_is_seen_at_once(pair: tuple[Cli, Cli], newcomer: Cli) -> None:
    ann, id = pair[0], _node_id(newcomer)
    _join(newcomer, ann)
    refused = ann("revoke", id)
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert ann.ok("revoke", id, "--yes").startswith(f"{id} is revoked")
    assert id not in [node["id"] for node in ann.json("nodes")["nodes"]]
    assert f"{id}\t\trevoked" in ann.ok("nodes")
    assert ann("revoke", id, "--yes", "--json").error["code"] == "conflict"
    assert ann("revoke", "nobody", "--yes", "--json").error["code"] == "unknown_node"


def test_external_agents_are_invited_listed_and_revoked(pair: tuple[Cli, Cli]) -> None:
    ann, _ = pair
    token = ann.ok("agent", "invite", "ci-bot").strip()
    assert token.startswith("gpa1.")
    assert "ci-bot\tinvite\topen\tansible.message.read" in ann.ok("agent", "list", "--external")
    assert ann.ok("agent", "revoke", "ci-bot") == "0 sessions of ci-bot ended\n"
    assert "ci-bot\tinvite\trevoked" in ann.ok("agent", "list", "--external")
    wrong = ann("agent", "invite", "ci-bot", "--scope", "everything", "--json")
    assert wrong.error["code"] == "invalid_request"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority of our own, and a certificate for 127.0.0.1 that it signed."""
    folder = tmp_path_factory.mktemp("certificates")
    make_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    for command in (
        ("req", "-x509", *make_key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ours"),
        (
            *("req", "-x509", *make_key, "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-keyout", "vps.key", "-out", "vps.pem", "-subj", "/CN=vps"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ),
    ):
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)
    return folder


def test_a_private_authority_is_named_once_with_ca(certificates: Path, tmp_path: Path) -> None:
    tls = {
        "GATEPOST_LISTEN__TLS_CERT": str(certificates / "vps.pem"),
        "GATEPOST_LISTEN__TLS_KEY": str(certificates / "vps.key"),
    }
    with _started(tmp_path / "vps", GATEPOST_NODE__ID="vps", **tls) as vps:
        with _started(tmp_path / "mbp", GATEPOST_NODE__ID="mbp") as mbp:
            token = vps.invite("--node", "mbp").encode()
            refused = mbp("join", _url(vps), "--token", "-", "--json", stdin=token)
            assert refused.error["code"] == "unavailable"
            assert "does not trust the certificate" in refused.error["message"]
            assert "--ca FILE" in refused.error["message"]
            ca = str(certificates / "ca.pem")
            assert "joined" in mbp.ok("join", _url(vps), "--token", "-", "--ca", ca, stdin=token)
        # The authority is kept: after a restart the gateway dials again without being told.
        with _started(tmp_path / "mbp", GATEPOST_NODE__ID="mbp") as mbp:
            wait_until(lambda: _is_connected(mbp, "vps"), 20)


def test_a_certificate_of_its_own_needs_no_file_at_all(tmp_path: Path) -> None:
    vps, mbp = Cli(tmp_path / "vps"), Cli(tmp_path / "mbp")
    vps.ok("init", "--public", "--host", "127.0.0.1", "--node-id", "vps")
    mbp.ok("init", "--node-id", "mbp")
    with ExitStack() as running:
        running.enter_context(_started(vps.home))
        running.enter_context(_started(mbp.home))
        assert _url(vps).startswith("https://127.0.0.1:")
        token = vps.invite("--node", "mbp").encode()
        assert "joined" in mbp.ok("join", _url(vps), "--token", "-", stdin=token)
        wait_until(lambda: _is_connected(mbp, "vps"))
        vps.ok("agent", "add", "ann")
        wait_until(lambda: mbp("send", "ann", "hello", "--wait", "accepted").code == 0)


def _is_connected(cli: Cli, node: str) -> bool:
    return _connections(cli, node) > 0


def test_a_moved_gateway_is_found_as_a_seed_and_tells_its_new_key(tmp_path: Path) -> None:
    vps, mbp = Cli(tmp_path / "vps"), Cli(tmp_path / "mbp")
    public = ("init", "--public", "--host", "127.0.0.1:9", "--node-id", "vps")
    vps.ok(*public)
    with _started(vps.home), _started(mbp.home, GATEPOST_NODE__ID="mbp"):
        token = vps.invite("--node", "mbp", "--tier", "backbone").encode()
        mbp.ok("join", _url(vps), "--token", "-", stdin=token)
    with ExitStack() as running:
        with _started(vps.home):
            # Its address is another one now. The settings name it, and the room knows its pin.
            seeds = {"GATEPOST_ROOM__SEEDS": _url(vps), "GATEPOST_NODE__ID": "mbp"}
            mbp = running.enter_context(_started(mbp.home, **seeds))
            wait_until(lambda: _is_connected(mbp, "vps"), 20)
            assert _url(vps) not in mbp.json("nodes")["problems"]
            address = _url(mbp).removeprefix("http://")
            wait_until(lambda: address in str(dump(vps.home / "journal.db")["room_record"]))
        (vps.home / "tls.key").unlink()
        vps.ok(*public, "--force")
        pin = str(own_certificate_pin(vps.home / "tls.crt"))
        assert pin not in mbp.ok("room", "show")
        # It dials mbp, whose address is still the same, and its record has the new pin.
        running.enter_context(_started(vps.home))
        wait_until(lambda: pin in mbp.ok("room", "show"), 20)


def _connections(cli: Cli, node: str) -> int:
    return sum(each["connected"] for each in cli.json("nodes")["nodes"] if each["id"] == node)


def test_another_certificate_than_the_invite_names_is_refused(tmp_path: Path) -> None:
    vps, mbp = Cli(tmp_path / "vps"), Cli(tmp_path / "mbp")
    vps.ok("init", "--public", "--host", "127.0.0.1", "--node-id", "vps")
    with ExitStack() as running:
        mbp = running.enter_context(_started(mbp.home, GATEPOST_NODE__ID="mbp"))
        with _started(vps.home):
            token = vps.invite().encode()
        (vps.home / "tls.key").unlink()
        vps.ok("init", "--public", "--host", "127.0.0.1", "--node-id", "vps", "--force")
        running.enter_context(_started(vps.home))
        refused = mbp("join", _url(vps), "--token", "-", "--json", stdin=token)
        assert "another certificate than the one its invite named" in refused.error["message"]
        fresh = vps.invite().encode()
        assert "joined" in mbp.ok("join", _url(vps), "--token", "-", stdin=fresh)


def test_each_reason_not_to_get_through_has_its_own_sentence(pair: tuple[Cli, Cli]) -> None:
    ann, jane = pair
    token = ann.invite().encode()

    def refusal(url: str) -> str:
        return str(jane("join", url, "--token", "-", "--json", stdin=token).error["message"])

    assert "does not speak TLS" in refusal(_url(ann).replace("http:", "https:"))
    assert "nothing listens at" in refusal("http://127.0.0.1:9")
    assert "has no address" in refusal("https://no-such-host.invalid:7433")


def test_init_makes_the_listener_public_and_its_key_private(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "state")
    said = cli.json("init", "--public", "--host", "vps.example")
    assert said["public_url"] == "https://vps.example:7433"
    written = {file.name for file in cli.home.iterdir()}
    assert written == {"gatepost.toml", "gatepost.schema.json", "tls.crt", "tls.key"}
    assert (cli.home / "tls.key").stat().st_mode & 0o777 == 0o600
    settings = load_settings(cli.env)
    assert (settings.listen.host, settings.listen.allow_public) == ("0.0.0.0", True)
    assert settings.named_file(settings.listen.tls_cert) == cli.home / "tls.crt"
    before = own_certificate_pin(cli.home / "tls.crt")
    cli.ok("init", "--public", "--host", "[fd00::1]:7000", "--force")
    again = load_settings(cli.env)
    assert (again.listen.host, again.listen.port) == ("::", 7000)
    assert again.room.public_url == "https://[fd00::1]:7000"
    assert own_certificate_pin(cli.home / "tls.crt") == before, "the key stays, so the pin does"
    for bad in (("--public", "--host", "a b"), ("--host", "vps.example")):
        assert cli("init", "--force", *bad).code == 2


def test_a_public_listener_without_tls_is_warned_of(tmp_path: Path) -> None:
    open_to_all = {"GATEPOST_LISTEN__HOST": "0.0.0.0", "GATEPOST_LISTEN__ALLOW_PUBLIC": "true"}
    cli = Cli(tmp_path / "state", **open_to_all)
    with cli.running("up", "--port", "0") as process:
        assert process.stderr is not None
        # As root, another warning comes first.
        lines = iter(process.stderr.readline, "")
        assert any("without TLS" in line for line in lines)
