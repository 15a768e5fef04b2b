"""Whole meshes under faults, seed by seed: whatever happened, every message ended once."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from simulation.gateways import RunShape, simulate
from tests.conftest import choose

BATCH = choose(3, 20)
USUAL = RunShape()
# Three times as many faults for their time, and five for each message: such runs find the most.
DENSE = RunShape(messages=150, faults=30, over_ms=30_000)


def check_messages(seed: int, shape: RunShape) -> None:
    result = simulate(seed, shape)
    assert result.verdict.ok, f"replay it: {shape.replay_command(seed)}\n{result.verdict}"
    assert result.verdict.counts.sent >= shape.messages * 0.9
    assert result.verdict.counts.processed > result.verdict.counts.dead_lettered


@pytest.mark.parametrize("first", range(100_000, 100_000 + choose(12, 2_000), BATCH))
def test_every_message_ends_once(first: int) -> None:
    for seed in range(first, first + BATCH):
        check_messages(seed, DENSE)


@pytest.mark.parametrize("seed", range(choose(1, 1_000)))
def test_every_message_of_a_longer_run_ends_once(seed: int) -> None:
    check_messages(seed, USUAL)


# Few gateways and agents, so that sender and receiver of a pair both move while mail is under way.
ROUND_TRIPS = RunShape(
    nodes=3, messages=60, agents=6, faults=10, over_ms=30_000, kinds=["round_trip"]
)


def test_gateways_that_forward_mail_of_each_other_do_not_wait_for_each_other() -> None:
    for seed in range(1, choose(4, 200)):
        result = simulate(seed, ROUND_TRIPS)
        assert result.verdict.ok, f"replay it: {ROUND_TRIPS.replay_command(seed)}\n{result.verdict}"


# Fewer messages, for they are under test above.
TASK_SHAPE = RunShape(messages=choose(20, 100), tasks=choose(40, 200))
TASK_SEEDS = choose(3, 1_000)


@pytest.mark.parametrize("seed", range(TASK_SEEDS))
def test_every_task_ends_once(seed: int) -> None:
    result = simulate(seed, TASK_SHAPE)
    assert result.verdict.ok, f"replay it: {TASK_SHAPE.replay_command(seed)}\n{result.verdict}"
    counts = result.verdict.counts
    assert counts.tasks >= TASK_SHAPE.tasks * 0.8
    assert counts.tasks_completed > TASK_SHAPE.tasks * 0.3


@cache
def _trace(seed: int, hash_seed: str) -> bytes:
    command = [sys.executable, "-m", "simulation.gateways", "--trace", "--frames"]
    arguments = ["--seed", str(seed), "--messages", "60"]
    path = os.pathsep.join(sys.path)
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    done = subprocess.run(command + arguments, env=environment, capture_output=True, check=True)
    return done.stdout


def test_a_seed_replays_byte_for_byte_in_any_process() -> None:
    first, second = _trace(5, "1"), _trace(5, "2")
    assert first == second
    assert len(first.splitlines()) > 200


def test_another_seed_is_another_history() -> None:
    assert _trace(5, "1") != _trace(6, "1")


def test_the_printed_command_replays_the_shape(tmp_path: Path) -> None:
    shape = RunShape(nodes=3, messages=20, kinds=["drop", "crash"])
    command = shape.replay_command(7)
    assert command == (
        "python -m simulation.gateways --seed 7 --nodes 3 --messages 20 --kinds drop,crash"
    )
