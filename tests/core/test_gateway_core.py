"""One gateway without its network: its identity, and the three ways to its storage."""

import asyncio
import re
import threading
from functools import partial
from pathlib import Path

import apsw
import pytest

from gatepost.core.gateway_core import Core
from gatepost.delivery.abuse import AbuseKind
from gatepost.delivery.decisions import BlobWanted
from gatepost.errors import ConfigError, Forbidden, JournalLocked, Unavailable
from gatepost.journal import Tx
from gatepost.testing import ManualClock
from tests.gateway.tools import dump, opened, settings
from tests.waiting import async_wait_until

pytestmark = pytest.mark.anyio

_DOCUMENT = Path(__file__).parents[2] / "docs" / "architecture.md"


def _facts(core: Core) -> dict[str, str]:
    return dict(dump(core)["fact"])


def _add_fact(tx: Tx, name: str = "test") -> None:
    tx.execute("INSERT INTO fact (name, value) VALUES (?, 'x')", (name,))


def _count_facts(tx: Tx) -> int:
    ((count,),) = tx.fetch_all("SELECT count(*) FROM fact")
    return int(count)


# -- commit, submit, read


async def test_a_commit_returns_its_value_once_it_is_on_disk(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        core = operations.core

        def add_and_count(tx: Tx) -> int:
            _add_fact(tx)
            return _count_facts(tx)

        count = await core.commit(add_and_count)
        assert count == len(_facts(core)) == await core.read(_count_facts)


async def test_an_operation_that_fails_is_undone_alone(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock) as operations:
        core = operations.core

        def add_and_fail(tx: Tx) -> None:
            _add_fact(tx, "failed")
            raise Forbidden("no")

        failed, kept = await asyncio.gather(
            core.commit(add_and_fail), core.commit(_add_fact), return_exceptions=True
        )
        assert isinstance(failed, Forbidden) and kept is None
        assert "test" in _facts(core) and "failed" not in _facts(core)


async def test_a_submitted_operation_runs_before_later_commits_and_logs_its_failure(
    state: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(state, clock) as operations:
        core = operations.core

        def fail(tx: Tx) -> None:
            raise Forbidden("not allowed")

        core.submit(_add_fact)
        core.submit(fail)
        await core.commit(lambda tx: None)
        assert "test" in _facts(core)
    assert "an operation without a caller failed: not allowed" in caplog.text


async def test_a_query_sees_one_snapshot_while_others_commit(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        core, counted, changed = operations.core, threading.Event(), threading.Event()

        def count_twice(tx: Tx) -> tuple[int, int]:
            before = _count_facts(tx)
            counted.set()
            assert changed.wait(10)
            return before, _count_facts(tx)

        counting = asyncio.ensure_future(core.read(count_twice))
        await asyncio.to_thread(counted.wait)
        await core.commit(_add_fact)
        changed.set()
        before, after = await counting
        assert before == after == await core.read(_count_facts) - 1


async def test_a_query_cannot_write(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock) as operations:
        with pytest.raises(apsw.ReadOnlyError):
            await operations.core.read(_add_fact)


async def test_a_blob_is_asked_for_on_the_event_loop_once_that_is_kept(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        core, asked = operations.core, asyncio.Event()
        wanted: list[tuple[str, str, threading.Thread]] = []

        def want_blob(digest: str, source: str) -> None:
            wanted.append((digest, source, threading.current_thread()))
            asked.set()

        core.on_blob_wanted = want_blob
        decision = BlobWanted("digest", "bob")
        await core.commit(lambda tx: core.coordinator.apply_decisions(tx, [decision]))
        await asyncio.wait_for(asked.wait(), 10)
        assert wanted == [("digest", "bob", threading.current_thread())]


async def test_participants_of_a_commit_group_are_in_the_order_of_the_document(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        participants = operations.core.writer._participants
        names = [type(each).__name__ for each in participants]
    listed = re.findall(r"^\d\. `(\w+)` \(`[\w/]+\.py`\)", _DOCUMENT.read_text(), re.MULTILINE)
    core = ["Dispatcher", "DeliveryCoordinator", "Outbox", "AbuseLog"]
    assert names == listed == [*core, "TaskChanges", "MailWatch", "CommitObserver"]


async def test_abuse_reported_from_the_event_loop_is_an_incident_soon(
    state: Path, clock: ManualClock
) -> None:
    query = "SELECT subject FROM incident WHERE class = 'abuse'"
    async with opened(state, clock) as operations:
        core = operations.core
        core.abuse.report_abuse("mallory", AbuseKind.QUOTA_EXCEEDED, "too much")
        rows = await async_wait_until(lambda: core.read(lambda tx: tx.fetch_all(query)))
        assert rows[0][0].startswith("mallory/quota_exceeded@")


# -- the identity of the state directory


async def test_a_state_directory_keeps_its_node_and_its_incarnation(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock, node__id="ann") as operations:
        first = operations.core.node
        facts = _facts(operations.core)
    assert (facts["node_id"], facts["incarnation"]) == ("ann", first.incarnation)
    async with opened(state, clock, node__id="ann") as operations:
        again = operations.core.node
        incarnations = dump(operations.core)["incarnation"]
    assert (again.id, again.incarnation) == (first.id, first.incarnation)
    assert again.key.public == first.key.public
    assert [row[:2] for row in incarnations] == [(first.incarnation, 1)]


async def test_a_state_directory_of_another_node_is_refused_and_let_go(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock, node__id="ann"):
        pass
    with pytest.raises(ConfigError, match="belongs to node 'ann', not 'bob'"):
        Core(settings(state, node__id="bob"), clock)
    async with opened(state, clock, node__id="ann") as operations:
        assert operations.core.node.id == "ann"


async def test_a_state_directory_is_open_once(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock):
        with pytest.raises(JournalLocked):
            Core(settings(state), clock)


# -- stop


async def test_stopping_commits_the_operations_that_wait_and_refuses_later_ones(
    state: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(state, clock) as operations:
        core = operations.core
        adds = [partial(_add_fact, name=f"f{number}") for number in range(20)]
        waiting = [asyncio.ensure_future(core.commit(add)) for add in adds]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert {add.keywords["name"] for add in adds} <= set(_facts(core))
    with pytest.raises(Unavailable, match="stopping"):
        await core.commit(_add_fact)
    core.submit(_add_fact)
    assert "the gateway is stopping" in caplog.text
