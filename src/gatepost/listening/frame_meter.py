"""Frames of a WebSocket in a stream of bytes: how long they are, without parsing them."""

_MASKED = 0x80
_LENGTH = 0x7F
_LENGTH_IN_2_BYTES = 126
_LENGTH_IN_8_BYTES = 127
_MASK_BYTES = 4


class FrameMeter:
    """Knows how much of the present frame is still to come."""

    def __init__(self) -> None:
        self._left = 0

    def measure_frames(self, data: bytes | bytearray, most: int) -> int:
        """Return how many bytes of `data` belong to the present frame and `most` further ones.

        They are to be taken away from the start of `data` before the next call. A frame whose
        length has not come yet is not counted.
        """
        end = min(self._left, len(data))
        self._left -= end
        for _ in range(most):
            size = read_frame_size(data, end)
            if size is None:
                break
            taken = min(size, len(data) - end)
            end, self._left = end + taken, size - taken
        return end


def read_frame_size(data: bytes | bytearray, start: int) -> int | None:
    """Return the size of the frame that starts there, head included; None if it is not known yet.

    The result is at least 2 for any bytes.
    """
    if start + 2 > len(data):
        return None
    second = data[start + 1]
    head = 2 + (_MASK_BYTES if second & _MASKED else 0)
    length = second & _LENGTH
    if length < _LENGTH_IN_2_BYTES:
        return head + length
    width = 8 if length == _LENGTH_IN_8_BYTES else 2
    if start + 2 + width > len(data):
        return None
    return head + width + int.from_bytes(data[start + 2 : start + 2 + width])
