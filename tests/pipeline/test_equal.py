"""The tables equal a reckoning in plain Python, and hold what was planted and nothing else."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatepost.pipeline.synth import SynthOptions
from tests.pipeline import reckoning
from tests.pipeline.worlds import PLANTED, World

# Whole runs of Spark, on machines that do other things too.
pytestmark = pytest.mark.timeout(600)

Rows = list[dict[str, Any]]
SLO_KEY = ("window_start", "kind", "node", "capability_id")
TRAFFIC_KEY = ("hour", "node", "from_agent", "to_node", "to_agent")
ETA_KEY = ("capability_id", "capability_version")


class Reckoned:
    """Everything once more, from the files of the archive."""

    def __init__(self, archive: str) -> None:
        events = reckoning.events(archive)
        self.deliveries = reckoning.deliveries(events)
        self.tasks = reckoning.tasks(events)
        self.known = [row for row in self.deliveries.values() if row["kind"] is not None]

    def slo(self) -> dict[tuple[Any, ...], Any]:
        def key(row: dict[str, Any]) -> tuple[Any, ...]:
            task = self.tasks.get((row["node"], row["event_id"]))
            capability = task["first"]["capability_id"] if task else None
            return (reckoning.window_of(row), row["kind"], row["node"], capability)

        return _grouped(self.known, key, reckoning.levels)

    def traffic(self) -> dict[tuple[Any, ...], Any]:
        def key(row: dict[str, Any]) -> tuple[Any, ...]:
            hour = int.from_bytes(row["event_id"][:6], "big") // reckoning.HOUR
            return (hour, *(row[name] for name in TRAFFIC_KEY[1:]))

        return _grouped(self.known, key, reckoning.exchanged)

    def eta(self) -> dict[tuple[Any, ...], Any]:
        completed = [task for task in self.tasks.values() if task["completed"] is not None]
        return _grouped(
            completed, lambda t: tuple(t["first"][name] for name in ETA_KEY), reckoning.advice
        )


def _grouped(
    rows: Rows, key: Callable[[dict[str, Any]], tuple[Any, ...]], made: Callable[[Rows], Any]
) -> dict[tuple[Any, ...], Any]:
    groups: dict[tuple[Any, ...], Rows] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return {name: made(group) for name, group in groups.items()}


@pytest.fixture(scope="module")
def reckoned(world: World) -> Reckoned:
    return Reckoned(world.archive)


def _assert_equal(
    rows: Rows, key: tuple[str, ...], expected: dict[tuple[Any, ...], dict[str, Any]]
) -> None:
    found = {tuple(row[name] for name in key): row for row in rows}
    assert len(found) == len(rows)
    assert found.keys() == expected.keys()
    for place, values in expected.items():
        assert {name: found[place][name] for name in values} == values, place


def test_deliveries_are_what_the_files_say(world: World, reckoned: Reckoned) -> None:
    rows = [row | {"event_id": bytes(row["event_id"])} for row in world.rows["deliveries"]]
    _assert_equal(rows, ("node", "event_id"), reckoned.deliveries)
    states = {row["state"] for row in rows}
    assert {"replied", "processed", "dead_letter", "orphan"} <= states
    assert any(row["amended"] for row in rows)
    assert any(row["duplicates"] for row in rows)


def test_service_levels_are_what_the_files_say_in_every_column(
    world: World, reckoned: Reckoned
) -> None:
    _assert_equal(world.rows["slo"], SLO_KEY, reckoned.slo())
    sums = {name: sum(row[name] for row in world.rows["slo"]) for name in ("dead", "ack_lag")}
    assert all(sums.values())
    key = {"day", "hour", *SLO_KEY}
    assert set(world.rows["slo"][0]) - key == set(next(iter(reckoned.slo().values())))


def test_traffic_and_advice_are_what_the_files_say(world: World, reckoned: Reckoned) -> None:
    _assert_equal(world.rows["traffic"], TRAFFIC_KEY, reckoned.traffic())
    _assert_equal(world.rows["eta"], ETA_KEY, reckoned.eta())


# -- what was planted


def _assert_incidents(world: World) -> None:
    left = list(world.rows["incidents"])
    for known in world.truth.incidents:
        (row,) = [
            row
            for row in left
            if (row["class"], row["node"], row["agent"], row["capability_id"])
            == (known.cls, known.node, known.agent, known.capability_id)
        ]
        assert row["started_at"] < known.window[1]
        assert row["ended_at"] > known.window[0]
        if known.corr_ids:
            # Who came after the last whole window of a growing backlog is not counted.
            slack = 30 if known.cls == "backlog" else 1
            assert 0 <= known.count - row["count"] < slack
            assert set(row["samples"]) <= set(known.corr_ids)
        assert row["samples"]
        left.remove(row)
    assert left == []


def _assert_misfires(world: World) -> None:
    known = {
        (m.cls, m.capability_id, m.capability_version, m.executor_version): m.count
        for m in world.truth.misfires
    }
    names = ("class", "capability_id", "capability_version", "executor_version")
    found = {tuple(row[name] for name in names): row["count"] for row in world.rows["reviews"]}
    assert len(found) == len(world.rows["reviews"])
    assert found == known


def test_what_was_planted_is_found_and_nothing_else(world: World) -> None:
    _assert_incidents(world)
    _assert_misfires(world)
    advice = {row["capability_id"]: row for row in world.rows["eta"]}
    assert advice["late"]["recommended_eta_seconds"] == 301
    assert advice["late"]["kept_rate"] == 0.0


@pytest.mark.full
@pytest.mark.parametrize("faults", [PLANTED, ()], ids=["planted", "clean"])
@pytest.mark.parametrize(("seed", "nodes"), [(0, 4), (1, 3), (2, 5), (3, 6), (4, 8)])
def test_other_seeds_and_rooms(
    tmp_path: Path, seed: int, nodes: int, faults: tuple[str, ...]
) -> None:
    options = SynthOptions(events=20_000, nodes=nodes, seed=seed, segment_rows=1500)
    world = World(tmp_path, options, faults)
    _assert_incidents(world)
    _assert_misfires(world)
    reckoned = Reckoned(world.archive)
    _assert_equal(world.rows["slo"], SLO_KEY, reckoned.slo())
    _assert_equal(world.rows["traffic"], TRAFFIC_KEY, reckoned.traffic())
    _assert_equal(world.rows["eta"], ETA_KEY, reckoned.eta())
