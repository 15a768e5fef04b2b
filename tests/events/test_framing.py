"""No two lists of parts share an encoding."""

from hypothesis import given
from hypothesis import strategies as st

from gatepost.events.framing import frame_parts

parts = st.lists(st.binary(max_size=6), max_size=4)


@given(st.text(max_size=3), parts, st.text(max_size=3), parts)
def test_different_inputs_frame_differently(
    domain: str, one: list[bytes], other: str, two: list[bytes]
) -> None:
    assert (frame_parts(domain, *one) == frame_parts(other, *two)) == (
        (domain, one) == (other, two)
    )


def test_moving_a_boundary_changes_the_frame() -> None:
    assert (
        len(
            {frame_parts("d", b"ab", b"c"), frame_parts("d", b"a", b"bc"), frame_parts("d", b"abc")}
        )
        == 3
    )
