"""`gatepost migrate`, as a person uses it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.testing import GatewayProcess
from tests.cli.conftest import Cli, gateway
from tests.migration.tools import message
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """One gateway; each test is a migration of its own, in a folder of its own."""
    state = tmp_path_factory.mktemp("cli") / "state"
    state.mkdir(mode=0o700)
    with gateway(state) as cli:
        for name in ("bob", "cat"):
            cli.call("PUT", f"/agents/{name}")
        yield cli


@pytest.fixture
def cli(home: Cli) -> Iterator[Cli]:
    yield home
    for file in home.home.glob("migration*"):
        file.unlink()
    for name in ("bob", "cat"):
        home.call("DELETE", f"/mailboxes/{name}")


def written(path: Path, messages: dict[str, Any], tasks: dict[str, Any] | None = None) -> str:
    path.write_text(json.dumps({"messages": messages, "tasks": tasks or {}}))
    return str(path)


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_from_a_dry_run_to_the_end(cli: Cli, tmp_path: Path) -> None:
    id = tmp_path.name
    messages = {f"{id}-{n}": message(n) for n in range(3)}
    dump = written(tmp_path / "dump.json", messages | {"old": message(9, status="read")})
    assert "no migration" in cli.ok("migrate", "status")
    assert "total\t4\t3\t0\t1\t0" in cli.ok("migrate", "import", dump, "--dry-run")
    assert "total\t4\t3\t0\t1\t0" in cli.ok("migrate", "import", dump)
    assert cli.json("migrate", "import", dump)["total"]["already"] == 3
    assert cli.ok("migrate", "verify", dump).endswith("verified\n")
    assert cli.ok("migrate", "status").startswith("importing")
    done = cli.json("migrate", "cut-over", dump)
    assert done["proof"]["outcomes"] == {"waiting": 3}
    assert done["marker"]["phase"] == "cut-over"
    status = cli.json("migrate", "status")
    assert status["marker"]["counts"]["read"] == 4
    refused = cli("migrate", "dual-write", "--out", str(tmp_path / "x.json"))
    assert refused.code == 1
    assert "cut over" in refused.err


def test_after_cut_over_an_import_only_looks(cli: Cli, tmp_path: Path) -> None:
    dump = written(tmp_path / "dump.json", {"a": message(1)})
    cli.ok("migrate", "cut-over", dump)
    assert cli.json("migrate", "import", dump)["dry_run"]
    late = written(tmp_path / "late.json", {"a": message(1), "b": message(2)})
    found = cli("migrate", "import", late, "--json")
    assert found.code == 1
    assert found.document["total"] == {
        "read": 2,
        "imported": 1,
        "already": 1,
        "history": 0,
        "rejected": 0,
    }
    assert cli("migrate", "verify", late).code == 1


def test_rejects_and_history_are_written_where_asked(cli: Cli, tmp_path: Path) -> None:
    dump = written(
        tmp_path / "dump.json",
        {"a": message(1, to="Jane's Mac"), "b": {}, "c": message(3, status="acked")},
        {"t": {"title": "x", "assignedTo": "cat"}},
    )
    rejects, history = tmp_path / "rejects", tmp_path / "history"
    options = ("--rejects", str(rejects), "--history", str(history), "--only", "messages")
    said = cli.ok("migrate", "import", dump, *options, "--map-agent", "Jane's Mac=bob")
    assert "messages\t3\t1\t0\t1\t1" in said
    assert "rejected: 1 no_content" in said
    assert [row["id"] for row in lines(rejects.read_text())] == ["b"]
    assert [row["id"] for row in lines(history.read_text())] == ["c"]
    stopped = cli("migrate", "cut-over", dump, "--map-agent", "Jane's Mac=bob")
    assert (stopped.code, "1 items were rejected" in stopped.err) == (1, True)
    cli.ok("migrate", "cut-over", dump, "--map-agent", "Jane's Mac=bob", "--leave-rejects")
    assert [one["from"] for one in cli.take("cat")] == ["legacy"]


@pytest.mark.parametrize("name", ["legacy.json", "legacy.ydoc"])
def test_dual_write_answers_each_line(cli: Cli, tmp_path: Path, name: str) -> None:
    out = str(tmp_path / name)
    sent = b"""{"from": "SENDER", "to": "bob", "payload": {"n": 1}}
{"to": "nobody", "payload": 2}
not json

{"from": "SENDER", "to": "bob", "payload": 3, "corrId": "c", "idempotencyKey": "k"}
{"to": "bob", "payload": 3, "extra": true}
"""
    # Mail of one sender would wait for what another test has taken and not settled.
    sent = sent.replace(b"SENDER", name.encode())
    done = cli("migrate", "dual-write", "--out", out, stdin=sent)
    assert done.code == 1
    answers = lines(done.out)
    assert [answer["line"] for answer in answers] == [1, 2, 3, 5, 6]
    codes = [answer.get("error", {}).get("code") for answer in answers]
    assert codes == [None, "unknown_agent", "invalid_request", None, "invalid_request"]
    status = cli.json("migrate", "status")
    assert status["marker"]["phase"] == "dual-write"
    assert (status["dual_write"]["gateway"], status["dual_write"]["legacy"]) == (2, 2)
    assert [one["payload"] for one in cli.take("bob")] == [{"n": 1}, 3]
    assert cli.json("migrate", "import", out)["total"]["already"] == 2


def test_status_names_what_only_one_side_has(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "legacy.json"
    cli.ok("migrate", "dual-write", "--out", str(out), stdin=b'{"to": "bob", "payload": 1}\n')
    document = json.loads(out.read_text())
    ((id, record),) = document["messages"].items()
    document["messages"] = {"other": record}
    out.write_text(json.dumps(document))
    found = cli("migrate", "status")
    assert found.code == 1
    assert f"only gateway: {id}" in found.out
    assert "only legacy: other" in found.out


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("import", "nothing.json"), 2, "cannot be read"),
        (("import", "DUMP", "--map-agent", "bob"), 2, "OLD=NEW"),
        (("import", "DUMP", "--map-agent", "bob=no agent"), 2, "not valid"),
        (("import", "DUMP", "--only", "nodes"), 2, "nodes"),
        (("import", "DUMP", "--url", "http://127.0.0.1:9"), 3, "no gateway answers"),
        (("verify", "DUMP", "--token-file", "nothing"), 1, "cannot be read"),
        (("dual-write",), 2, "--out"),
    ],
)
def test_what_is_wrong_is_said(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], code: int, why: str
) -> None:
    dump = written(tmp_path / "dump.json", {"a": message(1)})
    found = cli("migrate", *(dump if one == "DUMP" else one for one in arguments))
    assert found.code == code, found
    assert why in found.err


def test_sends_are_mirrored_until_it_is_switched_off(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "legacy.json"
    with cli.running("migrate", "mirror", "--out", str(out)) as mirror:
        wait_until(lambda: cli.call("GET", "/mirror")["on"])
        id = cli.message_to("bob", "for both")
        wait_until(lambda: out.exists() and cli.call("GET", "/mirror")["waiting"] == 0)
        assert mirror.poll() is None
    assert json.loads(out.read_text())["messages"][id]["content"] == "for both"
    assert cli.json("migrate", "status")["dual_write"]["only_gateway"] == []
    assert cli.ok("migrate", "mirror", "--off") == "the mirror is off\n"
    assert cli.call("GET", "/mirror")["on"] is False
    assert cli("migrate", "mirror").code == 2


def test_a_document_is_followed(cli: Cli, tmp_path: Path) -> None:
    def mail() -> set[str]:
        return {each["msg_id"] for each in cli.json("inbox", "cat", "--limit", "1000")["messages"]}

    path, before = tmp_path / "export.json", mail()
    written(path, {f"{tmp_path.name}-1": message(1, to="cat")})
    with cli.running("migrate", "follow", str(path)):
        wait_until(lambda: len(mail() - before) == 1)
        written(path, {f"{tmp_path.name}-{n}": message(n, to="cat") for n in (1, 2)})
        wait_until(lambda: len(mail() - before) == 2)


def test_a_mirror_waits_for_a_gateway_that_restarts(tmp_path: Path) -> None:
    out = tmp_path / "legacy.json"
    with GatewayProcess(tmp_path / "state") as running:
        cli = Cli(running.state_dir)
        cli.call("PUT", "/agents/bob")
        with cli.running("migrate", "mirror", "--out", str(out)) as mirror:
            wait_until(lambda: cli.call("GET", "/mirror")["on"])
            running.stop()
            running.start()
            id = cli.message_to("bob")
            wait_until(lambda: out.exists() and id in json.loads(out.read_text())["messages"])
            assert mirror.poll() is None
