"""Fuzzing contracts: whatever schema and content say, the gateway goes on and judges them right.

Random schemas use each other's names and the names of keywords. Some of them take for ever.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from gatepost.errors import ContractMismatch, GatepostError
from gatepost.gateway.api.operations import Operations
from gatepost.room.records import SkillRef
from gatepost.tasks.capabilities.contract import ContractDocument, encode_contract, keep_contract
from gatepost.tasks.contract_checks import contract_pool
from gatepost.tasks.contract_checks.contract_process import ProcessLimits
from gatepost.tasks.contract_checks.contract_worker import compile_schema
from gatepost.tasks.policy import Operator
from gatepost.tasks.task_routing import CapabilityEntry
from gatepost.wire.tasks import NewTask
from tests.gateway.tools import opened
from tests.pause_watch import PauseWatch, WriterWatch
from tests.security.mutations import HOUR_SECS, HOUR_TIMEOUT_SECS, run_cases

pytestmark = pytest.mark.timeout(HOUR_TIMEOUT_SECS)

# Neither the event loop nor the writer works on one thing for so long.
_LONGEST_SECS = 0.1
_NAMES = ("a", "b", "$ref", "$defs", "properties", "items", "enum", "allOf", "pattern", "$id")
_PATTERNS = ("^a", "a+$", "(a|b)*c", "(", "^(a+)+$", "a{1,5}", "((a?){50}){50}", "(a{1,900}){1,90}")
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")


# -- the gateway in a thread of its own


class Watched:
    """A gateway in a thread, whose longest uninterrupted work is measured in processor time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._longest_turn = 0.0

    @classmethod
    @contextmanager
    def running(cls, folder: Path) -> "Iterator[Watched]":
        watched = cls(folder)
        watched._thread.start()
        assert watched._is_ready.wait(60)
        try:
            yield watched
        finally:
            watched._loop.call_soon_threadsafe(watched._ended.set)
            watched._thread.join(60)

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with opened(self._folder) as operations:
            self.operations = operations
            core = operations.core
            await core.commit(lambda tx: core.agents.register(tx, "bo"))
            self._writer = WriterWatch(core)
            looks = [asyncio.create_task(each()) for each in (self._watch_loop, self._writer.run)]
            self._is_ready.set()
            await self._ended.wait()
            for look in looks:
                look.cancel()
            await asyncio.gather(*looks, return_exceptions=True)

    async def _watch_loop(self) -> None:
        """A machine with other work may stop a thread: only processor time counts."""
        while True:
            began = time.thread_time()
            await asyncio.sleep(0.002)
            self._longest_turn = max(self._longest_turn, time.thread_time() - began)

    @property
    def longest(self) -> float:
        return max(self._longest_turn, self._writer.worst)

    def check(self, number: int, schema: Any, content: Any) -> bool:
        """Whether a task with this input is created under a contract with this schema."""
        work = self._check(number, schema, content)
        found: Future[bool] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return found.result(120)

    async def _check(self, number: int, schema: Any, content: Any) -> bool:
        operations: Operations = self.operations
        core = operations.core
        text = encode_contract(ContractDocument(input=schema))
        source = f"n{number % 5000}"
        digest = await core.commit(lambda tx: keep_contract(tx, text, source))
        entry = CapabilityEntry(
            id="c", version="1", owner_agent="bo", eligible=("bo",), contract=digest,
            delegation_skill=SkillRef(ref="ask", version="1"), executor_skill_version="1",
            default_eta_secs=1, is_active=True, policy_version=1,
        )  # fmt: skip
        core.tasks.parts.router.capabilities = {"c": entry}
        given = Raw(msgspec.json.encode(content))
        new = NewTask(f"al{number}", "x", required_capabilities=["c"], input=given)
        try:
            await operations.tasks.create_tasks(new, Operator())
        except ContractMismatch:
            return False
        finally:
            await core.commit(lambda tx: tx.execute("DELETE FROM contract"))
        return True


# -- random schemas and contents


def _content(random: Random, depth: int = 0) -> Any:
    kind = random.randrange(8 if depth < 3 else 5)
    if kind < 5:
        return random.choice((None, True, 0, 1, -7, 2.5, 10**30, "", "a", "abc", "a" * 50, "ü"))
    size = random.choice((0, 1, 2, 3, 3, 40 if depth == 0 else 4))
    if kind < 7:
        return {random.choice(_NAMES): _content(random, depth + 1) for _ in range(size)}
    return [_content(random, depth + 1) for _ in range(size)]


def _schema(random: Random, *, is_wild: bool, depth: int = 0) -> Any:
    """Without `is_wild`, a check takes a moment: such a schema refers to nothing."""
    if depth > 3 or random.random() < 0.1:
        return random.choice((True, {}, {"type": random.choice(_TYPES)}))

    def inner() -> Any:
        return _schema(random, is_wild=is_wild, depth=depth + 1)

    made: dict[str, Any] = {}
    for _ in range(random.randint(1, 3)):
        keyword, value = random.choice(_KEYWORDS)(random, inner)
        made[keyword] = value
    if is_wild and random.random() < 0.5:
        made["$ref"] = random.choice(("#", "#/$defs/a", "#/properties/a", "#/allOf/0", "#nothing"))
    if is_wild and depth == 0:
        made["$defs"] = {name: inner() for name in _NAMES[:3]}
        if random.random() < 0.2:
            made |= _multiply(random)
    return made


def _multiply(random: Random) -> dict[str, Any]:
    """A schema that may apply very often."""
    fan_out, levels = random.randint(2, 9), random.randint(1, 25)
    chain: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * fan_out} for n in range(levels)
    }
    return {"$defs": {**chain, f"d{levels}": {}}, "$ref": "#/$defs/d0"}


_KEYWORDS: tuple[Any, ...] = (
    lambda r, inner: ("type", r.choice(_TYPES)),
    lambda r, inner: ("type", list({r.choice(_TYPES) for _ in range(3)})),
    lambda r, inner: ("properties", {r.choice(_NAMES): inner() for _ in range(3)}),
    lambda r, inner: ("patternProperties", {r.choice(_PATTERNS[:3]): inner()}),
    lambda r, inner: ("dependentSchemas", {r.choice(_NAMES): inner()}),
    lambda r, inner: ("additionalProperties", inner()),
    lambda r, inner: ("required", [r.choice(_NAMES)]),
    lambda r, inner: ("items", inner()),
    lambda r, inner: ("prefixItems", [inner(), inner()]),
    lambda r, inner: ("contains", inner()),
    lambda r, inner: ("uniqueItems", True),
    lambda r, inner: ("minItems", r.randint(0, 5)),
    lambda r, inner: ("maxProperties", r.randint(0, 5)),
    lambda r, inner: (r.choice(("allOf", "anyOf", "oneOf")), [inner(), inner()]),
    lambda r, inner: ("not", inner()),
    lambda r, inner: ("enum", [_content(r, 3) for _ in range(3)]),
    lambda r, inner: ("const", _content(r, 3)),
    lambda r, inner: ("multipleOf", r.choice((1, 0.5, 3))),
    lambda r, inner: ("minimum", r.choice((0, -5, 2.5))),
    lambda r, inner: ("maxLength", r.randint(0, 10)),
    lambda r, inner: ("pattern", r.choice(_PATTERNS[:3])),
)


def _verdict(schema: Any, content: Any) -> bool:
    """What the validator says when it is asked directly."""
    try:
        return bool(compile_schema(schema).is_valid(content))
    except ValueError:
        return False


def test_no_contract_and_no_content_holds_up_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract_pool, "SLOW", ProcessLimits(512 * 1024**2, 0.3, 0.3))
    with Watched.running(tmp_path / "g") as watched, PauseWatch() as watch:

        def try_case(number: int, random: Random) -> None:
            is_wild = random.random() < 0.3
            schema = _schema(random, is_wild=is_wild)
            if is_wild and random.random() < 0.3 and isinstance(schema, dict):
                schema["pattern"] = random.choice(_PATTERNS)
            content = _content(random)
            try:
                fits = watched.check(number, schema, content)
            except GatepostError as error:
                raise AssertionError(f"{error.code}: {error.message}") from error
            if not is_wild:
                given = msgspec.json.decode(msgspec.json.encode(content))
                assert fits == _verdict(schema, given), (schema, content)
            assert max(watched.longest, watch.worst) < _LONGEST_SECS, (schema, content)

        count = run_cases("contracts", try_case, secs=HOUR_SECS)
    turn, pause = watched.longest * 1000, watch.worst * 1000
    print(f"{count} contracts, longest turn {turn:.0f} ms, longest pause {pause:.0f} ms")
