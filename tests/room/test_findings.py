"""Reports of many writers: which claim is shown, and how much of one writer."""

from msgspec.structs import replace

from gatepost.room import ReviewRecord
from gatepost.room.findings import (
    MAX_AHEAD_MS,
    MAX_OF_WRITER,
    FindingClaim,
    choose_report,
    choose_reports,
    share_page,
)

NOW = 1_800_000_000_000
OPEN = ReviewRecord(
    capability_id="job",
    delegation_skill_version="1",
    executor_skill_version="1",
    failure_class="eta_breach",
    raised_at=NOW,
)


def said(
    writer: str, at: int = 0, *, trusted: bool = False, **fields: object
) -> FindingClaim[ReviewRecord]:
    return FindingClaim(writer, trusted, replace(OPEN, raised_at=NOW + at, **fields))


def chosen(*claims: FindingClaim[ReviewRecord]) -> str | None:
    found = choose_report(claims, NOW)
    return None if found is None else found.writer


def test_a_claim_of_the_future_waits_and_hides_no_other() -> None:
    assert chosen(said("eve", MAX_AHEAD_MS + 1), said("ann")) == "ann"
    assert chosen(said("eve", MAX_AHEAD_MS + 1)) is None
    assert chosen(said("ann", MAX_AHEAD_MS)) == "ann"


def test_a_backbone_node_is_believed_before_others() -> None:
    assert chosen(said("eve", 5), said("ann", 1, trusted=True)) == "ann"


def test_nobody_makes_a_report_older_than_others_say() -> None:
    assert chosen(said("eve", -(10**9)), said("ann", 1)) == "ann"


def test_the_first_to_settle_has_decided() -> None:
    first = said("vps", trusted=True, status="resolved", settled_at=NOW + 1)
    later = said("root", trusted=True, status="dismissed", settled_at=NOW + 2)
    assert chosen(later, said("ann"), first) == "vps"


def test_of_one_writer_its_newest_reports_are_shown() -> None:
    flood = {f"e{n}": (said("eve", n),) for n in range(MAX_OF_WRITER + 9)}
    found = choose_reports({**flood, "a": (said("ann", -99),)}, NOW)
    assert len(found) == MAX_OF_WRITER + 1
    assert "a" in found and "e0" not in found and f"e{MAX_OF_WRITER + 8}" in found


def test_writers_share_a_page_in_turns() -> None:
    flood = [("eve", n) for n in range(1000, 2000)]
    real = [("ann", n) for n in range(5)] + [("ben", n) for n in range(5, 7)]
    page = share_page(flood + real, 10, lambda n: -n)
    assert page == [1999, 1998, 1997, 1996, 6, 5, 4, 3, 2, 1]
    assert len(page) == 10
    assert share_page(real, 10, lambda n: -n) == [6, 5, 4, 3, 2, 1, 0]
