"""Server-sent events, as bytes come in."""

import pytest

from gatepost.connect.event_stream import EventStreamDecoder, decode_events
from gatepost.connect.http_calls import NotGatewayAnswer

STREAM = b"event: change\r\ndata: {}\r\n\r\n: still here\n\nid: 7\ndata: [1,\ndata: 2]\n\ndata: 3"


def test_events_are_the_same_wherever_the_pieces_are_cut() -> None:
    for size in (1, 2, 7, len(STREAM)):
        decoder = EventStreamDecoder()
        pieces = (STREAM[at : at + size] for at in range(0, len(STREAM), size))
        found = [data for piece in pieces for data in decoder.feed(piece)]
        # The last one has no end yet.
        assert found == [b"{}", b"[1,\n2]"]


def test_an_event_without_end_is_refused() -> None:
    decoder = EventStreamDecoder()
    with pytest.raises(NotGatewayAnswer):
        for _ in range(3):
            decoder.feed(b"data: " + bytes(600_000))


def test_an_event_of_another_kind_is_refused() -> None:
    with pytest.raises(NotGatewayAnswer):
        list(decode_events(iter([b"data: {}\n\n"]), list[int]))
