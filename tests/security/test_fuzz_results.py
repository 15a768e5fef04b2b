"""Fuzzing results: a session may leave anything in place of its result.

Whatever it is, the task ends, no token outlives its session, and the gateway goes on meanwhile.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from gatepost.gateway.api.operations import Operations
from gatepost.room.records import SkillRef
from gatepost.tasks.capabilities.contract import keep_contract
from gatepost.tasks.policy import Operator
from gatepost.tasks.service.session_manager import SessionManager
from gatepost.tasks.sessions import open_sessions
from gatepost.tasks.task_routing import CapabilityEntry
from gatepost.tasks.task_tokens import list_task_tokens
from gatepost.wire.tasks import NewTask
from tests.pause_watch import PauseWatch, WriterWatch
from tests.security.mutations import HOUR_SECS, HOUR_TIMEOUT_SECS, mutate_json, run_cases
from tests.tasks.service.brief_sessions import BriefRuntime, brief_sessions

pytestmark = pytest.mark.timeout(HOUR_TIMEOUT_SECS)

_MIB = 1024 * 1024
_ENDS = {"completed", "failed"}
_CODES = {None, "invalid_request", "payload_too_large", "contract_mismatch", "no_result"}
_CONTRACT = b'{"output":{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}}'
_VALID = [
    b'{"n": 1}',
    b'{"n": 1, "x": [1, 2, {"y": "\\u00e9"}], "z": null}',
    json.dumps({"n": 2, "x": ["a" * 50] * 40}).encode(),
    json.dumps({"n": 3, "x": "b" * 70_000}).encode(),
]


def draw_result(random: Random) -> bytes | Callable[[Path], object]:
    """Something in place of a result: mutated JSON mostly, else deep, large, or not a file."""
    match random.randrange(10):
        case 0:
            return _nest(random)
        case 1:
            return random.randbytes(random.choice((1, 100, 70_000)))
        case 2:
            return json.dumps("é\ud800" * random.choice((1, 20_000))).encode()
        case 3:
            return _draw_large(random)
        case 4:
            return random.choice(_ODD_FILES)
        case _:
            return mutate_json(random.choice(_VALID), random, _VALID)


def _nest(random: Random) -> bytes:
    depth = random.choice((255, 256, 257, 990, 1_000, 30_000, 32_760, 400_000, 2_000_000))
    first, last = random.choice(((b"[", b"]"), (b'{"n":', b"}"), (b'[{"n":', b"}]")))
    inner = random.choice((b"1", b"", b'"x"'))
    return first * depth + inner + last * random.choice((depth, depth, depth - 1, 0))


def _draw_large(random: Random) -> bytes:
    size = random.choice((65_536, 65_537, _MIB, 8 * _MIB))
    part = random.choice((b'"x",', b"[],", b'{"n":1},', b"1e5,", b"\xff,", b'"\\u0041",'))
    return b'{"n":1,"x":[' + part * (size // len(part)) + b"1]}"


def _make_sparse_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


_ODD_FILES: tuple[Callable[[Path], object], ...] = (
    Path.mkdir,
    os.mkfifo,
    _make_sparse_file,
    lambda path: path.symlink_to("/etc/passwd"),
    lambda path: path.symlink_to(path),
    lambda path: None,
    Path.touch,
)


@contextlib.asynccontextmanager
async def contracted_sessions(
    state: Path, runtime: BriefRuntime
) -> AsyncIterator[tuple[Operations, SessionManager]]:
    async with brief_sessions(state, runtime) as (operations, manager):
        core = operations.core
        entry = CapabilityEntry(
            id="brevity", version="1", owner_agent="brief", executor_skill_version="1",
            delegation_skill=SkillRef(ref="ask", version="1"), default_eta_secs=60,
            is_active=True, eligible=("brief",), policy_version=1,
            contract=await core.commit(lambda tx: keep_contract(tx, _CONTRACT)),
        )  # fmt: skip
        core.tasks.parts.router.capabilities = {entry.id: entry}
        yield operations, manager


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


def test_every_task_ends_and_no_token_outlives_its_session_whatever_its_result_is(
    tmp_path: Path, runner: asyncio.Runner
) -> None:
    runtime = BriefRuntime()
    gateway = contracted_sessions(tmp_path / "g", runtime)
    operations, manager = runner.run(gateway.__aenter__())
    writer = WriterWatch(operations.core)
    looking = runner.get_loop().create_task(writer.run())

    async def try_result(random: Random) -> None:
        runtime.result = draw_result(random)
        wanted = ["brevity"] if random.random() < 0.5 else []
        new = NewTask("al", "go", required_capabilities=wanted) if wanted else None
        (task,) = await operations.tasks.create_tasks(
            new or NewTask("al", "go", ["brief"]), Operator()
        )
        while not (ended := await operations.tasks.show_task(task.id, 60)).has_ended:
            pass
        assert ended.state in _ENDS and ended.error_code in _CODES, ended
        await operations.core.commit(lambda tx: None)
        assert await operations.core.read(list_task_tokens) == []
        assert await operations.core.read(open_sessions) == []
        assert manager.session_count == 0

    def try_case(number: int, random: Random) -> None:
        runner.run(try_result(random))
        assert max(watch.worst, writer.worst) < 0.1

    try:
        with PauseWatch() as watch:
            count = run_cases("results", try_case, 20, HOUR_SECS)
    finally:
        looking.cancel()
        runner.run(gateway.__aexit__(None, None, None))
    turn, pause = writer.worst * 1000, watch.worst * 1000
    print(
        f"{count} results, longest turn of the writer {turn:.0f} ms, longest pause {pause:.0f} ms"
    )


@pytest.mark.anyio
async def test_a_result_of_60_mib_keeps_nobody_waiting(tmp_path: Path) -> None:
    runtime = BriefRuntime(b'{"n":1,"x":[' + b'"x",' * (15 * _MIB) + b"1]}")
    async with contracted_sessions(tmp_path / "g", runtime) as (operations, _):
        new = NewTask("al", "go", required_capabilities=["brevity"])
        with PauseWatch() as watch:
            (task,) = await operations.tasks.create_tasks(new, Operator())
            while not (ended := await operations.tasks.show_task(task.id, 60)).has_ended:
                pass
        assert (ended.state, ended.error_code) == ("completed", None)
        print(f"longest pause {watch.worst * 1000:.0f} ms")
        # Threads that need no GIL count too if another process takes the processor meanwhile.
        assert watch.worst < 0.3
