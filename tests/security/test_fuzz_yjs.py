"""What the room reads in an update is what Yjs reads in it, whatever a peer sends."""

from random import Random

import pytest

from gatepost.room import SharedRoom
from tests.room.sample_records import update
from tests.security.mutations import TIMEOUT_SECS, run_cases
from tests.security.yjs_cases import (
    NEXT,
    YjsReader,
    accepted_case,
    held_values,
    new_room,
    served_updates,
)

pytestmark = pytest.mark.timeout(TIMEOUT_SECS)


def test_an_accepted_update_says_to_yjs_what_the_room_has_read_in_it() -> None:
    """A client that applies its bytes shows the records that the room holds, also later."""
    before, accepted = served_updates(new_room()), list[bytes]()

    def try_case(number: int, random: Random) -> None:
        case = accepted_case(random)
        if case is None:
            return
        made, holder = case
        accepted.append(made)
        reader = YjsReader(before)
        reader.apply([made])
        _assert_same(reader, holder)
        for signed in NEXT:
            holder.apply_update(update(signed))
            reader.apply([update(signed)])
        _assert_same(reader, holder)

    tried = run_cases("yjs", try_case, least=1000)
    print(f"{tried} updates, {len(accepted)} accepted, {len(set(accepted))} of them different")
    assert len(accepted) > tried / 50, "the cases are too wild to be accepted"


def test_a_client_that_reads_what_is_served_shows_the_records_of_the_room() -> None:
    def try_case(number: int, random: Random) -> None:
        case = accepted_case(random)
        if case is not None:
            _assert_same(YjsReader(served_updates(case[1])), case[1])

    run_cases("served", try_case)


def _assert_same(reader: YjsReader, holder: SharedRoom) -> None:
    assert reader.shown() == held_values(holder)
    assert reader.clocks() == dict(holder.document.slot_clocks())
