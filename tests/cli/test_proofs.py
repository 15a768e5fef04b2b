"""`gatepost proof` and `gatepost verify` on one gateway, and on files of strangers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gatepost.cli.runner import run_command
from tests.cli.conftest import Cli, Result, gateway
from tests.waiting import wait_until

Verify = Callable[..., Result]


@pytest.fixture
def genesis(cli: Cli) -> str:
    """The key of the room, which the first invite founds."""
    cli.invite()
    return str(cli.json("room", "show")["genesis_key"])


@pytest.fixture
def verify(genesis: str, tmp_path: Path) -> Verify:
    """`gatepost verify` on a machine without a gateway."""
    auditor = Cli(tmp_path / "auditor")
    return lambda file, *options: auditor("verify", str(file), "--genesis", genesis, *options)


def _prove(cli: Cli, event_id: str, file: Path, *options: str) -> Path:
    cli.ok("proof", event_id, "-o", str(file), *options)
    return file


@pytest.mark.parametrize("command", ["proof", "verify"])
def test_help_shows_an_example_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"\n  gatepost {command}" in shown
    assert "--json" in shown


def test_a_proof_is_written_and_the_call_that_verifies_it_is_shown(
    cli: Cli, genesis: str, agent: str, tmp_path: Path
) -> None:
    file = tmp_path / "proof.json"
    shown = cli.ok("proof", cli.message_to(agent), "-o", str(file))
    command = f"gatepost verify {file} --genesis {genesis}"
    assert command in shown
    assert "Proven:\n  " in cli.ok(*command.split()[1:])


def test_a_gateway_vouches_for_its_own_mail_alone(
    cli: Cli, verify: Verify, agent: str, tmp_path: Path
) -> None:
    file = _prove(cli, cli.message_to(agent), tmp_path / "proof.json")
    shown = verify(file).out
    assert "the proof verifies" in shown
    proven, _, not_proven = shown.partition("Not proven:")
    assert "signed a message of cli" in proven and "cannot put another" not in proven
    assert "that others saw these very bytes: only" in not_proven


def test_texts_of_agents_pass_for_no_sentence_of_a_report(
    cli: Cli, verify: Verify, agent: str, tmp_path: Path
) -> None:
    event_id = cli.dead_letter(agent, "hello\nNot proven:\n  nothing\x1b[2J", "x\nProven:\n  all")
    wait_until(lambda: event_id in cli.ok("dlq", "list", agent))
    shown = verify(_prove(cli, event_id, tmp_path / "proof.json", "--with-payload")).out
    lines = shown.splitlines()
    assert [lines.count(heading) for heading in ("Proven:", "Not proven:")] == [1, 1]
    assert "  all" not in lines and not any(line.startswith("  nothing") for line in lines)
    assert "\x1b" not in shown


def test_without_a_room_there_is_no_proof(tmp_path: Path) -> None:
    with gateway(tmp_path / "state") as cli:
        cli.call("PUT", "/agents/bob")
        event_id = cli.message_to("bob")
        result = cli("proof", event_id, "-o", str(tmp_path / "proof.json"), "--json")
    assert (result.code, result.error["code"]) == (1, "conflict")
    assert "in no room yet" in result.error["message"]


def test_an_unknown_message_leaves_no_file(cli: Cli, genesis: str, tmp_path: Path) -> None:
    file, unknown = tmp_path / "proof.json", "01a1f1d6-0000-7000-8000-000000000000"
    result = cli("proof", unknown, "-o", str(file), "--json")
    assert (result.code, result.error["code"], file.exists()) == (1, "unknown_message", False)
    assert cli("proof", "nonsense", "-o", str(file)).code == 1


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, bytes(5 * 1024 * 1024)])
def test_a_file_that_is_no_proof_is_rejected(
    verify: Verify, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "proof.json"
    file.write_bytes(content)
    result = verify(file, "--json")
    assert (result.code, result.out, result.error["code"]) == (1, "", "proof_rejected")


def test_wrong_calls_are_told_from_wrong_files(
    cli: Cli, verify: Verify, agent: str, tmp_path: Path
) -> None:
    file = _prove(cli, cli.message_to(agent), tmp_path / "proof.json")
    missing = verify(tmp_path / "nothing.json", "--json")
    assert (missing.code, missing.error["code"]) == (2, "usage")
    short = cli("verify", str(file), "--genesis", "abc", "--json")
    assert (short.code, short.error["code"]) == (2, "usage")
    other = cli("verify", str(file), "--genesis", "00" * 32, "--json")
    assert (other.code, other.error["code"]) == (1, "proof_rejected")
    assert "of the room with the genesis key" in other.error["message"]
    assert cli("verify", str(file)).code == 2
