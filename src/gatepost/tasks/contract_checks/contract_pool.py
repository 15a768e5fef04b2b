"""Checks of contents against contracts, in processes that can be killed.

A schema and a content can come from any member of the room, and a check of them can take any time
and memory. Two lanes separate senders of cheap checks from the others:

- The *quick* lane is for small contents. A check there has a fraction of a second. If it takes
  longer, its process is killed, and the check moves to the other lane. For a while, further checks
  of its source begin there.
- The *slow* lane is for these and for large contents. A check there has more time and memory. One
  that exceeds these limits too does not fit.

A source is a node that brought the contract together with the one whose content is checked. In each
lane one process at most works for a source, and the source that has used least is served next. One
process is left to sources whose last checks stayed within the limits. A source whose checks exceed
the limits repeatedly is refused for a while.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from gatepost.clock import Clock
from gatepost.errors import ContractUnchecked
from gatepost.tasks.capabilities.contract import RETRY_MS, ContractPart, ContractVerdict
from gatepost.tasks.contract_checks.contract_process import (
    BatchEnd,
    ContractCheck,
    ContractProcess,
    LoadContent,
    ProcessLimits,
    Source,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

QUICK_PROCESSES = SLOW_PROCESSES = 2
QUICK = ProcessLimits(512 * 1024**2, 0.25, 0.25)
SLOW = ProcessLimits(2 * 1024**3, 2.0, 10.0, nice=10)
_BATCH = 64
_MAX_OF_SOURCE, _MAX_BYTES_OF_SOURCE = 2048, 8 * 1024**2
_MAX_WAITING, _MAX_WAITING_BYTES = 8192, 64 * 1024**2
_WAIT_SECS, _LARGE_WAIT_SECS = 30.0, 180.0
# Checks of a slow source or contract go to the slow lane for this long.
_SUSPECT_SECS = 60.0
_MAX_TRIES = 2
_OFFENCES, _OFFENCE_SECS, _REFUSED_SECS = 3, 600.0, 60.0
# The half-life of a source's usage.
_HALF_LIFE_SECS = 10.0
_MAX_REMEMBERED = 4096
_MAX_TEXTS = 64


class ContractPool:
    """`load_text` returns the text of a contract, by its digest.

    `report_offence` is called with a source that is refused for a while, and the reason.
    """

    def __init__(
        self,
        clock: Clock,
        load_text: Callable[[str], Awaitable[bytes | None]],
        report_offence: Callable[[Source, str], None],
    ) -> None:
        self._clock = clock
        self._load_text = load_text
        self._report_offence = report_offence
        self._texts: dict[str, bytes] = {}
        self._quick = _Lane(QUICK, QUICK_PROCESSES, _BATCH)
        self._slow = _Lane(SLOW, SLOW_PROCESSES, 1)
        self._suspects: dict[Source, float] = {}
        self._offences: dict[Source, list[float]] = {}
        self._refused: dict[Source, float] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    async def compile(self, contract: str, body: bytes) -> ContractVerdict:
        """Compile a contract of the operator, to find out whether it can be used."""
        return await self._await_verdict(self._build_check(("", ""), contract, body, None, b""))

    async def check(
        self,
        source: Source,
        contract: str,
        part: ContractPart,
        content: bytes | LoadContent,
    ) -> ContractVerdict:
        """ContractUnchecked if too many other checks wait."""
        text = self._texts.get(contract) or await self._remember_text(contract)
        return await self._await_verdict(self._build_check(source, contract, text, part, content))

    async def _remember_text(self, contract: str) -> bytes:
        text = await self._load_text(contract)
        if text is None:
            raise ContractUnchecked("its contract was forgotten meanwhile", retry_after=1.0)
        if len(self._texts) >= _MAX_TEXTS:
            self._texts.clear()
        self._texts[contract] = text
        return text

    async def stop(self) -> None:
        self._is_stopped = True
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        for lane in (self._quick, self._slow):
            await lane.stop()

    def process_ids(self) -> list[int]:
        return [each.pid for lane in (self._quick, self._slow) for each in lane.processes]

    # -- one check

    def _build_check(
        self,
        source: Source,
        contract: str,
        body: bytes,
        part: ContractPart | None,
        content: bytes | LoadContent,
    ) -> ContractCheck:
        verdict = asyncio.get_running_loop().create_future()
        return ContractCheck(source, contract, body, part, content, verdict)

    async def _await_verdict(self, check: ContractCheck) -> ContractVerdict:
        if self._is_refused(check.source):
            return self._exceeded(check, "is not checked: too many before it took too long")
        lane = self._slow if check.is_large or self._is_suspect(check.source) else self._quick
        lane.add(check)
        self._dispatch(lane)
        try:
            async with asyncio.timeout(_LARGE_WAIT_SECS if check.is_large else _WAIT_SECS):
                return await check.verdict
        except TimeoutError:
            raise ContractUnchecked(
                "too many contents wait to be checked against their contracts; try again later",
                retry_after=1.0,
            ) from None

    def _exceeded(self, check: ContractCheck, problem: str) -> ContractVerdict:
        name = {"input": "input: ", "output": "result: "}.get(check.part or "", "")
        return ContractVerdict(f"{name}{problem}", self._clock.now() + RETRY_MS)

    # -- processes

    def _dispatch(self, lane: "_Lane") -> None:
        """Start waiting batches of checks while the lane has free places."""
        while not self._is_stopped and (checks := lane.take_batch()):
            task = asyncio.create_task(self._serve(lane, checks))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve(self, lane: "_Lane", checks: list[ContractCheck]) -> None:
        began = time.monotonic()
        process: ContractProcess | None = None
        try:
            process = await lane.take_process()
            end = await process.run_batch(checks)
            if end.death is None:
                lane.keep_process(process)
                process = None
            lane.put_back([*end.deferred, *self._settle_death(lane, end)])
        except Exception as error:
            log.warning("contents could not be checked against their contracts: %s", error)
            _fail_checks(checks, ContractUnchecked(f"there is no process to check it: {error}"))
        finally:
            if process is not None:
                await lane.end_process(process)
            secs = time.monotonic() - began
            lane.leave_place(checks[0].source, secs, is_known=process is None)
            self._dispatch(lane)

    def _settle_death(self, lane: "_Lane", end: BatchEnd) -> list[ContractCheck]:
        """Handle the check that killed its process; returns the checks to send again."""
        if not end.death:
            return end.unanswered  # It made way for a fresh process, or did not die.
        check, *others = end.unanswered
        check.tries += 1
        if lane is self._quick:
            _remember(self._suspects, check.source, time.monotonic() + _SUSPECT_SECS)
            self._slow.add(check, even_if_full=True)
            self._dispatch(self._slow)
        elif end.is_killed and check.tries <= _MAX_TRIES:
            return end.unanswered  # By the operator, or because the machine had no memory left.
        else:
            self._note_offence(check.source, end.death)
            if not check.verdict.done():
                check.verdict.set_result(self._exceeded(check, end.death))
        return others

    # -- sources that exceed the limits

    def _is_suspect(self, source: Source) -> bool:
        return self._suspects.get(source, 0.0) > time.monotonic()

    def _is_refused(self, source: Source) -> bool:
        return self._refused.get(source, 0.0) > time.monotonic()

    def _note_offence(self, source: Source, problem: str) -> None:
        """Refuse the checks of a source for a while, if too many of them exceeded the limits."""
        if source == ("", ""):
            return  # The operator publishes a contract.
        now = time.monotonic()
        recent = [at for at in self._offences.get(source, ()) if at > now - _OFFENCE_SECS] + [now]
        if len(recent) < _OFFENCES:
            _remember(self._offences, source, recent)
            return
        self._offences.pop(source, None)
        _remember(self._refused, source, now + _REFUSED_SECS)
        self._report_offence(source, problem)


class _Lane:
    """The waiting checks, by source, and the processes that run them."""

    def __init__(self, limits: ProcessLimits, places: int, batch: int) -> None:
        self._limits = limits
        self._places = places
        self._batch = batch
        self._waiting: dict[Source, deque[ContractCheck]] = {}
        self._count = self._bytes = 0
        self._bytes_of: Counter[Source] = Counter()
        self._busy: set[Source] = set()
        # Source → seconds it used, and when that was noted.
        self._used: dict[Source, tuple[float, float]] = {}
        # The sources whose last checks stayed within their limits.
        self._known: dict[Source, bool] = {}
        self._idle: list[ContractProcess] = []
        self.processes: set[ContractProcess] = set()

    def add(self, check: ContractCheck, *, even_if_full: bool = False) -> None:
        """ContractUnchecked if too many wait, of this source or of all."""
        waiting = self._waiting.get(check.source, ())
        is_full = (
            len(waiting) >= _MAX_OF_SOURCE
            or self._bytes_of[check.source] + check.size > _MAX_BYTES_OF_SOURCE
            or self._count >= _MAX_WAITING
            or self._bytes + check.size > _MAX_WAITING_BYTES
        )
        if is_full and not even_if_full:
            raise ContractUnchecked(
                f"{len(waiting)} contents of the same source wait to be checked; try again later",
                retry_after=1.0,
            )
        self._waiting.setdefault(check.source, deque()).append(check)
        self._count_waiting(check.source, 1, check.size)

    def put_back(self, checks: list[ContractCheck]) -> None:
        for check in reversed(checks):
            self._waiting.setdefault(check.source, deque()).appendleft(check)
            self._count_waiting(check.source, 1, check.size)

    def _count_waiting(self, source: Source, more: int, size: int) -> None:
        self._count += more
        self._bytes += size
        self._bytes_of[source] += size

    def take_batch(self) -> list[ContractCheck]:
        """The next checks, of the source that has used least; empty if no process may start."""
        while sources := self._find_sources():
            source = min(sources, key=self._use_of)
            checks = self._take(source)
            if checks:
                self._busy.add(source)
                return checks
        return []

    def _find_sources(self) -> set[Source]:
        """The sources to serve now. New sources leave one process to known ones."""
        places = self._places - len(self._busy)
        if places <= 0:
            return set()
        sources = self._waiting.keys() - self._busy
        is_last_for_known = len(self._busy - self._known.keys()) >= self._places - 1
        return sources & self._known.keys() if is_last_for_known else sources

    def _take(self, source: Source) -> list[ContractCheck]:
        waiting = self._waiting[source]
        taken = [waiting.popleft() for _ in range(min(self._batch, len(waiting)))]
        self._count_waiting(source, -len(taken), -sum(check.size for check in taken))
        if not waiting:
            del self._waiting[source], self._bytes_of[source]
        # Checks without a waiting caller are dropped.
        return [check for check in taken if not check.verdict.done()]

    def leave_place(self, source: Source, secs: float, *, is_known: bool) -> None:
        self._busy.discard(source)
        if is_known:
            _remember(self._known, source, True)
        else:
            self._known.pop(source, None)
        _remember(self._used, source, (self._use_of(source) + secs, time.monotonic()))

    def _use_of(self, source: Source) -> float:
        secs, at = self._used.get(source, (0.0, 0.0))
        return secs * float(0.5 ** ((time.monotonic() - at) / _HALF_LIFE_SECS))

    async def take_process(self) -> ContractProcess:
        if self._idle:
            return self._idle.pop()
        process = await ContractProcess.start(self._limits)
        self.processes.add(process)
        return process

    def keep_process(self, process: ContractProcess) -> None:
        self._idle.append(process)

    async def end_process(self, process: ContractProcess) -> None:
        self.processes.discard(process)
        await process.kill()

    async def stop(self) -> None:
        for checks in self._waiting.values():
            _fail_checks(checks, ContractUnchecked("the gateway stops"))
        self._waiting.clear()
        self._idle.clear()
        for process in list(self.processes):
            await self.end_process(process)


def _remember(table: dict[Source, T], source: Source, value: T) -> None:
    """Remember a source, and forget the oldest one beyond the limit."""
    table.pop(source, None)
    table[source] = value
    while len(table) > _MAX_REMEMBERED:
        del table[next(iter(table))]


def _fail_checks(checks: Iterable[ContractCheck], error: ContractUnchecked) -> None:
    for check in checks:
        if not check.verdict.done():
            check.verdict.set_exception(error)
