"""Transition tables as SQL: guards that let a statement change a state only as its table says."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeVar

S = TypeVar("S", bound=Enum)
I = TypeVar("I", bound=Enum)  # noqa: E741


def sources_of(transitions: Mapping[tuple[S, I], S], input: I) -> tuple[S, ...]:
    """The states that permit an input."""
    return tuple(source for source, taken in transitions if taken is input)


def target_of(transitions: Mapping[tuple[S, I], S], input: I) -> S:
    """The state that an input leads to: the same one from each of its sources."""
    (target,) = {to for (_, taken), to in transitions.items() if taken is input}
    return target


def is_in_states(states: Iterable[Enum]) -> str:
    """The SQL condition that the column `state` has one of these values."""
    values = (repr(state.value) for state in states)
    return f"state IN ({', '.join(values)})"
