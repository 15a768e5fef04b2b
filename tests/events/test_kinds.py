"""The vocabulary of kinds is a contract with every other node."""

from gatepost.events.kinds import CLEAR, KNOWN, LEGACY, TRACKED


def test_the_eleven_kinds() -> None:
    assert " ".join(sorted(KNOWN)) == (
        "ack dead_letter message reply signal task_accept task_cancel task_complete"
        " task_create task_failed task_update"
    )


def test_receipts_are_never_tracked() -> None:
    assert {"message", "reply", "task_create", "task_cancel"} == TRACKED
    assert not TRACKED & CLEAR


def test_older_names_are_no_kinds_of_their_own() -> None:
    assert not LEGACY.keys() & KNOWN
    assert set(LEGACY.values()) <= KNOWN
