"""The last lines of the demo: a path, and a verdict that fits the tables above it."""

from pathlib import Path

import pytest

from examples import demo


@pytest.mark.parametrize(
    ("counted", "audited", "ending"),
    [
        (True, True, "none lost, none done twice, and the audit found every promise kept."),
        (True, None, "none lost, none done twice."),
        (True, False, "Something went wrong: the audit found broken promises."),
        (False, True, "Something went wrong: the count above does not add up."),
    ],
)
def test_the_verdict_is_the_last_line(
    counted: bool, audited: bool | None, ending: str, tmp_path: Path
) -> None:
    page_at = tmp_path / "report.html"
    with demo.console.capture() as said:
        fine = demo.print_verdict(counted, audited, page_at)
    text = " ".join(said.get().split())
    assert fine is (counted and audited is not False)
    assert text.endswith(ending)
    assert ("Report:" in text) is (audited is not None)
