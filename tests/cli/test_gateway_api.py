import json
import socket
import threading
from pathlib import Path

import pytest

from gatepost.cli.gateway_api import locate_gateway
from gatepost.cli.options import GatewayOptions
from gatepost.cli.problems import CommandProblem
from tests.cli.conftest import Cli


@pytest.fixture
def home(tmp_path: Path) -> Path:
    announce(tmp_path / "home", "http://127.0.0.1:1111")
    return tmp_path / "home"


def announce(home: Path, url: str) -> None:
    home.mkdir(mode=0o700)
    endpoint = {"url": url, "socket": None, "pid": 1, "node_id": "n"}
    (home / "endpoint.json").write_text(json.dumps(endpoint))


def test_the_state_directory_knows_its_gateway(home: Path) -> None:
    found = locate_gateway(GatewayOptions(), {"GATEPOST_HOME": str(home)})
    assert (found.url, found.token_file) == ("http://127.0.0.1:1111", home / "token")


def test_the_environment_wins_over_the_state_directory(home: Path) -> None:
    env = {
        "GATEPOST_HOME": str(home),
        "GATEPOST_URL": "http://localhost:2222/",
        "GATEPOST_TOKEN_FILE": "/run/token",
    }
    found = locate_gateway(GatewayOptions(), env)
    assert (found.url, found.token_file) == ("http://localhost:2222", Path("/run/token"))


def test_a_state_directory_as_option_wins_over_the_environment(home: Path) -> None:
    env = {"GATEPOST_URL": "http://localhost:2222", "GATEPOST_TOKEN_FILE": "/run/token"}
    found = locate_gateway(GatewayOptions(state_dir=home), env)
    assert (found.url, found.token_file) == ("http://127.0.0.1:1111", home / "token")


def test_the_local_token_is_not_shown_to_another_machine(home: Path) -> None:
    env = {"GATEPOST_HOME": str(home)}
    with pytest.raises(CommandProblem, match="--token-file"):
        locate_gateway(GatewayOptions(url="http://gateway.example:7433"), env)
    named = GatewayOptions(url="http://gateway.example:7433", token_file=Path("/run/token"))
    assert locate_gateway(named, env).token_file == Path("/run/token")


def test_an_address_needs_a_scheme(home: Path) -> None:
    with pytest.raises(CommandProblem, match="http://HOST:PORT"):
        locate_gateway(GatewayOptions(url="localhost:7433"), {"GATEPOST_HOME": str(home)})


def test_no_gateway_says_how_to_start_one(tmp_path: Path) -> None:
    result = Cli(tmp_path / "none").in_own_process("status")
    assert result.code == 3
    assert "start one with `gatepost up`" in result.err
    assert Cli(tmp_path / "none")("status", "--json").error["code"] == "unreachable"


def test_a_gateway_that_died_is_unreachable(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    announce(tmp_path / "home", f"http://127.0.0.1:{port}")
    (tmp_path / "home" / "token").write_text("abc")
    result = Cli(tmp_path / "home")("send", "bob", "hi")
    assert (result.code, "gatepost up" in result.err) == (3, True)


def test_the_settings_file_may_put_the_state_elsewhere(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "gatepost.toml").write_text(f'[node]\nstate_dir = "{cli.home}"\n')
    assert "accepting" in Cli(tmp_path).ok("status")


def test_common_options_may_stand_before_the_command(cli: Cli, tmp_path: Path) -> None:
    elsewhere = Cli(tmp_path)
    given = ("--json", "--state-dir", str(cli.home))
    assert elsewhere(*given, "status").document["gateway"]["accepting"] is True
    assert elsewhere(*given, "send", "nobody", "--", "hi").error["code"] == "unknown_agent"


def test_a_wrong_token_names_its_file(cli: Cli, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("f00dfeed" * 8)
    result = cli("status", "--token-file", str(wrong))
    assert result.code == 1
    assert str(wrong) in result.err
    assert "f00dfeed" not in result.err + result.out


def test_what_a_token_file_holds_is_never_shown(cli: Cli, tmp_path: Path) -> None:
    for content in ("my secret\nsecond line", "", "sécret"):
        (tmp_path / "odd").write_text(content)
        result = cli("status", "--token-file", str(tmp_path / "odd"), "--json")
        assert (result.code, result.error["code"]) == (1, "unauthorized")
        assert "cret" not in result.err


def test_no_command_shows_the_token(cli: Cli, agent: str) -> None:
    token = (cli.home / "token").read_text().strip()
    id = cli.message_to(agent)
    commands = (("status",), ("inbox", agent), ("trace", id), ("audit",), ("agent", "list"))
    for command in commands:
        for form in ((), ("--json",)):
            result = cli(*command, *form)
            assert token not in result.out + result.err


def test_something_that_is_no_gateway_is_recognized(cli: Cli) -> None:
    def greet(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet, args=(server,))
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        result = cli("status", "--url", url, "--json")
        thread.join(10)
    assert (result.code, result.error["code"]) == (1, "unexpected_answer")
