"""The last lines of the demo: a path, and a verdict that fits the tables above it."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from examples import demo
from examples.delegation import DelegationResult, build_table


def test_work_that_did_not_go_as_it_should_is_in_the_verdict(tmp_path: Path) -> None:
    with demo.console.capture() as said:
        assert not demo.print_verdict(True, True, tmp_path, delegated=False)
    assert "the delegated work did not go as it should" in " ".join(said.get().split())


def seen(**changed: object) -> DelegationResult:
    return replace(
        DelegationResult(
            installed={"architect": "installed", "builder": "installed"},
            states=["pending", "running", "completed"],
            eta_seconds=5.0,
            progress=[0.0, 0.5, 1.0],
            result={"verdict": "fine"},
            broken="contract_mismatch",
            stalled="cancelled",
            reviews={"contract_mismatch": "1", "eta_breach": "2"},
        ),
        **changed,
    )


def test_the_table_of_delegated_work_says_what_happened() -> None:
    with demo.console.capture() as said:
        demo.console.print(build_table(seen()))
    text = said.get()
    for words in ("promised within 5 s", "50%", "contract_mismatch", "eta_breach", "architect"):
        assert words in text
    assert seen().fine


@pytest.mark.parametrize(
    "changed",
    [
        {"installed": {"architect": "pending"}},
        {"progress": [0.0, 1.0]},
        {"result": None},
        {"broken": "completed"},
        {"stalled": "completed"},
        {"reviews": {"eta_breach": "2"}},
    ],
)
def test_delegated_work_is_fine_only_if_all_of_it_is(changed: dict[str, object]) -> None:
    assert not seen(**changed).fine


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
