"""The sizes of WebSocket frames, however the bytes are cut."""

from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from gatepost.listening.frame_meter import FrameMeter, read_frame_size

LENGTHS = st.sampled_from((0, 1, 125, 126, 127, 65_535, 65_536, 70_000))


def _encode(length: int, masked: bool = True) -> bytes:
    return Frame(Opcode.BINARY, b"x" * length).serialize(mask=masked)


@given(LENGTHS, st.booleans())
def test_the_size_of_a_frame_is_that_of_its_bytes(length: int, masked: bool) -> None:
    encoded = _encode(length, masked)
    assert read_frame_size(b"..." + encoded, 3) == len(encoded)


def test_a_length_that_has_not_come_is_not_known() -> None:
    for length, needed in ((5, 2), (126, 4), (65_536, 10)):
        encoded = _encode(length)
        assert [read_frame_size(encoded[:n], 0) for n in range(needed)] == [None] * needed
        assert read_frame_size(encoded[:needed], 0) == len(encoded)


@given(st.lists(LENGTHS, max_size=8), st.lists(st.integers(1, 300), min_size=1), st.integers(1, 4))
def test_pieces_end_where_frames_do_and_hold_no_more_than_allowed(
    lengths: list[int], cuts: list[int], most: int
) -> None:
    frames = [_encode(length) for length in lengths]
    stream, meter, unparsed, taken = b"".join(frames), FrameMeter(), bytearray(), 0
    starts = [sum(map(len, frames[:n])) for n in range(len(frames))]
    position = 0
    while position < len(stream):
        cut = cuts[position % len(cuts)] * 100
        unparsed += stream[position : position + cut]
        position += cut
        while size := meter.measure_frames(unparsed, most):
            assert sum(taken <= start < taken + size for start in starts) <= most
            taken += size
            del unparsed[:size]
    assert taken == len(stream) and not unparsed
