"""Checks that take too long, too much memory, or break their process harm their source alone."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from gatepost.errors import ContractUnchecked
from gatepost.tasks.capabilities.contract import ContractDocument, ContractVerdict, encode_contract
from gatepost.tasks.contract_checks import contract_pool
from gatepost.tasks.contract_checks.contract_pool import ContractPool
from gatepost.tasks.contract_checks.contract_process import (
    BatchEnd,
    ContractCheck,
    ContractProcess,
    ProcessLimits,
)
from gatepost.testing import ManualClock
from tests.waiting import async_wait_until

pytestmark = pytest.mark.anyio

HONEST, HOSTILE = ("ann", "bob"), ("mallory", "mallory")


BOMB: dict[str, Any] = {
    "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    | {"d40": {"type": "integer"}},
    "$ref": "#/$defs/d0",
}
CONTRACTS: dict[str, dict[str, Any]] = {
    "number": {"type": "integer"},
    "bomb": BOMB,
    "expressions": {"anyOf": [{"pattern": f"(a{{1,{n}}}){{1,100}}"} for n in range(100, 900)]},
    "nested": {"not": {"$ref": "#"}},
}


async def load_text(digest: str) -> bytes:
    return encode_contract(ContractDocument(input=CONTRACTS[digest]))


class Pool(ContractPool):
    def __init__(self) -> None:
        self.offences: list[tuple[str, str]] = []
        super().__init__(
            ManualClock(1), load_text, lambda source, why: self.offences.append(source)
        )

    async def ask(self, source: tuple[str, str], digest: str, content: bytes) -> str:
        return (await self.check(source, digest, "input", content)).problem


@pytest.fixture
async def pool(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pool]:
    monkeypatch.setattr(contract_pool, "QUICK", ProcessLimits(512 * 1024**2, 0.05, 0.05))
    monkeypatch.setattr(contract_pool, "SLOW", ProcessLimits(512 * 1024**2, 0.1, 2.0))
    pool = Pool()
    try:
        yield pool
    finally:
        await pool.stop()
        assert not pool.process_ids()


async def test_a_content_fits_or_not(pool: Pool) -> None:
    assert await pool.ask(HONEST, "number", b"1") == ""
    assert await pool.ask(HONEST, "number", b'"x"') == 'input: "x" is not of type "integer"'
    assert len(pool.process_ids()) == 1, "a process serves many checks"


async def test_many_checks_of_one_source_are_one_batch(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    run_batch = ContractProcess.run_batch

    async def count(self: ContractProcess, checks: Sequence[ContractCheck]) -> BatchEnd:
        sizes.append(len(checks))
        return await run_batch(self, checks)

    monkeypatch.setattr(ContractProcess, "run_batch", count)
    problems = await asyncio.gather(*(pool.ask(HONEST, "number", b"1") for _ in range(40)))
    assert problems == [""] * 40
    assert len(sizes) <= 2 and sum(sizes) == 40


@pytest.mark.parametrize("name", ["bomb", "expressions", "nested"])
async def test_a_check_beyond_its_limits_does_not_fit(pool: Pool, name: str) -> None:
    content = b"[" * 900 + b"]" * 900 if name == "nested" else b'"aaaa"'
    problem = await pool.ask(HOSTILE, name, content)
    assert problem.startswith("input: "), problem
    assert await pool.ask(HONEST, "number", b"1") == ""


async def test_others_wait_a_fraction_of_a_second_while_slow_checks_run(pool: Pool) -> None:
    assert await pool.ask(HONEST, "number", b"1") == ""
    slow = [asyncio.create_task(pool.ask(("m", f"m{n}"), "bomb", b"%d" % n)) for n in range(6)]
    waits = []
    while not all(task.done() for task in slow):
        began = time.monotonic()
        assert await pool.ask(HONEST, "number", b"1") == ""
        waits.append(time.monotonic() - began)
        await asyncio.sleep(0.01)
    assert len(waits) > 10 and sorted(waits)[len(waits) * 9 // 10] < 1.0
    assert all("too much time" in problem for problem in await asyncio.gather(*slow))


async def test_a_verdict_about_an_unfinished_check_does_not_last(pool: Pool) -> None:
    verdict = await pool.check(HOSTILE, "bomb", "input", b"1")
    assert verdict == ContractVerdict("input: takes too much time to check", verdict.until)
    assert verdict.until is not None
    assert (await pool.check(HONEST, "number", "input", b"1")).until is None


async def test_a_source_that_is_slow_again_and_again_is_refused_and_named(pool: Pool) -> None:
    for n in range(3):
        assert "too much time" in await pool.ask(HOSTILE, "bomb", b"%d" % n)
    assert pool.offences == [HOSTILE]
    began = time.monotonic()
    assert "is not checked" in await pool.ask(HOSTILE, "bomb", b"9")
    assert time.monotonic() - began < 0.2
    assert await pool.ask(("mallory", "bob"), "number", b"1") == "", (
        "another sends under its contract"
    )
    assert await pool.ask(HONEST, "number", b"1") == ""


async def test_a_process_that_is_killed_is_replaced(pool: Pool) -> None:
    assert await pool.ask(HONEST, "number", b"1") == ""
    (pid,) = pool.process_ids()
    os.kill(pid, signal.SIGSTOP)
    check = asyncio.create_task(pool.ask(HONEST, "number", b"2"))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    assert await check == ""
    assert pid not in pool.process_ids() and not pool.offences


async def test_a_process_that_hangs_is_killed(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatepost.tasks.contract_checks.contract_process._WALL_PER_CPU_SEC", 0.5)
    assert await pool.ask(HONEST, "number", b"1") == ""
    (pid,) = pool.process_ids()
    os.kill(pid, signal.SIGSTOP)
    assert await pool.ask(HONEST, "number", b"2") == ""
    assert not psutil.pid_exists(pid)


async def test_a_large_content_is_loaded_when_its_turn_comes(pool: Pool) -> None:
    async def load() -> bytes:
        return b"[" + b"1," * 2_000_000 + b"1]"

    CONTRACTS["list"] = {"type": "array", "items": {"type": "integer"}}
    assert (await pool.check(HONEST, "list", "input", load)).problem == ""


async def test_what_cannot_be_loaded_fails_its_check_alone(pool: Pool) -> None:
    async def fail() -> bytes:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await pool.check(HONEST, "number", "input", fail)
    assert await pool.ask(HONEST, "number", b"1") == ""


async def test_what_waits_of_one_source_is_bounded(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract_pool, "_MAX_OF_SOURCE", 5)
    checks = [asyncio.create_task(pool.ask(HOSTILE, "bomb", b"%d" % n)) for n in range(90)]
    await asyncio.sleep(0)
    assert await pool.ask(HONEST, "number", b"1") == ""
    ends = await asyncio.gather(*checks, return_exceptions=True)
    assert any(isinstance(end, ContractUnchecked) for end in ends)


async def test_a_wait_is_bounded(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract_pool, "_WAIT_SECS", 0.1)
    with pytest.raises(ContractUnchecked, match="try again"):
        await pool.ask(HOSTILE, "bomb", b"1")


async def test_a_contract_is_compiled_before_it_is_published(pool: Pool) -> None:
    good = encode_contract(ContractDocument(input={"type": "integer"}))
    assert (await pool.compile("good", good)).problem == ""
    bad = encode_contract(ContractDocument(input={"type": "bird"}))
    assert "the input schema cannot be used" in (await pool.compile("bad", bad)).problem


async def test_processes_have_nothing_of_the_gateway(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEPOST_SECRET", "x" * 20)
    with open("/dev/null") as file:  # noqa: PTH123
        os.set_inheritable(file.fileno(), True)
        assert await pool.ask(HONEST, "number", b"1") == ""
    (pid,) = pool.process_ids()
    process = psutil.Process(pid)
    assert set(process.environ()) <= {"PATH", "LC_CTYPE"}
    assert process.num_fds() <= 4
    assert process.cwd() == "/"


async def test_processes_end_with_the_gateway(pool: Pool) -> None:
    assert await pool.ask(HONEST, "number", b"1") == ""
    pids = pool.process_ids()
    await pool.stop()
    await async_wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


async def test_a_process_that_has_grown_is_replaced_without_blame(pool: Pool) -> None:
    async def load() -> bytes:
        return b'["' + b"x" * 150_000_000 + b'", 1]'

    CONTRACTS["text"] = {"items": {"type": "string"}}
    assert "result" not in (await pool.check(HONEST, "text", "input", load)).problem
    assert (await pool.check(HONEST, "text", "input", load)).problem
    assert not pool.offences
