"""Ordinary traffic: complete lifecycles of messages and tasks, thousands at a time, all correct."""

from typing import Final

import numpy as np
from msgspec import Struct

from gatepost.pipeline.synth.chunk_writer import ChunkWriter, MessageFate, RowMask, SentChunk
from gatepost.pipeline.synth.event_records import Records, SynthEvent, new_ids
from gatepost.pipeline.synth.mesh import (
    DRAIN,
    START,
    TTL,
    FieldValue,
    IdWords,
    IntArray,
    SyntheticMesh,
    arrival_times,
)
from gatepost.pipeline.synth.pair_order import PairOrder, PairProgress

# Average number of events per message: the message, its receipts, its reply and so on.
EVENTS_PER_MESSAGE: Final = 3.83
ACCEPT_TIMEOUT_MS: Final = 20_000
SHORT_TTL_MS: Final = 60_000
# Each node has fewer than one ordinary dead letter per interval (ms): too few for an incident.
_MIN_DEAD_LETTER_INTERVAL = 600_000


_FATE_CHANCES = {
    MessageFate.REPLY: 0.22,
    MessageFate.RETRY: 0.010,
    MessageFate.OFFER: 0.050,
    MessageFate.FALLBACK: 0.005,
    MessageFate.MOVED: 0.004,
    MessageFate.REPEATED: 0.008,
    MessageFate.BAD_END: 0.020,
    MessageFate.TASK: 0.050,
    MessageFate.AMENDED: 0.0005,
}
_BAD_OUTCOMES = np.array([SynthEvent.PROCESSED_DEAD, SynthEvent.PROCESSED_EXPIRED])
_REMOTE_FATES = (
    *(MessageFate.RETRY, MessageFate.OFFER, MessageFate.REPEATED, MessageFate.AMENDED),
    *(MessageFate.EXPIRED, MessageFate.REFUSED),
)


class TrafficTotals(Struct, rename="camel"):
    """Totals of an archive, for tests that count again."""

    messages: int = 0
    replies: int = 0
    tasks: int = 0
    dead_letters: int = 0


class OrdinaryTraffic:
    """Generates ordinary traffic, and keeps the state of every pair from chunk to chunk."""

    def __init__(self, mesh: SyntheticMesh, message_count: int) -> None:
        self.mesh = mesh
        self.message_count = message_count
        self.totals = TrafficTotals()
        self.failed_tasks = np.zeros(len(mesh.capabilities), dtype=np.int64)
        self._outbound = PairProgress.for_pairs(len(mesh.pair_from))
        self._replies = PairProgress.for_pairs(len(mesh.pair_from))
        self._owner_by_agent = np.array(mesh.owner)
        self._standby_by_agent = np.array(mesh.standby)
        rate = message_count / mesh.duration_ms / len(mesh.nodes)
        self._dead_chance = min(0.004, 1 / (_MIN_DEAD_LETTER_INTERVAL * rate))

    def generate_chunk(self, first: int, last: int) -> Records:
        """Generate every event that follows from the messages `first` to `last`."""
        rng = np.random.default_rng([self.mesh.seed, 3, first])
        messages = self._draw_messages(rng, first, last)
        return np.concatenate(_ChunkLifecycles(self, messages, rng).write_lifecycles())

    def _draw_messages(self, rng: np.random.Generator, first: int, last: int) -> SentChunk:
        mesh = self.mesh
        pair = np.searchsorted(mesh.pair_weight, rng.random(last - first))
        times = arrival_times(mesh, first, last, self.message_count, rng)
        sorted_by_pair = np.argsort(pair, kind="stable")
        pair, times = pair[sorted_by_pair], times[sorted_by_pair]
        source, target = mesh.pair_from[pair], mesh.pair_to[pair]
        home, owner = self._owner_by_agent[source], self._owner_by_agent[target]
        standby = self._standby_by_agent[target]
        times = self.postpone_while_away(home, times)
        order = PairOrder(pair)
        story = self._draw_fates(rng, home, owner, standby)
        short = np.isin(story, (MessageFate.EXPIRED, MessageFate.AMENDED))
        return SentChunk(
            fate=story,
            order=order,
            source=source,
            target=target,
            home=home,
            owner=owner,
            standby=standby,
            sent_at=times,
            event_id=new_ids(rng, times),
            pair_number=order.assign_pair_numbers(self._outbound.last_number),
            expires_at=times + np.where(short, SHORT_TTL_MS, TTL),
        )

    def _draw_fates(
        self, rng: np.random.Generator, home: IntArray, owner: IntArray, standby: IntArray
    ) -> IntArray:
        dead = {
            MessageFate.EXPIRED: 0.5 * self._dead_chance,
            MessageFate.REFUSED: 0.5 * self._dead_chance,
        }
        chances = _FATE_CHANCES | dead
        edges = np.cumsum(list(chances.values()))
        names = np.array([*chances, MessageFate.PLAIN])
        story = names[np.searchsorted(edges, rng.random(len(home)), side="right")]
        away = list(self.mesh.absences)
        ends = ~np.isin(np.stack((home, owner)), away).any(axis=0)
        moves = np.isin(story, (MessageFate.FALLBACK, MessageFate.MOVED))
        remote = home != owner
        possible = np.where(np.isin(story, _REMOTE_FATES), remote, True)
        possible &= ~moves | (remote & ends & ~np.isin(standby, away))
        possible &= (story != MessageFate.TASK) | ends
        # A sender that is away would leave an accepted offer unconfirmed for too long.
        possible &= (story != MessageFate.OFFER) | ~np.isin(home, away)
        return np.where(possible, story, MessageFate.PLAIN)

    def postpone_while_away(self, nodes: IntArray, times: IntArray, drain: int = 0) -> IntArray:
        """Postpone times at which a node is away to after its return, in the same order."""
        for node, window in self.mesh.absences.items():
            start, catch_up = window.start + drain, window.catch_up_ms
            there = (nodes == node) & (times >= start) & (times < window.end + catch_up)
            late = (times - start) * catch_up // (window.end - start + catch_up)
            times = np.where(there, window.end + late, times)
        return times

    def postpone_after_drain(self, nodes: IntArray, times: IntArray) -> IntArray:
        """Postpone times of events that finish something begun.

        A node still writes these while it drains, before it stops.
        """
        return self.postpone_while_away(nodes, times, DRAIN)


class _ChunkLifecycles(ChunkWriter):
    """Writes the complete lifecycles of one chunk of messages."""

    def __init__(
        self, traffic: OrdinaryTraffic, messages: SentChunk, rng: np.random.Generator
    ) -> None:
        super().__init__(messages, rng)
        self._traffic = traffic

    def write_lifecycles(self) -> list[Records]:
        messages, traffic, pairs = self._messages, self._traffic, self._traffic._outbound
        taker = np.where(
            self._has_fate(MessageFate.FALLBACK, MessageFate.MOVED),
            messages.standby,
            messages.owner,
        )
        self._write_first_sends()
        arrived = self._arrival_times()
        accepted = messages.order.order_times(
            traffic.postpone_while_away(taker, arrived), pairs.last_accepted
        )
        begun = self._write_confirmations(taker, accepted)
        dead = self._has_fate(MessageFate.EXPIRED, MessageFate.REFUSED)
        work = np.where(
            self._has_fate(MessageFate.TASK),
            self._short_turn_duration(len(begun)),
            self._turn_duration(len(begun)),
        )
        wanted = np.where(dead, 0, traffic.postpone_after_drain(taker, begun + work))
        processed = messages.order.order_times(wanted, pairs.last_processed)
        self._write_outcomes(taker, accepted, processed, ~dead)
        self._write_repeats(accepted, processed)
        self._write_amendments(processed)
        self._write_give_ups(arrived, processed)
        self._write_replies(processed)
        self._write_tasks(accepted, processed)
        return self._written

    # -- the steps of a lifecycle

    def _write_first_sends(self) -> None:
        messages, count = self._messages, len(self._messages.sent_at)
        task, local = self._has_fate(MessageFate.TASK), messages.home == messages.owner
        template = np.where(local, SynthEvent.MESSAGE_LOCAL, SynthEvent.MESSAGE)
        offered = self._has_fate(MessageFate.OFFER, MessageFate.FALLBACK)
        template = np.where(offered, SynthEvent.MESSAGE_OFFER, template)
        template = np.where(task, np.where(local, SynthEvent.TASK_LOCAL, SynthEvent.TASK), template)
        payload = self._rng.integers(1, 257, count)
        large = self._rng.random(count) < 0.02
        self._capability = self._rng.integers(0, 5, count)
        self._write_events(
            messages.sent_at,
            0,
            template,
            id=messages.event_id,
            node=messages.home,
            source=messages.source,
            to_node=messages.owner + 1,
            to_agent=messages.target + 1,
            corr=messages.event_id,
            causation=self._replay_causes(),
            pair_seq=messages.pair_number,
            expires=messages.expires_at,
            payload=np.where(large, 0, payload),
            blob=np.where(large, self._rng.integers(1, 65, count), 0),
            capability=np.where(task, self._capability + 1, 0),
        )
        self._traffic.totals.tasks += int(task.sum())
        self._traffic.totals.messages += int((~task).sum())

    def _replay_causes(self) -> IdWords:
        """The causation ids: the next message of a pair may be a dead letter that is sent again."""
        messages = self._messages
        dead = self._has_fate(MessageFate.EXPIRED, MessageFate.REFUSED)
        follows = np.zeros(len(dead), dtype=bool)
        follows[1:] = dead[:-1] & (messages.order.rank[1:] > 0)
        follows[1:] &= messages.sent_at[1:] > messages.sent_at[:-1] + 2 * SHORT_TTL_MS
        follows &= self._has_fate(MessageFate.PLAIN)
        cause = np.zeros_like(messages.event_id)
        cause[follows] = messages.event_id[np.flatnonzero(follows) - 1]
        return cause

    def _arrival_times(self) -> IntArray:
        """The time at which each message can be accepted, or no longer holds up its pair."""
        messages = self._messages
        net = self._network_delay(messages.home, messages.owner)
        arrived = messages.sent_at + net
        arrived = self._write_retries(arrived, net)
        arrived = self._write_reroutes(arrived, net)
        expired = self._has_fate(MessageFate.EXPIRED)
        return np.where(expired, messages.sent_at + SHORT_TTL_MS + 2 * net, arrived)

    def _write_retries(self, arrived: IntArray, net: IntArray) -> IntArray:
        """Send a message again that got no answer in time: the same event, without its payload."""
        messages, traffic = self._messages, self._traffic
        again = messages.sent_at + ACCEPT_TIMEOUT_MS + self._rng.integers(0, 400, len(net))
        once = self._has_fate(MessageFate.RETRY, MessageFate.EXPIRED)
        twice = self._has_fate(MessageFate.RETRY) & (self._rng.random(len(net)) < 0.3)
        for attempt, mask in ((2, once), (3, twice)):
            again = traffic.postpone_after_drain(messages.home, again)
            self._write_resends(
                mask,
                again[mask],
                SynthEvent.MESSAGE_RETRY,
                messages.owner[mask],
                attempt,
                payload=0,
            )
            arrived = np.where(mask, again + net, arrived)
            again = again + 4_000
        return arrived

    def _write_reroutes(self, arrived: IntArray, net: IntArray) -> IntArray:
        """Send messages to the standby, because the owner did not answer or refused."""
        messages = self._messages
        silent, moved = self._has_fate(MessageFate.FALLBACK), self._has_fate(MessageFate.MOVED)
        refused = moved | self._has_fate(MessageFate.REFUSED)
        told = self._traffic.postpone_while_away(messages.owner, arrived)[refused]
        self._write_receipts(refused, told, SynthEvent.REFUSED, messages.owner[refused])
        arrived[refused] = told + net[refused]
        leaves = np.where(silent, messages.sent_at + ACCEPT_TIMEOUT_MS + net, arrived)
        for mask, template in (
            (silent, SynthEvent.MESSAGE_FALLBACK),
            (moved, SynthEvent.MESSAGE_MOVED),
        ):
            times, to = leaves[mask], messages.standby[mask]
            self._write_sender_events(mask, times, SynthEvent.WITHDRAW, 0, messages.owner[mask])
            payload = self._rng.integers(1, 257, len(times))
            self._write_resends(mask, times, template, to, attempt=2, payload=payload)
        late = silent & (self._rng.random(len(net)) < 0.5)
        # The owner accepts too late and is never confirmed, so its turn never begins.
        self._write_receipts(
            late, leaves[late] + 3 * net[late], SynthEvent.ACCEPTED, messages.owner[late]
        )
        return np.where(
            silent | moved, leaves + self._network_delay(messages.home, messages.standby), arrived
        )

    def _write_confirmations(self, taker: IntArray, accepted: IntArray) -> IntArray:
        """The time at which the turn may begin: at once, or after the confirmation of an offer."""
        messages = self._messages
        offer = self._has_fate(MessageFate.OFFER, MessageFate.FALLBACK, MessageFate.MOVED)
        net = self._network_delay(messages.home, taker)
        confirmed = self._traffic.postpone_after_drain(messages.home, accepted + net)
        self._write_sender_events(offer, confirmed[offer], SynthEvent.CONFIRM, 2, taker[offer])
        return np.where(offer, confirmed + net, accepted)

    def _write_outcomes(
        self, taker: IntArray, accepted: IntArray, processed: IntArray, taken: RowMask
    ) -> None:
        plain = taken & ~self._has_fate(MessageFate.TASK)
        self._write_receipts(plain, accepted[plain], SynthEvent.ACCEPTED, taker[plain])
        bad = self._has_fate(MessageFate.BAD_END)
        how = np.where(bad, _BAD_OUTCOMES[self._rng.integers(0, 2, len(bad))], SynthEvent.PROCESSED)
        self._write_receipts(taken, processed[taken], how[taken], taker[taken], step=2)

    def _write_repeats(self, accepted: IntArray, processed: IntArray) -> None:
        """The sender sends an accepted message again, and gets the same receipts again."""
        messages, traffic, mask = (
            self._messages,
            self._traffic,
            self._has_fate(MessageFate.REPEATED),
        )
        again = traffic.postpone_after_drain(messages.home, messages.sent_at + ACCEPT_TIMEOUT_MS)[
            mask
        ]
        self._write_resends(
            mask, again, SynthEvent.MESSAGE_RETRY, messages.owner[mask], attempt=2, payload=0
        )
        node = messages.owner[mask]
        heard = traffic.postpone_after_drain(node, np.maximum(again, accepted[mask]) + 7)
        self._write_receipts(mask, heard, SynthEvent.ACCEPTED, node)
        over = np.flatnonzero(mask)[processed[mask] < heard]
        both = np.zeros_like(mask)
        both[over] = True
        self._write_receipts(
            both, heard[processed[mask] < heard], SynthEvent.PROCESSED, messages.owner[both], step=2
        )

    def _write_amendments(self, processed: IntArray) -> None:
        """The sender, cut off, gave up on a message that was processed all the same."""
        messages, mask = self._messages, self._has_fate(MessageFate.AMENDED)
        wanted = np.maximum(messages.expires_at, processed + 500)[mask]
        times = self._traffic.postpone_after_drain(messages.home[mask], wanted)
        self._write_dead_letters(mask, times, SynthEvent.DEAD_EXPIRED, attempts=1)

    def _write_give_ups(self, arrived: IntArray, processed: IntArray) -> None:
        messages, later = self._messages, self._traffic.postpone_after_drain
        for story, template, attempts in (
            (MessageFate.EXPIRED, SynthEvent.DEAD_EXPIRED, 2),
            (MessageFate.REFUSED, SynthEvent.DEAD_REFUSED, 1),
        ):
            mask = self._has_fate(story)
            wanted = messages.expires_at[mask] if story == MessageFate.EXPIRED else arrived[mask]
            times = later(messages.home[mask], wanted)
            self._write_dead_letters(mask, times, template, attempts)
            settled = np.flatnonzero(mask)[processed[mask] < times]
            told = np.zeros_like(mask)
            told[settled] = True
            self._write_sender_events(
                told,
                times[processed[mask] < times],
                SynthEvent.SETTLED,
                1,
                messages.owner[told],
                to_agent=messages.target[told] + 1,
                number=messages.pair_number[told],
            )

    def _write_dead_letters(
        self, mask: RowMask, times: IntArray, template: int, attempts: int
    ) -> None:
        messages = self._messages
        self._write_sender_events(
            mask,
            times,
            template,
            0,
            messages.owner[mask],
            number=attempts,
            other=messages.pair_number[mask],
        )
        self._traffic.totals.dead_letters += int(mask.sum())

    def _write_replies(self, processed: IntArray) -> None:
        messages, traffic, mask = self._messages, self._traffic, self._has_fate(MessageFate.REPLY)
        pairs, order = traffic._replies, PairOrder(messages.order.pair[mask])
        home, owner, times = messages.home[mask], messages.owner[mask], processed[mask]
        ids = new_ids(self._rng, times)
        about: dict[str, FieldValue] = {"corr": messages.event_id[mask]}
        self._write_events(
            times,
            1,
            np.where(home == owner, SynthEvent.REPLY_LOCAL, SynthEvent.REPLY),
            id=ids,
            node=owner,
            source=messages.target[mask],
            to_node=home + 1,
            to_agent=messages.source[mask] + 1,
            ref=messages.event_id[mask],
            pair_seq=order.assign_pair_numbers(pairs.last_number),
            expires=times + TTL,
            payload=self._rng.integers(1, 257, len(times)),
            **about,
        )
        back: dict[str, FieldValue] = {"node": home, "source": messages.source[mask], "ref": ids}
        back["to_node"] = owner + 1
        arrived = traffic.postpone_while_away(home, times + self._network_delay(home, owner))
        accepted = order.order_times(arrived, pairs.last_accepted)
        self._write_events(accepted, 1, SynthEvent.ACCEPTED, **back, **about)
        ended = order.order_times(
            traffic.postpone_after_drain(home, accepted + self._short_turn_duration(len(times))),
            pairs.last_processed,
        )
        self._write_events(ended, 2, SynthEvent.PROCESSED, **back, **about)
        traffic.totals.replies += len(times)

    def _write_tasks(self, accepted: IntArray, processed: IntArray) -> None:
        messages, mask, rng = self._messages, self._has_fate(MessageFate.TASK), self._rng
        capability = self._capability[mask]
        medians = np.array([c.median_secs for c in self._traffic.mesh.capabilities])
        wanted = rng.lognormal(np.log(medians[capability] * 1000), 0.5)
        took = np.clip(wanted, 500, 300_000).astype(np.int64)
        begun, ended = processed[mask], processed[mask] + took
        promised = ((ended - accepted[mask]) * 13 // 10_000) + 5
        eta: dict[str, FieldValue] = {
            "number": promised,
            "other": accepted[mask] + START + promised * 1000,
        }
        self._write_receipts(
            mask, accepted[mask], SynthEvent.ACCEPTED_TASK, messages.owner[mask], 1, **eta
        )
        self._write_task_events(mask, begun, SynthEvent.TASK_ACCEPT, **eta)
        chance = rng.random(len(took))
        failed, cancelled = chance < 0.004, chance > 0.99
        self._write_task_updates(mask, begun, took, cancelled)
        self._write_cancellations(mask, begun + took // 2, cancelled)
        np.add.at(self._traffic.failed_tasks, capability[failed], 1)
        for template, which in (
            (SynthEvent.TASK_FAILED, failed),
            (SynthEvent.TASK_COMPLETE, ~failed & ~cancelled),
        ):
            chosen = _narrow_mask(mask, which)
            self._write_task_events(chosen, ended[which], template)

    def _write_task_events(
        self, mask: RowMask, times: IntArray, template: int, **more: FieldValue
    ) -> None:
        """Write an event of the owner for the creator of each task of the mask."""
        messages = self._messages
        self._write_receipts(
            mask,
            times,
            template,
            messages.owner[mask],
            1,
            to_agent=messages.source[mask] + 1,
            **more,
        )

    def _write_task_updates(
        self, mask: RowMask, begun: IntArray, took: IntArray, cancelled: RowMask
    ) -> None:
        count = np.where(cancelled, 0, self._rng.integers(0, 4, len(took)))
        for update in (1, 2, 3):
            which = count >= update
            parts = count[which] + 1
            times = begun[which] + took[which] * update // parts
            told = 1000 * update // parts
            self._write_task_events(
                _narrow_mask(mask, which), times, SynthEvent.TASK_UPDATE, number=told
            )

    def _write_cancellations(self, mask: RowMask, times: IntArray, cancelled: RowMask) -> None:
        messages, chosen, times = self._messages, _narrow_mask(mask, cancelled), times[cancelled]
        home, owner = messages.home[chosen], messages.owner[chosen]
        ids, net = new_ids(self._rng, times), self._network_delay(home, owner)
        self._write_events(
            times,
            0,
            np.where(home == owner, SynthEvent.TASK_CANCEL_LOCAL, SynthEvent.TASK_CANCEL),
            id=ids,
            node=home,
            source=messages.source[chosen],
            to_node=owner + 1,
            to_agent=messages.target[chosen] + 1,
            ref=messages.event_id[chosen],
            corr=messages.event_id[chosen],
            expires=times + TTL,
        )
        back: dict[str, FieldValue] = {"node": owner, "source": messages.target[chosen], "ref": ids}
        back |= {"to_node": home + 1, "corr": messages.event_id[chosen]}
        self._write_events(times + net, 1, SynthEvent.ACCEPTED, **back)
        self._write_events(times + net + 20, 2, SynthEvent.PROCESSED, **back)


def _narrow_mask(mask: RowMask, which: RowMask) -> RowMask:
    """The mask reduced to the rows that `which` selects among its true rows."""
    chosen = np.zeros_like(mask)
    chosen[np.flatnonzero(mask)[which]] = True
    return chosen
