"""Dead letters are chosen with SQL, and their own gateways send them again, once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from gatepost.archive import manifest
from gatepost.archive.archive_store import ArchiveStore
from gatepost.clock import SystemClock
from gatepost.errors import InvalidRequest
from gatepost.events import new_event_id, parse_event_id
from gatepost.pipeline.dead_letter_replay import (
    ReplayLetter,
    choose_letters,
    replay_commands,
    replay_letters,
)
from gatepost.pipeline.gateway_api import GatewayApi
from gatepost.pipeline.jobs.pipeline import update_tables
from gatepost.pipeline.tables.schemas import DELIVERIES
from gatepost.pipeline.transport import LocalTransport
from gatepost.testing import GatewayProcess
from tests.gateway.admin.test_undelivered_api import bury
from tests.pipeline.table_rows import write_known_rows
from tests.waiting import wait_until

IDS = [new_event_id(SystemClock()) for _ in range(6)]
GIVEN_UP = {"state": "dead_letter", "amended": False, "reason": "no_route"}
NACKED = {"state": "processed", "amended": False, "outcome": "dead_letter"}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One of each sort, from node a to node b."""
    sorts: list[dict[str, object]] = [
        GIVEN_UP,
        NACKED,
        GIVEN_UP | {"amended": True, "outcome": "ok"},
        GIVEN_UP | {"amended": True, "outcome": "dead_letter"},
        {"state": "processed", "amended": False, "outcome": "ok"},
        GIVEN_UP | {"to_agent": "carol"},
    ]
    base = {"hour": 1, "node": "a", "kind": "message", "to_node": "b", "to_agent": "bob"}
    rows = [
        base | {"event_id": parse_event_id(id), "sent_at": at} | sort
        for at, (id, sort) in enumerate(zip(IDS, sorts, strict=True))
    ]
    root = tmp_path_factory.mktemp("replay")
    write_known_rows(root, DELIVERIES, rows)
    return str(root)


def test_each_lies_where_it_died(spark: SparkSession, tables: str) -> None:
    chosen = choose_letters(spark, tables, "to_agent = 'bob'", 10)
    assert [(letter.event_id, letter.node, letter.mailbox) for letter in chosen.letters] == [
        (IDS[0], "a", None),
        (IDS[1], "b", "bob"),
        (IDS[3], "b", "bob"),
    ]
    assert (chosen.answered, chosen.more) == (1, False)


def test_a_limit_takes_the_oldest_and_says_that_there_are_more(
    spark: SparkSession, tables: str
) -> None:
    chosen = choose_letters(spark, tables, "true", 2)
    assert [letter.event_id for letter in chosen.letters] == IDS[:2]
    assert chosen.more


@pytest.mark.parametrize("where", ["no_such_column = 1", "to_agent ==== 'bob'", "1; drop table x"])
def test_what_is_no_condition_is_refused(spark: SparkSession, tables: str, where: str) -> None:
    with pytest.raises(InvalidRequest, match="no condition over deliveries"):
        choose_letters(spark, tables, where, 10)


def test_other_gateways_get_commands() -> None:
    letters = [ReplayLetter(f"id{n}", "b", None if n else "bob", "bob", None) for n in range(52)]
    (there,) = replay_commands(letters)
    assert (there.node, there.letters) == ("b", 52)
    dlq, first, second = there.commands
    assert dlq == "gatepost dlq replay bob id0"
    assert first.startswith("gatepost undelivered replay id1 id2 ")
    assert second == "gatepost undelivered replay id51"


# -- with a real gateway


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    settings = {"archive__uri": folder / "archive", "archive__max_age_secs": 0.2}
    with GatewayProcess(folder / "state", mailbox__max_retries=0, **settings) as process:
        yield process


@pytest.fixture
def http(process: GatewayProcess) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {process.token}"}
    with httpx.Client(base_url=process.url, headers=headers) as client:
        yield client


@pytest.fixture
def gateway(process: GatewayProcess) -> Iterator[GatewayApi]:
    with GatewayApi(process.url, process.token) as gateway:
        yield gateway


def _dead(http: httpx.Client, agent: str, count: int) -> list[str]:
    """So many dead letters in the agent's mailbox."""
    http.put(f"/v1/agents/{agent}")
    message = {"from_agent": "al", "to_agent": agent, "payload": "hi"}
    ids = [http.post("/v1/messages", json=message).json()["event_id"] for _ in range(count)]
    for _ in ids:
        (mail,) = _take(http, agent)
        body = {"receipts": [mail["receipt"]], "reason": "broken"}
        http.post(f"/v1/mailboxes/{agent}/nack", json=body).raise_for_status()
    return ids


def _take(http: httpx.Client, agent: str) -> list[Any]:
    answer = http.post(f"/v1/mailboxes/{agent}/dequeue", json={"limit": 1})
    found: list[Any] = answer.json()["messages"]
    return found


def _states(outcomes: list[Any]) -> list[str]:
    return [outcome.state for outcome in outcomes]


def _archived_through(archive: Path, node: str) -> int:
    listed = manifest.read_manifest(ArchiveStore.open(str(archive)), node)
    return 0 if listed is None else listed.archived_through


def test_from_a_gateway_through_the_archive_and_back(
    spark: SparkSession, process: GatewayProcess, http: httpx.Client, gateway: GatewayApi,
    tmp_path: Path,
) -> None:  # fmt: skip
    (id,) = _dead(http, "dora", 1)
    archive = process.state_dir.parent / "archive"
    node, written = gateway.fetch_node_id(), process.get("/v1/status")["outbox_seq"]
    wait_until(lambda: _archived_through(archive, node) >= written, 20)
    update_tables(LocalTransport(), str(archive), str(tmp_path))
    chosen = choose_letters(spark, str(tmp_path), "to_agent = 'dora'", 10)
    (letter,) = chosen.letters
    assert letter == ReplayLetter(id, node, "dora", "dora", letter.reason)
    (done,) = replay_letters(gateway, chosen.letters)
    assert (done.event_id, done.state) == (id, "replayed")
    (mail,) = _take(http, "dora")
    assert (mail["msg_id"], mail["payload"]) == (done.detail, "hi")


def test_a_mailboxs_dead_letters_are_replayed_once(http: httpx.Client, gateway: GatewayApi) -> None:
    first, second = _dead(http, "bob", 2)
    gone = new_event_id(SystemClock())
    letters = [ReplayLetter(id, "here", "bob", "bob", None) for id in (first, gone)]
    assert _states(replay_letters(gateway, letters)) == ["replayed", "gone"]
    letters = [ReplayLetter(id, "here", "bob", "bob", None) for id in (first, second)]
    again = replay_letters(gateway, letters)
    assert _states(again) == ["already_replayed", "replayed"]
    assert _states(replay_letters(gateway, letters)) == ["already_replayed"] * 2


def test_what_a_sender_gave_up_is_replayed_once_and_only_if_that_is_safe(
    process: GatewayProcess, http: httpx.Client, gateway: GatewayApi
) -> None:
    http.put("/v1/agents/carol")
    safe = bury(process, "carol")
    unsafe = bury(process, "carol", verdict=None)
    letters = [ReplayLetter(id, "here", None, "carol", None) for id in (safe, unsafe)]
    done = replay_letters(gateway, letters)
    assert _states(done) == ["replayed", "refused"]
    assert "force" in done[1].detail
    assert _states(replay_letters(gateway, letters)) == ["already_replayed", "refused"]
    assert [mail["msg_id"] for mail in _take(http, "carol")] == [done[0].detail]


def test_the_pace_is_kept(http: httpx.Client, gateway: GatewayApi) -> None:
    letters = [ReplayLetter(id, "here", "eve", "eve", None) for id in _dead(http, "eve", 4)]
    pauses: list[float] = []
    counted: list[int] = []
    done = replay_letters(gateway, letters, rate=10, done=counted.append, sleep=pauses.append)
    assert _states(done) == ["replayed"] * 4
    assert (pauses, counted) == ([0.2], [2, 2])
