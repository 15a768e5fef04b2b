"""Packs operations into frames no larger than the gateway accepts."""

from collections.abc import Iterable, Iterator

import msgspec

from gatepost.client._operations import PendingOperation

_DEFAULT_FRAME_BYTES = 512 * 1024
_MIN_FRAME_BYTES = 1024
_SAFE_FRAME_BYTES = 128 * 1024

_encoder = msgspec.json.Encoder()


class FramePacker:
    """Learns the largest frame size: a gateway reports it only by refusing a frame."""

    def __init__(self) -> None:
        self.limit = _DEFAULT_FRAME_BYTES
        self._largest = 0
        self._alone: PendingOperation | None = None

    def reset_sizes(self) -> None:
        """Forget the frames of the previous connection."""
        self._largest, self._alone = 0, None

    def pack_frames(self, queue: Iterable[PendingOperation]) -> Iterator[bytes]:
        """Encode the operations in frames of up to `limit` bytes."""
        group: list[PendingOperation] = []
        weight = 0
        for pending in queue:
            if group and weight + pending.weight > self.limit:
                yield self._encode_frame(group)
                group, weight = [], 0
            group.append(pending)
            weight += pending.weight
        if group:
            yield self._encode_frame(group)

    def shrink_limit(self) -> PendingOperation | None:
        """Lower the limit after a refused frame.

        Returns the call that was alone in that frame, if any: it can never be sent.
        """
        if self._alone is None:
            self.limit = max(self._largest // 2, _MIN_FRAME_BYTES)
        return self._alone

    def shrink_limit_gently(self) -> None:
        """Lower the limit, but not below a safe size, when a frame may have been too large."""
        if self._largest > _SAFE_FRAME_BYTES:
            self.limit = max(self._largest // 2, _SAFE_FRAME_BYTES)

    def split_oversized(self, unanswered: Iterable[PendingOperation]) -> Iterator[PendingOperation]:
        """The same calls, with operations over the limit split into single calls."""
        for pending in unanswered:
            if pending.weight > self.limit:
                yield from pending.split_calls()
            else:
                yield pending

    def _encode_frame(self, group: list[PendingOperation]) -> bytes:
        ops = [pending.build_op() for pending in group]
        frame = _encoder.encode(ops[0] if len(ops) == 1 else ops)
        if len(frame) > self._largest:
            self._largest = len(frame)
            lone = len(group) == 1 and len(group[0].futures) == 1
            self._alone = group[0] if lone else None
        return frame
