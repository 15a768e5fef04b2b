"""`gatepost context`, and commands that talk to a gateway on another machine by its name."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatepost.client import SyncClient, locator
from gatepost.errors import ConfigError, Unauthorized
from tests.cli.conftest import Cli, gateway
from tests.waiting import wait_until

SCOPES = ("message.read", "message.send", "status.read", "task.read")


@pytest.fixture(scope="module")
def vps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A gateway with a certificate that it made itself, as `gatepost init --public` makes it."""
    home = tmp_path_factory.mktemp("vps") / "state"
    cli = Cli(home)
    cli.ok("init", "--public", "--host", "127.0.0.1", "--node-id", "vps")
    # The test's own client does not know the certificate.
    with gateway(home, lambda _: (home / "endpoint.json").exists()) as running:
        yield running


@pytest.fixture
def laptop(tmp_path: Path) -> Cli:
    """A machine without a gateway."""
    return Cli(tmp_path / "laptop")


def url_of(cli: Cli) -> str:
    return str(json.loads((cli.home / "endpoint.json").read_bytes())["url"])


def pin_of(cli: Cli) -> str:
    return str(cli.json("agent", "invite", "somebody")["inviteToken"].split(".")[1][16:])


def token_copy(cli: Cli, folder: Path) -> Path:
    file = folder / "vps.token"
    file.write_bytes((cli.home / "token").read_bytes())
    file.chmod(0o600)
    return file


@pytest.fixture
def session(vps: Cli, laptop: Cli, tmp_path: Path) -> str:
    """The context `bot`: an external agent of its own name for each test."""
    name = f"bot-{tmp_path.name}"[:60].replace("[", "").replace("]", "")
    scopes = [each for scope in SCOPES for each in ("--scope", f"ansible.{scope}")]
    invite = vps.json("agent", "invite", name, *scopes)["inviteToken"]
    laptop.ok("context", "add", "bot", url_of(vps), "--token-file", "-", stdin=invite.encode())
    return name


def test_the_operator_of_another_machine_is_known_by_token_and_pin(
    vps: Cli, laptop: Cli, tmp_path: Path
) -> None:
    file = token_copy(vps, tmp_path)
    where = ("context", "add", "vps", url_of(vps), "--token-file", str(file))
    assert "as operator at node vps" in laptop.ok(*where, "--pin", pin_of(vps))
    assert "node vps at https://" in laptop.ok("status", "--context", "vps")
    laptop.ok("--context", "vps", "agent", "add", "bob")
    laptop.ok("send", "bob", "hello", "--context=vps")
    assert "hello" in vps.ok("inbox", "bob", "--take")


def test_the_pin_is_that_which_init_prints(tmp_path: Path) -> None:
    made = Cli(tmp_path / "state")
    pin = made.json("init", "--public", "--host", "127.0.0.1")["tls_pin"]
    assert f"the pin of its key is {pin}" in made.ok(
        "init", "--public", "--host", "127.0.0.1", "--force"
    )
    with gateway(tmp_path / "state", lambda cli: (cli.home / "endpoint.json").exists()) as running:
        assert pin_of(running) == pin


def test_another_key_than_the_pinned_one_gets_no_token_and_no_context(
    vps: Cli, laptop: Cli, tmp_path: Path
) -> None:
    where = ("context", "add", "vps", url_of(vps), "--token-file", str(token_copy(vps, tmp_path)))
    for pin in ((), ("--pin", "0" * 64)):
        result = laptop(*where, *pin, "--json")
        assert (result.code, result.error["code"]) == (3, "unreachable")
        assert "certificate" in result.error["message"]
    assert laptop.json("context", "list") == []
    assert laptop(*where, "--pin", "abc").code == 2


def test_a_token_file_that_others_can_read_is_refused(
    vps: Cli, laptop: Cli, tmp_path: Path
) -> None:
    file = token_copy(vps, tmp_path)
    where = ("context", "add", "vps", url_of(vps), "--token-file", str(file), "--pin", pin_of(vps))
    for mode in (0o644, 0o640, 0o602):
        file.chmod(mode)
        result = laptop(*where, "--json")
        assert (result.code, result.error["code"]) == (1, "unauthorized")
        assert f"chmod 600 {file}" in result.error["message"]
    file.chmod(0o600)
    laptop.ok(*where)
    file.chmod(0o644)
    assert f"chmod 600 {file}" in laptop("status", "--context", "vps").err


def test_no_token_is_in_the_file_of_contexts_and_nobody_else_reads_what_is_kept(
    vps: Cli, laptop: Cli, session: str
) -> None:
    kept = laptop.home / "contexts.json"
    (context,) = laptop.json("context", "list")
    file = Path(context["token_file"])
    assert file.parent == laptop.home / "contexts"
    for each in (laptop.home, kept, file.parent, file):
        assert not stat.S_IMODE(each.stat().st_mode) & 0o077, each
    held = json.loads(file.read_bytes())
    assert held["tlsPin"] == pin_of(vps)
    for secret in (held["accessToken"], held["refreshToken"]):
        assert secret not in kept.read_text() + laptop.ok("context", "list")


def test_a_script_with_a_session_sends_takes_and_answers_under_its_own_name(
    vps: Cli, laptop: Cli, session: str
) -> None:
    vps.ok("agent", "add", "bob", session)
    id = laptop.json("--context", "bot", "send", "bob", "from afar")["event_id"]
    (taken,) = vps.json("inbox", "bob", "--take")["messages"]
    assert (taken["msg_id"], taken["from"]) == (id, session)
    vps.ok("ack", "bob", taken["receipt"], "--reply", "thanks")
    assert "thanks" in laptop.ok("--context", "bot", "await", id)
    assert "replied ok" in laptop.ok("--context", "bot", "status", id)

    sent = vps.json("send", session, "x" * 800_000)["event_id"]
    assert sent in laptop.ok("--context", "bot", "inbox", session)
    _, mail = laptop.json("--context", "bot", "inbox", session, "--take", "--wait", "5")["messages"]
    file = laptop.home / "payload"
    digest = mail["event"]["payload_ref"]
    laptop.ok("--context", "bot", "fetch", digest, "--output", str(file))
    assert json.loads(file.read_bytes()) == "x" * 800_000
    reply = b"y" * 800_000
    laptop.ok("--context", "bot", "ack", session, mail["receipt"], "--reply", "-", stdin=reply)
    assert len(vps.json("await", sent)["reply"]) == 800_000

    status = laptop.ok("--context", "bot", "status")
    assert f"node vps at {url_of(vps)}, as {session}" in status


def test_a_script_with_a_session_creates_awaits_and_cancels_tasks(
    vps: Cli, laptop: Cli, session: str
) -> None:
    vps.ok("agent", "add", session, "worker")
    script = {"name": "adder", "command": ["sh", "-c", "echo 7 >$GATEPOST_RESULT_FILE"]}
    (vps.home / "agents" / "adder.json").write_text(json.dumps(script))
    wait_until(lambda: '"adder"' in vps.ok("--json", "agent", "list"))
    assert laptop.ok("--context", "bot", "task", "create", "adder", "add", "--wait").strip() == "7"
    task = laptop.json("--context", "bot", "task", "create", "worker", "later")
    assert task["requester"] == session
    assert "later" in laptop.ok("--context", "bot", "task", "show", task["id"])
    assert "cancelled" in laptop.ok("--context", "bot", "task", "cancel", task["id"], "--wait")
    assert laptop("--context", "bot", "task", "await", task["id"]).code == 1


def test_a_session_does_nothing_that_is_the_operators(vps: Cli, laptop: Cli, session: str) -> None:
    for command in (("nodes",), ("agent", "list"), ("send", "bob", "x", "--from", "boss")):
        result = laptop("--context", "bot", *command, "--json")
        assert (result.code, result.out) == (1, ""), command
    assert "needs the token of the operator" in laptop("--context", "bot", "nodes").err


def test_a_session_is_refreshed_in_its_file(vps: Cli, laptop: Cli, session: str) -> None:
    file = Path(laptop.json("context", "list")[0]["token_file"])
    before = json.loads(file.read_bytes())
    file.write_text(json.dumps(before | {"accessExpiresAt": 0}))
    laptop.ok("--context", "bot", "status")
    after = json.loads(file.read_bytes())
    assert after["accessToken"] != before["accessToken"]
    assert after["sessionId"] == before["sessionId"]
    assert not stat.S_IMODE(file.stat().st_mode) & 0o077


def test_options_win_over_the_environment_which_wins_over_the_current_context(
    cli: Cli, vps: Cli, laptop: Cli, session: str
) -> None:
    assert laptop("status").code == 3
    assert laptop.ok("context", "use", "bot") == "commands talk to bot\n"
    assert f"as {session}" in laptop.ok("status")
    here = ("--state-dir", str(cli.home))
    assert "node vps" not in laptop.ok("status", *here)
    laptop.env["GATEPOST_URL"] = url_of(cli)
    laptop.env["GATEPOST_TOKEN_FILE"] = str(cli.home / "token")
    assert "node vps" not in laptop.ok("status")
    laptop.env["GATEPOST_CONTEXT"] = "bot"
    assert "node vps" in laptop.ok("status")
    assert "node vps" not in laptop.ok("status", *here)
    assert laptop("status", "--context", "bot", *here).code == 2
    unknown = laptop("status", "--context", "nothing", "--json")
    assert (unknown.code, unknown.error["code"]) == (2, "config_error")


def test_contexts_are_listed_replaced_and_forgotten(vps: Cli, laptop: Cli, session: str) -> None:
    add = ("context", "add", "bot", url_of(vps), "--token-file")
    file = Path(laptop.json("context", "list")[0]["token_file"])
    assert laptop(*add, str(file)).code == 1, "it exists already"
    laptop.ok(*add, str(file), "--force", "--use")
    assert laptop.ok("context", "list").splitlines()[-1].split()[:2] == ["*", "bot"]
    assert file.exists()
    laptop.ok("context", "remove", "bot")
    assert not file.exists()
    assert "no contexts yet" in laptop.ok("context", "list")
    assert laptop("status").code == 3
    assert laptop("context", "use", "bot").code == 2
    assert laptop.ok("context", "use", "--none")


def test_what_came_from_standard_input_is_not_lost_when_the_gateway_is_away(laptop: Cli) -> None:
    where = ("context", "add", "x", "http://127.0.0.1:1029", "--token-file", "-", "--json")
    result = laptop(*where, stdin=b"s3cret\n")
    assert result.code == 3
    (file,) = (laptop.home / "contexts").iterdir()
    assert str(file) in result.error["message"]
    assert file.read_text() == "s3cret\n"
    assert "s3cret" not in result.err


@pytest.mark.parametrize(
    "url", ["localhost:1", "ftp://x", "https://", "https://u:p@host", "https://host/?token=x"]
)
def test_an_address_that_is_none_or_holds_a_secret_is_refused(laptop: Cli, url: str) -> None:
    assert laptop("context", "add", "x", url, "--token-file", "/dev/null").code == 2


def test_a_damaged_file_of_contexts_says_so(laptop: Cli) -> None:
    laptop.home.mkdir(mode=0o700)
    (laptop.home / "contexts.json").write_text("{")
    result = laptop("context", "list", "--json")
    assert (result.code, result.error["code"]) == (2, "config_error")


def test_programs_name_a_context_too(
    vps: Cli, laptop: Cli, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", laptop.env)
    vps.ok("agent", "add", "carol")
    with SyncClient(session, context="bot") as client:
        client.send("carol", "hi")
    laptop.env["GATEPOST_CONTEXT"] = "bot"
    assert locator()().agent == session
    with pytest.raises(ConfigError, match="give nothing else"):
        locator(url="http://x", context="bot")
    with pytest.raises(ConfigError, match="there is no context"):
        locator(context="nothing")
    Path(laptop.json("context", "list")[0]["token_file"]).chmod(0o644)
    with pytest.raises(Unauthorized, match="chmod 600"):
        locator(context="bot")()
