"""`gatepost doctor` on a healthy machine, and on one with a planted fault after the other.

Three gateways share a room: ann is examined, bob is odd, and cat is gone in one test. Faults that
keep a gateway from starting are planted in state directories of their own.
"""

import json
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

from gatepost.cli.doctor import disk_checks, session_checks
from gatepost.clock import SystemClock
from gatepost.tasks.runtimes.bubblewrap import find_bubblewrap
from gatepost.testing.gateway import StartedProcess
from gatepost.tls import create_certificate, create_key
from tests.cli.conftest import Cli
from tests.cli.doctor.odd_gateway import run_odd_gateway
from tests.forked_gateways import ForkedGateway
from tests.live_mesh.cable import Cable
from tests.live_mesh.tools import Gateway
from tests.waiting import wait_until

# Another program may need the whole machine while this runs.
_PATIENCE = 60.0


def launch_oddly(arguments: list[str], env: Mapping[str, str], log: IO[bytes]) -> StartedProcess:
    odd = {"CLOCK_FILE": f"{arguments[0]}.clock", "VERSION_FILE": f"{arguments[0]}.version"}
    return ForkedGateway(arguments, {**env, **odd}, log, run_odd_gateway)


class OddGateway(Gateway):
    launch = staticmethod(launch_oddly)

    def be_odd(self, what: str, text: str) -> None:
        draft = Path(f"{self.state_dir}.new")
        draft.write_text(text)
        draft.replace(f"{self.state_dir}.{what}")

    def be_usual(self) -> None:
        for what in ("clock", "version"):
            Path(f"{self.state_dir}.{what}").unlink(missing_ok=True)


class Room(NamedTuple):
    ann: Gateway
    bob: OddGateway
    cat: Gateway
    # The address of ann that the room has.
    cable: Cable
    cli: Cli


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    folder = tmp_path_factory.mktemp("doctor")
    with ExitStack() as running:
        cable = running.enter_context(Cable())
        ann = running.enter_context(Gateway(folder, "ann", room__public_url=cable.url))
        cable.port = ann.port
        bob = running.enter_context(OddGateway(folder, "bob"))
        cat = running.enter_context(Gateway(folder, "cat"))
        bob.join(ann)
        cat.join(ann)
        wait_until(lambda: ann.connected_to("bob", "cat"), _PATIENCE)
        cli = Cli(ann.state_dir)
        cli.ok("mcp", "install", "claude-code", "--yes")
        yield Room(ann, bob, cat, cable, cli)


@pytest.fixture
def down(tmp_path: Path) -> Cli:
    """The command line with a state directory on which no gateway runs."""
    (tmp_path / "state").mkdir(mode=0o700)
    return Cli(tmp_path / "state", GATEPOST_LISTEN__PORT="0")


def diagnose(cli: Cli) -> Any:
    return cli("doctor", "--json").document


def faults(cli: Cli, check: str) -> list[dict[str, Any]]:
    return [each for each in diagnose(cli)["findings"] if each["check"] == check]


def expect_fault(cli: Cli, check: str, problem: str, remedy: str, code: int = 1) -> None:
    """The only finding of this check, its remedy, and the exit code."""
    result = cli("doctor", "--json")
    found = [each for each in result.document["findings"] if each["check"] == check]
    assert len(found) == 1, result.document["findings"]
    assert problem in found[0]["problem"], found
    assert remedy in found[0]["remedy"], found
    assert result.code == code


# -- a healthy machine


def test_on_a_healthy_machine_nothing_is_wrong(room: Room) -> None:
    result = room.cli("doctor")
    assert result.code == 0, result.out
    assert "nothing is wrong" in result.out and "not looked at" not in result.out
    assert not result.err
    found = diagnose(room.cli)
    assert found["node"] == "ann" and found["is_running"] and not found["findings"]
    every = ["settings", "state directory", "disk", "gateway", "peers", "clock", "versions"]
    every += ["tls", "ports", "sessions", "pipeline", "mcp", "hooks"]
    assert sorted(found["checked"]) == sorted({*every})


def test_a_gateway_that_is_down_is_no_fault(down: Cli) -> None:
    result = down("doctor")
    assert result.code == 0
    assert "no gateway runs here" in result.out
    assert "not looked at: peers, clock, versions, mcp, hooks" in result.out


# -- faults of a gateway that runs


@pytest.mark.parametrize(
    ("what", "text", "check", "problem", "remedy", "code"),
    [
        ("clock", "3600", "clock", "ahead of this machine's", "timedatectl", 1),
        ("version", "0.0.1", "versions", "bob runs version 0.0.1", "upgrade bob", 0),
    ],
)
def test_an_odd_peer_is_named(
    room: Room, what: str, text: str, check: str, problem: str, remedy: str, code: int
) -> None:
    room.bob.be_odd(what, text)
    try:
        expect_fault(room.cli, check, problem, remedy, code)
    finally:
        room.bob.be_usual()


def test_an_address_that_peers_do_not_reach_is_named_by_them(room: Room) -> None:
    with room.cable.broken():
        wait_until(lambda: room.ann.connected_to("bob", "cat"), _PATIENCE)
        found = faults(room.cli, "ports")
    assert sorted(each["problem"].split()[0] for each in found) == ["bob", "cat"]
    assert all("does not reach this gateway at" in each["problem"] for each in found)
    assert all("room.public_url" in each["remedy"] for each in found)


def test_a_secret_that_others_can_read_is_named(room: Room) -> None:
    token = room.ann.state_dir / "token"
    token.chmod(0o644)
    try:
        expect_fault(room.cli, "state directory", "holds a secret", f"chmod 600 {token}")
    finally:
        token.chmod(0o600)


@pytest.mark.parametrize("check", ["mcp", "hooks"])
def test_a_client_of_mcp_whose_program_has_moved_is_named(room: Room, check: str) -> None:
    home = Path(room.cli.env["HOME"])
    file = home / (".claude.json" if check == "mcp" else ".claude/settings.json")
    before = file.read_text()
    program = str(Path(sys.executable).with_name("gatepost"))
    assert program in before
    file.write_text(before.replace(program, "/nowhere/gatepost"))
    try:
        expect_fault(room.cli, check, "claude-code", "gatepost mcp install claude-code")
    finally:
        file.write_text(before)


def test_a_peer_that_is_gone_is_named(room: Room) -> None:
    """The last test with this room: cat does not come back."""
    room.cat.stop()
    wait_until(lambda: not room.ann.connected_to("cat"), _PATIENCE)
    wait_until(lambda: room.ann.nodes()["cat"]["peer"]["problem"], _PATIENCE)
    expect_fault(room.cli, "peers", "cat at ws", "gatepost revoke cat")


# -- faults of a machine on which the gateway is down


def write_settings(cli: Cli, text: str) -> None:
    (cli.home / "gatepost.toml").write_text(text)


def test_unusable_settings(down: Cli) -> None:
    write_settings(down, "[listen]\nporrt = 1\n")
    expect_fault(down, "settings", "did you mean 'port'", "gatepost config check")


def test_a_state_directory_that_others_can_read(down: Cli) -> None:
    down.home.chmod(0o755)
    expect_fault(down, "state directory", "mode 755", f"chmod 700 {down.home}")


def test_a_journal_without_its_key(down: Cli) -> None:
    (down.home / "journal.db").touch(0o600)
    expect_fault(down, "state directory", "node.key is missing", "gatepost restore FILE")


def test_a_gateway_that_was_killed(down: Cli) -> None:
    endpoint = {"url": "http://127.0.0.1:9", "socket": None, "pid": 2**22 + 1, "node_id": "n"}
    (down.home / "endpoint.json").write_text(json.dumps(endpoint))
    expect_fault(down, "gateway", "ended without stopping in order", "gatepost up --detach")


def test_a_port_that_another_program_has(down: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        down.env["GATEPOST_LISTEN__PORT"] = str(port)
        expect_fault(down, "ports", f"cannot listen on 127.0.0.1:{port}", "ss -ltnp")


def test_other_machines_without_tls(down: Cli) -> None:
    write_settings(down, '[listen]\nhost = "0.0.0.0"\nallow_public = true\n')
    expect_fault(down, "tls", "without TLS other machines are refused", "gatepost init --public")


def plant_certificate(cli: Cli, made_at: int, *, other_key: bool = False) -> None:
    key = create_key()
    (cli.home / "tls.crt").write_bytes(create_certificate(key, "vps.example", made_at))
    (cli.home / "tls.key").touch(0o600)
    (cli.home / "tls.key").write_bytes(create_key() if other_key else key)
    write_settings(cli, '[listen]\ntls_cert = "tls.crt"\ntls_key = "tls.key"\n')


def test_a_certificate_of_another_key(down: Cli) -> None:
    plant_certificate(down, SystemClock().now(), other_key=True)
    expect_fault(down, "tls", "cannot be used with the key", "listen.tls_key")


def test_a_certificate_that_has_expired(down: Cli) -> None:
    plant_certificate(down, SystemClock().now() - 11 * 365 * 86_400_000)
    expect_fault(down, "tls", "has expired on", "gatepost init --public --force")


def test_a_disk_that_is_full(down: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_checks, "free_space", lambda _: (10 << 20, 10))
    found = faults(down, "disk")
    assert "10.0 MiB left: the gateway soon refuses" in found[0]["problem"]
    assert "node.state_dir" in found[0]["remedy"]
    assert "only 10 more files" in found[1]["problem"]


def test_a_disk_that_is_slow(down: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_checks, "measure_sync", lambda _: 0.25)
    expect_fault(down, "disk", "takes 250 ms to make a write durable", "local SSD")


def test_a_network_file_system() -> None:
    mounts = "/dev/sda / ext4 rw 0 0\nsrv:/x /srv/my\\040nfs nfs4 rw 0 0\n"
    found = [*disk_checks.check_kind(Path("/srv/my nfs/state"), mounts)]
    assert "network file system (nfs4)" in found[0].problem
    assert not [*disk_checks.check_kind(Path("/srv/other"), mounts)]


def define(cli: Cli, **definition: object) -> None:
    (cli.home / "agents").mkdir(exist_ok=True)
    (cli.home / "agents" / "agent.json").write_text(json.dumps({"name": "coder", **definition}))


@pytest.fixture
def no_bubblewrap() -> Iterator[None]:
    find_bubblewrap.cache_clear()
    yield
    find_bubblewrap.cache_clear()


def test_a_definition_that_cannot_be_used(down: Cli) -> None:
    define(down, comand=["sh"])
    expect_fault(down, "sessions", "agent.json:1: ", "mend the file")


def test_a_command_that_is_not_installed(down: Cli) -> None:
    define(down, command=["no-such-coder"])
    found = [each for each in faults(down, "sessions") if not each["is_advice"]]
    assert [each["problem"] for each in found] == [
        "the command of the agent coder is not installed: no-such-coder"
    ]
    assert "install no-such-coder" in found[0]["remedy"]


def test_a_hardened_agent_without_a_sandbox(
    down: Cli, monkeypatch: pytest.MonkeyPatch, no_bubblewrap: None
) -> None:
    empty = down.home.parent / "bin"
    empty.mkdir()
    (empty / "sh").symlink_to(shutil.which("sh") or "/bin/sh")
    down.env["PATH"] = str(empty)
    define(down, command=["sh"], hardened=True)
    found = [each for each in faults(down, "sessions") if not each["is_advice"]]
    assert found[0]["problem"] == "no sandbox works on this machine, and coder needs it"
    assert "apt-get install bubblewrap" in found[0]["remedy"]


def test_limits_that_the_kernel_does_not_take() -> None:
    (found,) = session_checks.check_limits(takes_limits=False)
    assert found.is_advice and "containers" in found.remedy


def test_a_policy_that_cannot_be_used(down: Cli) -> None:
    (down.home / "policy.cedar").write_text("permit(;")
    expect_fault(down, "sessions", "policy.cedar is not used", "gatepost policy check")


def test_a_container_engine_that_does_not_answer(down: Cli) -> None:
    define(down, image="busybox")
    down.env["GATEPOST_HUB__DOCKER_HOST"] = f"unix://{down.home}/docker.sock"
    expect_fault(down, "sessions", "no engine answers", "systemctl start docker")


def test_a_java_that_is_not_there(down: Cli) -> None:
    down.env["JAVA_HOME"] = str(down.home / "jdk")
    expect_fault(down, "pipeline", "and there is no Java", "unset JAVA_HOME")


def test_an_archive_without_its_library(down: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from gatepost.cli.doctor import pipeline_checks
    from gatepost.config import load_settings

    settings = load_settings({**down.env, "GATEPOST_ARCHIVE__URI": "/srv/archive"})
    (found,) = pipeline_checks.check_pipeline(settings, {}, lambda _: False)
    assert "archive.uri is set" in found.problem and "gatepost[archive]" in found.remedy
