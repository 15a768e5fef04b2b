"""`gatepost init` and `gatepost up`."""

import json
import signal
import socket
import tomllib
from pathlib import Path

from tests.cli.conftest import Cli, gateway


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_init_writes_a_private_settings_file(tmp_path: Path) -> None:
    home = tmp_path / "new" / "state"
    said = Cli(tmp_path).ok("init", "--state-dir", str(home), "--node-id", "lab-1")
    assert f"gatepost up --state-dir {home}" in said
    assert (mode(home), mode(home / "gatepost.toml")) == (0o700, 0o600)
    settings = tomllib.loads((home / "gatepost.toml").read_text())
    assert settings["node"] == {"id": "lab-1"}


def test_init_replaces_nothing_unless_forced(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "state")
    assert cli.json("init")["config"] == str(tmp_path / "state" / "gatepost.toml")
    again = cli("init", "--json")
    assert (again.code, again.error["code"]) == (1, "conflict")
    assert "--force" in again.err
    cli.ok("init", "--force")


def test_init_refuses_a_directory_others_can_read(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    result = Cli(tmp_path)("init", "--state-dir", str(tmp_path / "open"))
    assert (result.code, "chmod 700" in result.err) == (1, True)


def test_init_refuses_a_bad_node_id(tmp_path: Path) -> None:
    result = Cli(tmp_path / "state")("init", "--node-id", '"; x')
    assert result.code == 2
    assert not (tmp_path / "state").exists()


def test_a_config_typo_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "gatepost.toml"
    file.write_text("[mailbox]\nmax_retris = 3\n")
    result = Cli(tmp_path).in_own_process("up", "--config", str(file))
    assert result.code == 2
    assert "did you mean 'max_retries'?" in result.err
    assert "Traceback" not in result.err


def test_a_config_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.toml")
    result = Cli(tmp_path).in_own_process("up", "--config", missing, "--json")
    assert (result.code, result.error["code"]) == (2, "config_error")


def test_a_bad_variable_is_explained(tmp_path: Path) -> None:
    result = Cli(tmp_path, GATEPOST_LISTEN__PORT="many").in_own_process("up")
    assert (result.code, "GATEPOST_LISTEN__PORT" in result.err) == (2, True)


def test_a_port_in_use_is_explained(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = Cli(tmp_path / "state").in_own_process("up", "--port", port)
    assert (result.code, f":{port}" in result.err) == (1, True)
    assert "Traceback" not in result.err


def test_a_second_gateway_on_the_same_state_is_refused(cli: Cli) -> None:
    result = cli.in_own_process("up", "--port", "0")
    assert (result.code, "in use by another gateway" in result.err) == (1, True)
    assert "Traceback" not in result.err
    assert cli("status").code == 0


def test_options_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "gatepost.toml").write_text(
        '[node]\nid = "from-file"\n[listen]\nport = 99\n[log]\nlevel = "debug"\n'
    )
    env = {"GATEPOST_NODE__ID": "from-env", "GATEPOST_LISTEN__PORT": "99"}
    with gateway(tmp_path / "state", **env) as cli:
        status = cli.json("status")
    assert status["gateway"]["node_id"] == "from-env"
    assert not status["url"].endswith(":99")


def test_logs_are_json_where_nobody_looks(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "state")
    with cli.running("up", "--port", "0") as process:
        assert process.stderr is not None
        # As root, a warning comes first.
        said = iter(process.stderr.readline, "")
        assert any("listens on" in json.loads(line)["message"] for line in said)
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=20)
    assert all(json.loads(line) for line in rest.splitlines())


def test_a_person_is_told_where_it_listens_and_what_to_do(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "state")
    with cli.on_terminal("up", "--port", "0") as terminal:
        seen = terminal.read("inbox bob --take")
        terminal.process.send_signal(signal.SIGINT)
        rest = terminal.read()
        assert terminal.process.wait(20) == 0
    assert str(tmp_path / "state") in seen
    assert "http://127.0.0.1:" in seen
    assert "gatepost send bob hello" in seen
    assert "Traceback" not in rest


def test_a_state_directory_that_cannot_be_looked_into_is_one_line(tmp_path: Path) -> None:
    """A name that is too long stands in for a folder of somebody else: tests may run as root."""
    cli = Cli(tmp_path / ("x" * 300))
    for command in (("status",), ("up",), ("init",), ("send", "bob", "hi"), ("bench", "mailbox")):
        result = cli(*command, "--json")
        assert result.code != 0
        assert result.error["code"] in {"storage_failed", "config_error", "unreachable"}, result


# -- in the background


def test_a_gateway_in_the_background_answers_when_its_command_returns(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "state")
    started = cli.in_own_process("up", "--detach", "--port", "0", "--json")
    assert started.code == 0, started
    try:
        assert cli.json("status")["url"] == started.document["url"]
        waited = cli.json("up", "--wait")
        assert waited["pid"] == started.document["pid"]
        log = tmp_path / "state" / "gateway.log"
        assert "listens on" in log.read_text()
        assert mode(log) == 0o600
    finally:
        stopped = cli.json("down")
    assert stopped["pid"] == started.document["pid"]
    assert cli("status").code == 3


def test_a_start_in_the_background_reports_why_it_failed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        cli = Cli(tmp_path / "state")
        result = cli.in_own_process("up", "--detach", "--port", port, "--json")
    assert (result.code, result.error["code"]) == (1, "config_error")
    assert f":{port}" in result.error["message"]


def test_waiting_for_a_gateway_that_is_never_started_ends(tmp_path: Path) -> None:
    result = Cli(tmp_path / "state")("up", "--wait", "--timeout", "0.1")
    assert (result.code, "no gateway answers" in result.err) == (3, True)
    assert not (tmp_path / "state").exists()


def test_detaching_and_waiting_exclude_each_other(tmp_path: Path) -> None:
    assert Cli(tmp_path / "state")("up", "--wait", "--detach").code == 2


def test_there_is_nothing_to_stop_where_no_gateway_runs(tmp_path: Path) -> None:
    result = Cli(tmp_path / "state")("down")
    assert (result.code, "no gateway runs on" in result.err) == (3, True)
