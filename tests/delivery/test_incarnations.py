"""The incarnations of an outbox: where a reader of an earlier one goes on."""

from gatepost.delivery.incarnations import incarnation_at, last_seq_of, next_stretch, position_after

INCARNATIONS = [("one", 1), ("two", 11), ("three", 21)]


def test_an_event_belongs_to_the_life_it_was_written_in() -> None:
    assert [incarnation_at(INCARNATIONS, seq)[0] for seq in (0, 1, 10, 11, 20, 21, 99)] == [
        "one", "one", "one", "two", "two", "three", "three",
    ]  # fmt: skip


def test_the_next_event_after_the_end_of_a_life_is_in_the_next() -> None:
    assert next_stretch(INCARNATIONS, 9) == (("one", 1), 10)
    assert next_stretch(INCARNATIONS, 10) == (("two", 11), 20)
    assert last_seq_of(INCARNATIONS, ("three", 21)) > 2**52


def test_a_reader_goes_on_where_it_is() -> None:
    assert position_after(INCARNATIONS, [("a", "two", 15)], "a") == 15
    assert position_after(INCARNATIONS, [("a", "one", 3), ("a", "two", 15)], "a") == 15


def test_what_was_read_behind_a_fork_does_not_count() -> None:
    assert position_after(INCARNATIONS, [("a", "one", 17)], "a") == 10


def test_who_never_read_starts_at_the_start() -> None:
    assert position_after(INCARNATIONS, [], "a") == 0
    assert position_after(INCARNATIONS, [("b", "one", 5), ("a", "unheard of", 5)], "a") == 0
    assert position_after([("two", 11)], [], "a") == 10
