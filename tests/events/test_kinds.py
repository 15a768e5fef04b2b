"""The vocabulary of kinds is a contract with every other node."""

from gatepost.events.kinds import CLEAR_KINDS, KNOWN_KINDS, LEGACY_KINDS, TRACKED_KINDS


def test_the_eleven_kinds() -> None:
    assert " ".join(sorted(KNOWN_KINDS)) == (
        "ack dead_letter message reply signal task_accept task_cancel task_complete"
        " task_create task_failed task_update"
    )


def test_receipts_are_never_tracked() -> None:
    assert {"message", "reply", "task_create", "task_cancel"} == TRACKED_KINDS
    assert not TRACKED_KINDS & CLEAR_KINDS


def test_older_names_are_no_kinds_of_their_own() -> None:
    assert not LEGACY_KINDS.keys() & KNOWN_KINDS
    assert set(LEGACY_KINDS.values()) <= KNOWN_KINDS
