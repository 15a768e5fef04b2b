"""One chunk of messages, and the writer of events about them."""

from enum import IntEnum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gatepost.pipeline.synth.event_records import Records, make_records, new_ids
from gatepost.pipeline.synth.mesh import FieldValue, IdWords, IntArray
from gatepost.pipeline.synth.pair_order import PairOrder

RowMask = NDArray[np.bool_]


class MessageFate(IntEnum):
    """The fate of a message."""

    PLAIN = 0  # accepted and processed
    REPLY = 1  # processed, and answered with a reply
    RETRY = 2  # accepted only when sent again
    OFFER = 3  # offered, accepted and confirmed
    FALLBACK = 4  # sent to the standby, since the owner did not answer
    MOVED = 5  # sent to the standby, since the owner refused
    REPEATED = 6  # sent again although it was accepted
    BAD_END = 7  # processed with a bad outcome
    TASK = 8  # a task
    AMENDED = 9  # processed although the sender had given up
    EXPIRED = 10  # a dead letter: nobody accepted it in time
    REFUSED = 11  # a dead letter: the owner refused it


class SentChunk(Struct):
    """One chunk of messages, sorted by pair.

    `home` is the node of the sending agent, `owner` the node of the receiving agent, and `standby`
    the node that takes over if the owner does not.
    """

    fate: IntArray
    order: PairOrder
    source: IntArray
    target: IntArray
    home: IntArray
    owner: IntArray
    standby: IntArray
    sent_at: IntArray
    event_id: IdWords
    pair_number: IntArray
    expires_at: IntArray


class ChunkWriter:
    """Writes events about the messages of one chunk, many at a time."""

    def __init__(self, messages: SentChunk, rng: np.random.Generator) -> None:
        self._messages = messages
        self._rng = rng
        self._written: list[Records] = []

    # -- durations

    def _network_delay(self, a: IntArray, b: IntArray) -> IntArray:
        slow = np.clip(self._rng.lognormal(3.2, 0.6, len(a)), 1, 5000)
        return np.where(a == b, 1 + (slow / 20), slow).astype(np.int64)

    def _turn_duration(self, count: int) -> IntArray:
        return np.clip(self._rng.lognormal(6.0, 1.0, count), 5, 20_000).astype(np.int64)

    def _short_turn_duration(self, count: int) -> IntArray:
        return self._rng.integers(20, 400, count)

    # -- events

    def _has_fate(self, *stories: MessageFate) -> RowMask:
        return np.isin(self._messages.fate, stories)

    def _write_events(
        self, times: IntArray, step: int, template: FieldValue, **fields: FieldValue
    ) -> None:
        fields.setdefault("id", new_ids(self._rng, times))
        self._written.append(make_records(times, step, template, **fields))

    def _write_receipts(
        self,
        mask: RowMask,
        times: IntArray,
        template: FieldValue,
        node: IntArray,
        step: int = 1,
        **more: FieldValue,
    ) -> None:
        """Write a receipt for each message of the mask, to the node of its sender."""
        messages = self._messages
        self._write_events(
            times,
            step,
            template,
            node=node,
            source=messages.target[mask],
            to_node=messages.home[mask] + 1,
            ref=messages.event_id[mask],
            corr=messages.event_id[mask],
            **more,
        )

    def _write_sender_events(
        self,
        mask: RowMask,
        times: IntArray,
        template: FieldValue,
        step: int,
        to: IntArray,
        **more: FieldValue,
    ) -> None:
        """Write a signal or dead letter of the sender for each message of the mask."""
        messages = self._messages
        self._write_events(
            times,
            step,
            template,
            node=messages.home[mask],
            source=messages.source[mask],
            to_node=to + 1,
            ref=messages.event_id[mask],
            corr=messages.event_id[mask],
            **more,
        )

    def _write_resends(
        self,
        mask: RowMask,
        times: IntArray,
        template: int,
        to: IntArray,
        attempt: int,
        payload: FieldValue,
    ) -> None:
        """Write each message of the mask once more, with the same event id."""
        messages = self._messages
        self._write_events(
            times,
            0,
            template,
            id=messages.event_id[mask],
            node=messages.home[mask],
            source=messages.source[mask],
            to_node=to + 1,
            to_agent=messages.target[mask] + 1,
            corr=messages.event_id[mask],
            pair_seq=messages.pair_number[mask],
            expires=messages.expires_at[mask],
            attempt=attempt,
            payload=payload,
        )
