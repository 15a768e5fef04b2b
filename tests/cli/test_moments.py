"""Moments as people type them."""

from datetime import UTC, datetime

import pytest

from gatepost.cli.moments import parse_moment
from gatepost.cli.problems import CommandProblem

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+90", NOW + 90),
        ("+90s", NOW + 90),
        ("+1.5m", NOW + 90),
        ("+2h", NOW + 7200),
        ("+1d", NOW + 86_400),
        ("1900000000", 1_900_000_000.0),
        ("2030-01-31T08:00+00:00", datetime(2030, 1, 31, 8, tzinfo=UTC).timestamp()),
        ("2030-01-31T08:00:00Z", datetime(2030, 1, 31, 8, tzinfo=UTC).timestamp()),
    ],
)
def test_a_moment(text: str, expected: float) -> None:
    assert parse_moment(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "soon", "+", "+1w", "-5m", "2030-13-01"])
def test_no_moment(text: str) -> None:
    with pytest.raises(CommandProblem, match="is no time"):
        parse_moment(text, NOW)
