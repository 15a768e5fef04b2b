"""The conditions of a filter as SQL, joined with AND."""

from collections.abc import Iterable

# A condition, and its values; None if the filter does not ask for it.
FilterCondition = tuple[str, list[object] | None]


def join_conditions(conditions: Iterable[FilterCondition]) -> tuple[str, list[object]]:
    """The tail of a WHERE clause, which is empty if nothing is asked for, and its values."""
    used = [(sql, values) for sql, values in conditions if values is not None]
    sql = "".join(f" AND {condition}" for condition, _ in used)
    return sql, [value for _, values in used for value in values]


def optional_value(value: object | None) -> list[object] | None:
    return None if value is None else [value]


def optional_millis(secs: int | None) -> list[object] | None:
    return None if secs is None else [secs * 1000]
