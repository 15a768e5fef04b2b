"""The drop folder: requests in files, answers in files, and crashes in between."""

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gatepost.core import folder_watch
from gatepost.errors import ConfigError, StorageFailed
from gatepost.gateway.api import drop_folder as drop_module
from gatepost.gateway.api.drop_folder import DropFolder
from gatepost.gateway.api.operations import Operations
from gatepost.testing import GatewayProcess, ManualClock
from tests.gateway.tools import (
    drop,
    drop_and_wait,
    dump,
    mail,
    opened,
)
from tests.waiting import async_assert_stays_true, async_wait_until, wait_until


def _enqueue(*messages: dict[str, object]) -> dict[str, object]:
    return {"op": "enqueue", "messages": messages}


def _put(folder: Path, name: str, content: object) -> None:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "tmp" / name).write_bytes(body)
    (folder / "tmp" / name).rename(folder / "new" / name)


async def _appears(path: Path) -> Any:
    await async_wait_until(path.exists)
    return json.loads(path.read_bytes())


async def _mail_ids(operations: Operations) -> set[str]:
    found = await operations.core.read(lambda tx: tx.fetch_all("SELECT msg_id FROM mail"))
    return {str(row[0]) for row in found}


def test_a_request_is_answered_in_a_file_and_removed(gateway: GatewayProcess, box: str) -> None:
    answer = drop_and_wait(gateway, box, _enqueue(mail("m:1", box)) | {"id": 5})
    assert answer["re"] == 5
    assert answer["results"] == [{"msg_id": "m:1", "queued": True, "pending": 1}]
    wait_until(lambda: not (gateway.state_dir / "drop/new" / f"{box}.json").exists())
    out = gateway.state_dir / "drop/out" / f"{box}.json"
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_the_answer_comes_at_once_not_with_the_next_tick(gateway: GatewayProcess, box: str) -> None:
    start = time.monotonic()
    for n in range(5):
        drop_and_wait(gateway, f"{box}-{n}", {"op": "peek", "mailbox": box})
    assert time.monotonic() - start < 4


def test_the_operations_of_a_file_are_run_in_order(gateway: GatewayProcess, box: str) -> None:
    ops: list[dict[str, object]] = [
        {"op": "dequeue", "mailbox": box},
        _enqueue(mail("m:1", box)),
        {"op": "dequeue", "mailbox": box},
        {"op": "ack", "mailbox": box, "msg_ids": ["m:1"]},
        {"op": "peek", "mailbox": box},
        _enqueue(mail("m:2", box)),
        {"op": "purge", "mailbox": box},
    ]
    answers = drop_and_wait(gateway, box, ops)
    assert answers[0]["messages"] == []
    assert [m["msg_id"] for m in answers[2]["messages"]] == ["m:1"]
    assert [answers[3]["settled"], answers[4]["messages"], answers[6]["count"]] == [1, [], 1]


def test_files_are_run_in_the_order_of_their_names(gateway: GatewayProcess, box: str) -> None:
    with gateway.frozen():
        for n in reversed(range(40)):
            drop(gateway, f"{box}-{n:02}", _enqueue(mail(f"m:{n:02}", box)))
    last = gateway.state_dir / "drop/out" / f"{box}-39.json"
    wait_until(last.exists)
    found = gateway.get(f"/v1/mailboxes/{box}")["messages"]
    assert [m["msg_id"] for m in found] == [f"m:{n:02}" for n in range(40)]


def test_a_dequeue_in_a_file_is_held_by_the_files_name(gateway: GatewayProcess, box: str) -> None:
    drop_and_wait(gateway, f"{box}-put", _enqueue(mail("m:1", box)))
    request = {"op": "dequeue", "mailbox": box}
    (first,) = drop_and_wait(gateway, f"{box}-get", request)["messages"]
    out = gateway.state_dir / "drop/out" / f"{box}-get.json"
    out.unlink()
    wait_until(lambda: not (gateway.state_dir / "drop/new" / f"{box}-get.json").exists())
    assert drop_and_wait(gateway, f"{box}-get", request)["messages"] == [first]
    assert drop_and_wait(gateway, f"{box}-other", request)["messages"] == []


@pytest.mark.parametrize("op", ["subscribe", "unsubscribe"])
def test_a_file_cannot_subscribe(gateway: GatewayProcess, box: str, op: str) -> None:
    answer = drop_and_wait(gateway, box, {"op": op, "id": 3, "mailbox": box})
    assert (answer["re"], answer["error"]["code"]) == (3, "invalid_request")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "invalid_request"),
        (b"nonsense", "invalid_request"),
        (b"\xff\xfe", "invalid_request"),
        (b"[" * 100_000, "invalid_request"),
        (b"[" + b" " * 1024 * 1024 + b"]", "payload_too_large"),
    ],
)
def test_a_bad_request_has_a_coded_answer(
    gateway: GatewayProcess, box: str, content: bytes, code: str
) -> None:
    assert drop_and_wait(gateway, box, content)["error"]["code"] == code
    wait_until(lambda: not (gateway.state_dir / "drop/new" / f"{box}.json").exists())


def test_what_is_no_request_is_set_aside_and_never_followed(
    gateway: GatewayProcess, box: str, tmp_path: Path
) -> None:
    folder = gateway.state_dir / "drop"
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(_enqueue(mail("m:1", box))))
    (folder / "new/link.json").symlink_to(secret)
    (folder / "new/folder.json").mkdir()
    (folder / "new/folder.json/inside").write_text("x")
    os.mkfifo(folder / "new/pipe.json")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "new/socket.json"))
    for name in (".hidden.json", "-dash.json", "no-suffix", "sp ace.json", "x" * 250, "ü.json"):
        _put(folder, name, _enqueue(mail("m:1", box)))
    expected = {"link.json", "folder.json", "pipe.json", "socket.json", ".hidden.json"}
    expected |= {"-dash.json", "no-suffix", "sp ace.json", "x" * 200, "ü.json"}

    def bad() -> set[str]:
        return {path.name for path in (folder / "bad").iterdir()}

    _put(folder, "zz.json", {"op": "peek", "mailbox": box})
    wait_until(lambda: bad() >= expected | {f"{name}.error.json" for name in expected})
    reason = json.loads((folder / "bad/link.json.error.json").read_bytes())
    assert reason["error"]["code"] == "invalid_request"
    assert secret.exists()
    assert gateway.get(f"/v1/mailboxes/{box}")["messages"] == []
    assert not (folder / "out/link.json").exists()


def test_what_was_set_aside_before_is_not_overwritten(gateway: GatewayProcess, box: str) -> None:
    folder = gateway.state_dir / "drop"
    for content in (b"first", b"second"):
        _put(folder, box, content)
        wait_until(lambda: not (folder / "new" / box).exists())
    wait_until((folder / "bad" / f"{box}.1.error.json").exists)
    assert (folder / "bad" / box).read_bytes() == b"first"
    assert (folder / "bad" / f"{box}.1").read_bytes() == b"second"


def test_a_request_that_waited_through_a_stop_is_answered_at_the_start(
    state: Path, box: str
) -> None:
    with GatewayProcess(state) as gateway:
        assert gateway.stop() == 0
        answer = drop(gateway, "late", _enqueue(mail("m:1", box)))
        (state / "drop/out/.half.json").write_text("{")
        gateway.start()
        wait_until(answer.exists)
        assert not (state / "drop/out/.half.json").exists()


_KILLED = """
import os, signal, sys
from gatepost.gateway import __main__
from gatepost.gateway.api import drop_folder
drop_folder.DropFiles.write_answer = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
__main__.main(sys.argv[1:])
"""


def test_a_kill_between_commit_and_answer_loses_and_doubles_nothing(state: Path, box: str) -> None:
    """The request has been committed and its answer not yet written when the gateway dies."""
    large = {"from_agent": "al", "to_agent": "bob", "payload": "x" * 70_000}
    request = [
        _enqueue(mail("m:1", box)),
        {"op": "send", "messages": [large]},
        {"op": "dequeue", "mailbox": box},
    ]
    with GatewayProcess(state) as gateway:
        drop_and_wait(gateway, "setup", {"op": "register", "agent": "bob"})
        gateway.stop()
        answer = drop(gateway, "x", request)
        command = [sys.executable, "-c", _KILLED, str(state)]
        env = dict(os.environ, GATEPOST_LISTEN__PORT="0")
        killed = subprocess.run(command, env=env, check=False, capture_output=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        committed = dump(state / "journal.db")
        assert [len(committed[table]) for table in ("mail", "delivery", "lease")] == [2, 1, 1]
        gateway.start()
        wait_until(answer.exists)
        enqueued, sent, messages = json.loads(answer.read_bytes())
        assert enqueued["results"][0]["queued"] is False
        assert sent["results"][0]["state"] == "accepted"
        assert [m["msg_id"] for m in messages["messages"]] == ["m:1"]
        after = dump(state / "journal.db")
        assert after["mail"] == committed["mail"]
        assert after["delivery"] == committed["delivery"]
        assert after["outbox"] == committed["outbox"]


# -- in this process


@pytest.fixture
def folder(state: Path) -> Path:
    return state / "drop"


@pytest.mark.anyio
async def test_without_inotify_the_folder_is_looked_at_every_second(
    state: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_watch, "_open_inotify", lambda folder, events: None)
    monkeypatch.setattr(folder_watch, "_LOOK_EVERY", 0.05)
    async with opened(state) as operations:
        door = DropFolder(operations, folder)
        await door.start()
        # The first may still be found by the look at the start, the second is not.
        for name in ("x.json", "y.json"):
            _put(folder, name, {"op": "peek", "mailbox": "b"})
            assert (await _appears(folder / "out" / name))["op"] == "summaries"
        await door.stop()


@pytest.mark.anyio
async def test_while_the_journal_cannot_write_requests_wait(
    state: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drop_module, "_RETRY_SECS", 0.05)
    async with opened(state) as operations:
        door = DropFolder(operations, folder)
        await door.start()

        refused = 0

        def refuse(*_: object) -> None:
            nonlocal refused
            refused += 1
            raise StorageFailed("the disk is full")

        monkeypatch.setattr(operations.core.writer, "submit", refuse)
        _put(folder, "x.json", _enqueue(mail("m:1", "b")))
        await async_wait_until(lambda: refused >= 3)
        assert (folder / "new/x.json").exists()
        assert not (folder / "out/x.json").exists()
        monkeypatch.undo()
        assert (await _appears(folder / "out/x.json"))["results"][0]["queued"]
        await door.stop()


@pytest.mark.anyio
async def test_an_answer_that_cannot_be_written_is_tried_again(
    state: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drop_module, "_RETRY_SECS", 0.05)
    async with opened(state) as operations:
        door = DropFolder(operations, folder)
        await door.start()
        (folder / "out/x.json").mkdir()
        _put(folder, "x.json", _enqueue(mail("m:1", "b")))
        await async_wait_until(lambda: _mail_ids(operations))
        # Longer than it takes until it tries again.
        await async_assert_stays_true((folder / "new/x.json").exists, 0.1)
        (folder / "out/x.json").rmdir()
        answer = await _appears(folder / "out/x.json")
        assert answer["results"] == [{"msg_id": "m:1", "queued": False, "pending": 1}]
        await door.stop()


@pytest.mark.anyio
async def test_a_name_used_again_at_once_is_answered_again(
    state: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request is gone, and its task has not ended yet."""
    answer = drop_module.DropFiles.write_answer

    put_again = threading.Event()

    def slowly(
        self: drop_module.DropFiles, request: drop_module.DropRequest, content: bytes
    ) -> bool:
        done = answer(self, request, content)
        assert put_again.wait(10)
        return done

    monkeypatch.setattr(drop_module.DropFiles, "write_answer", slowly)
    async with opened(state) as operations:
        door = DropFolder(operations, folder)
        await door.start()
        for id in ("m:1", "m:2"):
            _put(folder, "x.json", _enqueue(mail(id, "b")))
            if id == "m:2":
                put_again.set()
            assert (await _appears(folder / "out/x.json"))["results"][0]["msg_id"] == id
            (folder / "out/x.json").unlink()
        await door.stop()


@pytest.mark.anyio
async def test_a_newer_request_of_the_same_name_is_not_removed_unread(
    state: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(state) as operations:
        door = DropFolder(operations, folder)
        answer = Operations.answer

        async def overtaken(self: Operations, op: Any) -> Any:
            reply = await answer(self, op)
            monkeypatch.undo()
            _put(folder, "x.json", _enqueue(mail("m:2", "b")))
            return reply

        monkeypatch.setattr(Operations, "answer", overtaken)
        await door.start()
        _put(folder, "x.json", _enqueue(mail("m:1", "b")))

        async def both_arrived() -> bool:
            return await _mail_ids(operations) == {"m:1", "m:2"}

        await async_wait_until(both_arrived)
        await door.stop()


@pytest.mark.anyio
async def test_only_so_many_files_are_in_work_at_once(
    state: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_now, most, go = 0, 0, asyncio.Event()

    async def slow(self: Operations, op: Any) -> Any:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        await go.wait()
        open_now -= 1
        raise StorageFailed("later")

    async with opened(state) as operations:
        door = DropFolder(operations, folder)
        await door.start()
        monkeypatch.setattr(Operations, "answer", slow)
        for n in range(40):
            _put(folder, f"x{n:02}.json", {"op": "peek", "mailbox": "b"})
        await async_wait_until(lambda: most == 16)
        await async_assert_stays_true(lambda: most == 16, 0.1)
        await door.stop()
        assert len(list((folder / "new").iterdir())) == 40


@pytest.mark.anyio
async def test_a_client_in_a_hurry_is_slowed_down_not_refused(state: Path, folder: Path) -> None:
    async with opened(state, limits__rate_per_sec=20, limits__burst=1) as operations:
        door = DropFolder(operations, folder)
        await door.start()
        start = time.monotonic()
        _put(folder, "x.json", [{"op": "peek", "mailbox": "b"}] * 5)
        answers = await _appears(folder / "out/x.json")
        assert [answer["op"] for answer in answers] == ["summaries"] * 5
        assert time.monotonic() - start > 0.15
        await door.stop()


@pytest.mark.anyio
async def test_answers_are_removed_after_a_day(
    state: Path, folder: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        door = DropFolder(operations, folder)
        await door.start()
        now = clock.now() / 1000
        for name, age in (("old.json", 90_000), ("young.json", 80_000)):
            (folder / "out" / name).write_text("{}")
            os.utime(folder / "out" / name, (now - age, now - age))
        assert await door.sweep_answers() == 1
        assert [path.name for path in (folder / "out").iterdir()] == ["young.json"]
        await door.stop()


@pytest.mark.anyio
async def test_a_folder_that_is_a_link_is_refused(
    state: Path, folder: Path, tmp_path: Path
) -> None:
    async with opened(state) as operations:
        folder.mkdir()
        (folder / "out").symlink_to(tmp_path)
        with pytest.raises(ConfigError, match="must be a folder"):
            await DropFolder(operations, folder).start()


def test_a_file_may_use_either_spelling_and_every_field(gateway: GatewayProcess, box: str) -> None:
    message = {**mail("m:1", box), "order": "none", "maxRetries": 0, "notBefore": 1.5}
    assert drop_and_wait(gateway, f"{box}-1", _enqueue(message))["results"][0]["queued"]
    taken = drop_and_wait(gateway, f"{box}-2", {"op": "dequeue", "mailbox": box, "waitSecs": 0})
    (found,) = taken["messages"]
    assert found["order"] == "none"
    nack = {"op": "nack", "mailbox": box, "receipts": [found["receipt"]], "retry": False}
    assert drop_and_wait(gateway, f"{box}-3", nack)["settled"] == 1
    unknown = drop_and_wait(gateway, f"{box}-4", {"op": "peek", "mailbox": box, "lmit": 1})
    assert "`lmit`" in unknown["error"]["message"]
