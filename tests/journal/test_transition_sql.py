from enum import IntEnum, StrEnum

import pytest

from gatepost.journal.transition_sql import is_in_states, sources_of, target_of


class Door(StrEnum):
    OPEN = "open"
    SHUT = "shut"
    LOCKED = "locked"


class Act(StrEnum):
    SLAM = "slam"
    LOCK = "lock"


class Level(IntEnum):
    LOW = 0
    HIGH = 2


TRANSITIONS = {
    (Door.OPEN, Act.SLAM): Door.SHUT,
    (Door.OPEN, Act.LOCK): Door.LOCKED,
    (Door.SHUT, Act.LOCK): Door.LOCKED,
}


def test_the_sources_of_an_input_are_in_the_order_of_the_table() -> None:
    assert sources_of(TRANSITIONS, Act.LOCK) == (Door.OPEN, Door.SHUT)


def test_an_input_has_one_target() -> None:
    assert target_of(TRANSITIONS, Act.LOCK) is Door.LOCKED
    with pytest.raises(ValueError):
        target_of(TRANSITIONS | {(Door.LOCKED, Act.SLAM): Door.LOCKED}, Act.SLAM)


def test_names_are_quoted_and_numbers_are_not() -> None:
    # Partial indexes are used only by conditions that are written like their own.
    assert is_in_states([Door.OPEN, Door.SHUT]) == "state IN ('open', 'shut')"
    assert is_in_states([Level.LOW, Level.HIGH]) == "state IN (0, 2)"
