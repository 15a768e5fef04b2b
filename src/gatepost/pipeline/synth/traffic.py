"""Ordinary traffic: whole lives of messages and tasks, thousands at a time, none of them wrong."""

from enum import IntEnum
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gatepost.pipeline.synth.records import Records, T, new_ids, records
from gatepost.pipeline.synth.world import (
    DRAIN,
    START,
    TTL,
    Ints,
    Value,
    Words,
    World,
    arrivals,
)

Mask = NDArray[np.bool_]

# What one message and its receipts come to, on average.
EVENTS_PER_MESSAGE: Final = 3.83
ACCEPT_TIMEOUT: Final = 20_000
SHORT_TTL: Final = 60_000
# Dead letters in ordinary traffic are rarer than one in ten minutes for each node.
_DEAD_EVERY = 600_000
_FAR = 1 << 41


class Story(IntEnum):
    """What happens to a message."""

    PLAIN = 0
    REPLY = 1
    RETRY = 2
    OFFER = 3
    FALLBACK = 4
    MOVED = 5
    REPEATED = 6
    BAD_END = 7
    TASK = 8
    AMENDED = 9
    EXPIRED = 10
    REFUSED = 11


_CHANCES = {
    Story.REPLY: 0.22,
    Story.RETRY: 0.010,
    Story.OFFER: 0.050,
    Story.FALLBACK: 0.005,
    Story.MOVED: 0.004,
    Story.REPEATED: 0.008,
    Story.BAD_END: 0.020,
    Story.TASK: 0.050,
    Story.AMENDED: 0.0005,
}
_BAD_ENDS = np.array([T.PROCESSED_FAILED, T.PROCESSED_DEAD, T.PROCESSED_EXPIRED])
_REMOTE_ONLY = (
    *(Story.RETRY, Story.OFFER, Story.REPEATED, Story.AMENDED),
    *(Story.EXPIRED, Story.REFUSED),
)


class Order:
    """Rows sorted by pair, and what keeps each pair in order, from chunk to chunk."""

    def __init__(self, pair: Ints) -> None:
        self.pair = pair
        new = np.ones(len(pair), dtype=bool)
        new[1:] = pair[1:] != pair[:-1]
        self.first = np.flatnonzero(new)
        self.last = np.append(self.first[1:], len(pair)) - 1
        self.place = np.cumsum(new) - 1
        self.rank = np.arange(len(pair)) - self.first[self.place]

    def number(self, counters: Ints) -> Ints:
        """The next numbers of each pair."""
        numbers: Ints = counters[self.pair] + self.rank + 1
        counters[self.pair[self.last]] = numbers[self.last]
        return numbers

    def strictly(self, times: Ints, latest: Ints) -> Ints:
        """The times, none earlier than wanted, each later than the one before it in its pair."""
        if not len(times):
            return times
        free = times - self.rank
        free[self.first] = np.maximum(free[self.first], latest[self.pair[self.first]] + 1)
        free += self.place * _FAR
        ordered = np.maximum.accumulate(free) - self.place * _FAR + self.rank
        latest[self.pair[self.last]] = ordered[self.last]
        return np.asarray(ordered, dtype=np.int64)


class Totals(Struct, rename="camel"):
    """What was sent, for whoever counts again."""

    messages: int = 0
    replies: int = 0
    tasks: int = 0
    dead_letters: int = 0


class Lines(Struct):
    """Where each pair stands: numbers given, last accepted, last processed."""

    given: Ints
    accepted: Ints
    processed: Ints

    @classmethod
    def empty(cls, pairs: int) -> "Lines":
        return cls(*(np.zeros(pairs, dtype=np.int64) for _ in range(3)))


class Sent(Struct):
    """One chunk of messages, sorted by pair: who, where, when and what becomes of them."""

    story: Ints
    order: Order
    source: Ints
    target: Ints
    home: Ints
    owner: Ints
    standby: Ints
    sent: Ints
    id: Words
    number: Ints
    expires: Ints

    def only(self, mask: Mask) -> dict[str, Ints]:
        names = ("source", "target", "home", "owner", "standby", "sent", "number", "expires")
        return {name: getattr(self, name)[mask] for name in names}


class Traffic:
    def __init__(self, world: World, messages: int) -> None:
        self.world = world
        self.total = messages
        self.totals = Totals()
        self.failed_tasks = np.zeros(len(world.capabilities), dtype=np.int64)
        self._there = Lines.empty(len(world.pair_from))
        self._back = Lines.empty(len(world.pair_from))
        self._owner = np.array(world.owner)
        self._standby = np.array(world.standby)
        rate = messages / world.duration / len(world.nodes)
        self._dead_chance = min(0.004, 1 / (_DEAD_EVERY * rate))

    def chunk(self, first: int, last: int) -> Records:
        """Every event that the messages `first` to `last` lead to."""
        rng = np.random.default_rng([self.world.seed, 3, first])
        sent = self._draw(rng, first, last)
        return np.concatenate(_Chunk(self, sent, rng).tell())

    def _draw(self, rng: np.random.Generator, first: int, last: int) -> Sent:
        world = self.world
        pair = np.searchsorted(world.pair_weight, rng.random(last - first))
        times = arrivals(world, first, last, self.total, rng)
        sorted_by_pair = np.argsort(pair, kind="stable")
        pair, times = pair[sorted_by_pair], times[sorted_by_pair]
        source, target = world.pair_from[pair], world.pair_to[pair]
        home, owner = self._owner[source], self._owner[target]
        standby = self._standby[target]
        times = self.away(home, times)
        order = Order(pair)
        story = self._stories(rng, home, owner, standby)
        short = np.isin(story, (Story.EXPIRED, Story.AMENDED))
        return Sent(
            story=story,
            order=order,
            source=source,
            target=target,
            home=home,
            owner=owner,
            standby=standby,
            sent=times,
            id=new_ids(rng, times),
            number=order.number(self._there.given),
            expires=times + np.where(short, SHORT_TTL, TTL),
        )

    def _stories(self, rng: np.random.Generator, home: Ints, owner: Ints, standby: Ints) -> Ints:
        dead = {Story.EXPIRED: 0.5 * self._dead_chance, Story.REFUSED: 0.5 * self._dead_chance}
        chances = _CHANCES | dead
        edges = np.cumsum(list(chances.values()))
        names = np.array([*chances, Story.PLAIN])
        story = names[np.searchsorted(edges, rng.random(len(home)), side="right")]
        away = list(self.world.away)
        ends = ~np.isin(np.stack((home, owner)), away).any(axis=0)
        moves = np.isin(story, (Story.FALLBACK, Story.MOVED))
        remote = home != owner
        possible = np.where(np.isin(story, _REMOTE_ONLY), remote, True)
        possible &= ~moves | (remote & ends & ~np.isin(standby, away))
        possible &= (story != Story.TASK) | ends
        # A sender that is away would leave an accepted offer without an answer for too long.
        possible &= (story != Story.OFFER) | ~np.isin(home, away)
        return np.where(possible, story, Story.PLAIN)

    def away(self, nodes: Ints, times: Ints, drain: int = 0) -> Ints:
        """The times, put off to after its return where a node is away. Order is kept."""
        for node, window in self.world.away.items():
            start, catch_up = window.start + drain, window.catch_up
            there = (nodes == node) & (times >= start) & (times < window.end + catch_up)
            late = (times - start) * catch_up // (window.end - start + catch_up)
            times = np.where(there, window.end + late, times)
        return times

    def later(self, nodes: Ints, times: Ints) -> Ints:
        """The same for what finishes something, which a node still does before it stops."""
        return self.away(nodes, times, DRAIN)


class _Chunk:
    """One chunk of messages while its events are written."""

    def __init__(self, traffic: Traffic, sent: Sent, rng: np.random.Generator) -> None:
        self._traffic = traffic
        self._sent = sent
        self._rng = rng
        self._out: list[Records] = []

    def tell(self) -> list[Records]:
        sent, traffic, lines = self._sent, self._traffic, self._traffic._there
        taker = np.where(self._is(Story.FALLBACK, Story.MOVED), sent.standby, sent.owner)
        self._first_sends()
        arrived = self._arrivals()
        accepted = sent.order.strictly(traffic.away(taker, arrived), lines.accepted)
        begun = self._confirmed(taker, accepted)
        dead = self._is(Story.EXPIRED, Story.REFUSED)
        work = np.where(self._is(Story.TASK), self._short(len(begun)), self._work(len(begun)))
        wanted = np.where(dead, 0, traffic.later(taker, begun + work))
        processed = sent.order.strictly(wanted, lines.processed)
        self._receipts(taker, accepted, processed, ~dead)
        self._repeat(accepted, processed)
        self._amend(processed)
        self._give_up(arrived, processed)
        self._replies(processed)
        self._tasks(accepted, processed)
        return self._out

    # -- durations

    def _net(self, a: Ints, b: Ints) -> Ints:
        slow = np.clip(self._rng.lognormal(3.2, 0.6, len(a)), 1, 5000)
        return np.where(a == b, 1 + (slow / 20), slow).astype(np.int64)

    def _work(self, count: int) -> Ints:
        return np.clip(self._rng.lognormal(6.0, 1.0, count), 5, 20_000).astype(np.int64)

    def _short(self, count: int) -> Ints:
        return self._rng.integers(20, 400, count)

    # -- writing

    def _is(self, *stories: Story) -> Mask:
        return np.isin(self._sent.story, stories)

    def _write(self, times: Ints, step: int, template: Value, **fields: Value) -> None:
        fields.setdefault("id", new_ids(self._rng, times))
        self._out.append(records(times, step, template, **fields))

    def _ack(
        self,
        mask: Mask,
        times: Ints,
        template: Value,
        node: Ints,
        step: int = 1,
        **more: Value,
    ) -> None:
        """A receipt for each message of the mask, back to where it came from."""
        sent = self._sent
        self._write(
            times,
            step,
            template,
            node=node,
            source=sent.target[mask],
            to_node=sent.home[mask] + 1,
            ref=sent.id[mask],
            corr=sent.id[mask],
            **more,
        )

    def _from_sender(
        self,
        mask: Mask,
        times: Ints,
        template: Value,
        step: int,
        to: Ints,
        **more: Value,
    ) -> None:
        """A signal or dead letter about each message of the mask."""
        sent = self._sent
        self._write(
            times,
            step,
            template,
            node=sent.home[mask],
            source=sent.source[mask],
            to_node=to + 1,
            ref=sent.id[mask],
            corr=sent.id[mask],
            **more,
        )

    def _send_again(
        self, mask: Mask, times: Ints, template: int, to: Ints, attempt: int, payload: Value
    ) -> None:
        sent = self._sent
        self._write(
            times,
            0,
            template,
            id=sent.id[mask],
            node=sent.home[mask],
            source=sent.source[mask],
            to_node=to + 1,
            to_agent=sent.target[mask] + 1,
            corr=sent.id[mask],
            pair_seq=sent.number[mask],
            expires=sent.expires[mask],
            attempt=attempt,
            payload=payload,
        )

    # -- the steps of a life

    def _first_sends(self) -> None:
        sent, count = self._sent, len(self._sent.sent)
        task, local = self._is(Story.TASK), sent.home == sent.owner
        template = np.where(local, T.MESSAGE_LOCAL, T.MESSAGE)
        offered = self._is(Story.OFFER, Story.FALLBACK)
        template = np.where(offered, T.MESSAGE_OFFER, template)
        template = np.where(task, np.where(local, T.TASK_LOCAL, T.TASK), template)
        payload = self._rng.integers(1, 257, count)
        large = self._rng.random(count) < 0.02
        self._capability = self._rng.integers(0, 5, count)
        self._write(
            sent.sent,
            0,
            template,
            id=sent.id,
            node=sent.home,
            source=sent.source,
            to_node=sent.owner + 1,
            to_agent=sent.target + 1,
            corr=sent.id,
            causation=self._replayed(),
            pair_seq=sent.number,
            expires=sent.expires,
            payload=np.where(large, 0, payload),
            blob=np.where(large, self._rng.integers(1, 65, count), 0),
            capability=np.where(task, self._capability + 1, 0),
        )
        self._traffic.totals.tasks += int(task.sum())
        self._traffic.totals.messages += int((~task).sum())

    def _replayed(self) -> Words:
        """Some dead letters are sent again: the next message of their pair says so."""
        sent = self._sent
        dead = self._is(Story.EXPIRED, Story.REFUSED)
        follows = np.zeros(len(dead), dtype=bool)
        follows[1:] = dead[:-1] & (sent.order.rank[1:] > 0)
        follows[1:] &= sent.sent[1:] > sent.sent[:-1] + 2 * SHORT_TTL
        follows &= self._is(Story.PLAIN)
        cause = np.zeros_like(sent.id)
        cause[follows] = sent.id[np.flatnonzero(follows) - 1]
        return cause

    def _arrivals(self) -> Ints:
        """When each message is first there to be accepted, or is out of its pair's way."""
        sent = self._sent
        net = self._net(sent.home, sent.owner)
        arrived = sent.sent + net
        arrived = self._retries(arrived, net)
        arrived = self._reroutes(arrived, net)
        expired = self._is(Story.EXPIRED)
        return np.where(expired, sent.sent + SHORT_TTL + 2 * net, arrived)

    def _retries(self, arrived: Ints, net: Ints) -> Ints:
        """No answer in time: the same event again, as a header only."""
        sent, traffic = self._sent, self._traffic
        again = sent.sent + ACCEPT_TIMEOUT + self._rng.integers(0, 400, len(net))
        once = self._is(Story.RETRY, Story.EXPIRED)
        twice = self._is(Story.RETRY) & (self._rng.random(len(net)) < 0.3)
        for attempt, mask in ((2, once), (3, twice)):
            again = traffic.later(sent.home, again)
            self._send_again(
                mask, again[mask], T.MESSAGE_RETRY, sent.owner[mask], attempt, payload=0
            )
            arrived = np.where(mask, again + net, arrived)
            again = again + 4_000
        return arrived

    def _reroutes(self, arrived: Ints, net: Ints) -> Ints:
        """To the standby: because the owner did not answer, or because it refused."""
        sent = self._sent
        silent, moved = self._is(Story.FALLBACK), self._is(Story.MOVED)
        refused = moved | self._is(Story.REFUSED)
        told = self._traffic.away(sent.owner, arrived)[refused]
        self._ack(refused, told, T.REFUSED, sent.owner[refused])
        arrived[refused] = told + net[refused]
        leaves = np.where(silent, sent.sent + ACCEPT_TIMEOUT + net, arrived)
        for mask, template in ((silent, T.MESSAGE_FALLBACK), (moved, T.MESSAGE_MOVED)):
            times, to = leaves[mask], sent.standby[mask]
            self._from_sender(mask, times, T.WITHDRAW, 0, sent.owner[mask])
            payload = self._rng.integers(1, 257, len(times))
            self._send_again(mask, times, template, to, attempt=2, payload=payload)
        late = silent & (self._rng.random(len(net)) < 0.5)
        # Its offer comes too late and is never confirmed, so it never engages.
        self._ack(late, leaves[late] + 3 * net[late], T.ACCEPTED, sent.owner[late])
        return np.where(silent | moved, leaves + self._net(sent.home, sent.standby), arrived)

    def _confirmed(self, taker: Ints, accepted: Ints) -> Ints:
        """When work may begin: at once, or, for an offer, after its confirmation."""
        sent = self._sent
        offer = self._is(Story.OFFER, Story.FALLBACK, Story.MOVED)
        net = self._net(sent.home, taker)
        confirmed = self._traffic.later(sent.home, accepted + net)
        self._from_sender(offer, confirmed[offer], T.CONFIRM, 2, taker[offer])
        return np.where(offer, confirmed + net, accepted)

    def _receipts(self, taker: Ints, accepted: Ints, processed: Ints, taken: Mask) -> None:
        plain = taken & ~self._is(Story.TASK)
        self._ack(plain, accepted[plain], T.ACCEPTED, taker[plain])
        bad = self._is(Story.BAD_END)
        how = np.where(bad, _BAD_ENDS[self._rng.integers(0, 3, len(bad))], T.PROCESSED)
        self._ack(taken, processed[taken], how[taken], taker[taken], step=2)

    def _repeat(self, accepted: Ints, processed: Ints) -> None:
        """The sender asks again though it was accepted, and hears the same once more."""
        sent, traffic, mask = self._sent, self._traffic, self._is(Story.REPEATED)
        again = traffic.later(sent.home, sent.sent + ACCEPT_TIMEOUT)[mask]
        self._send_again(mask, again, T.MESSAGE_RETRY, sent.owner[mask], attempt=2, payload=0)
        node = sent.owner[mask]
        heard = traffic.later(node, np.maximum(again, accepted[mask]) + 7)
        self._ack(mask, heard, T.ACCEPTED, node)
        over = np.flatnonzero(mask)[processed[mask] < heard]
        both = np.zeros_like(mask)
        both[over] = True
        self._ack(both, heard[processed[mask] < heard], T.PROCESSED, sent.owner[both], step=2)

    def _amend(self, processed: Ints) -> None:
        """It was processed, but its sender, cut off, had given up before it heard."""
        sent, mask = self._sent, self._is(Story.AMENDED)
        wanted = np.maximum(sent.expires, processed + 500)[mask]
        times = self._traffic.later(sent.home[mask], wanted)
        self._dead_letter(mask, times, T.DEAD_EXPIRED, attempts=1)

    def _give_up(self, arrived: Ints, processed: Ints) -> None:
        sent, later = self._sent, self._traffic.later
        for story, template, attempts in (
            (Story.EXPIRED, T.DEAD_EXPIRED, 2),
            (Story.REFUSED, T.DEAD_REFUSED, 1),
        ):
            mask = self._is(story)
            wanted = sent.expires[mask] if story == Story.EXPIRED else arrived[mask]
            times = later(sent.home[mask], wanted)
            self._dead_letter(mask, times, template, attempts)
            settled = np.flatnonzero(mask)[processed[mask] < times]
            told = np.zeros_like(mask)
            told[settled] = True
            self._from_sender(
                told,
                times[processed[mask] < times],
                T.SETTLED,
                1,
                sent.owner[told],
                to_agent=sent.target[told] + 1,
                number=sent.number[told],
            )

    def _dead_letter(self, mask: Mask, times: Ints, template: int, attempts: int) -> None:
        sent = self._sent
        self._from_sender(
            mask, times, template, 0, sent.owner[mask], number=attempts, other=sent.number[mask]
        )
        self._traffic.totals.dead_letters += int(mask.sum())

    def _replies(self, processed: Ints) -> None:
        sent, traffic, mask = self._sent, self._traffic, self._is(Story.REPLY)
        lines, order = traffic._back, Order(sent.order.pair[mask])
        home, owner, times = sent.home[mask], sent.owner[mask], processed[mask]
        ids = new_ids(self._rng, times)
        about: dict[str, Value] = {"corr": sent.id[mask]}
        self._write(
            times,
            1,
            np.where(home == owner, T.REPLY_LOCAL, T.REPLY),
            id=ids,
            node=owner,
            source=sent.target[mask],
            to_node=home + 1,
            to_agent=sent.source[mask] + 1,
            ref=sent.id[mask],
            pair_seq=order.number(lines.given),
            expires=times + TTL,
            payload=self._rng.integers(1, 257, len(times)),
            **about,
        )
        back: dict[str, Value] = {"node": home, "source": sent.source[mask], "ref": ids}
        back["to_node"] = owner + 1
        arrived = traffic.away(home, times + self._net(home, owner))
        accepted = order.strictly(arrived, lines.accepted)
        self._write(accepted, 1, T.ACCEPTED, **back, **about)
        ended = order.strictly(
            traffic.later(home, accepted + self._short(len(times))), lines.processed
        )
        self._write(ended, 2, T.PROCESSED, **back, **about)
        traffic.totals.replies += len(times)

    def _tasks(self, accepted: Ints, processed: Ints) -> None:
        sent, mask, rng = self._sent, self._is(Story.TASK), self._rng
        capability = self._capability[mask]
        medians = np.array([c.median_secs for c in self._traffic.world.capabilities])
        wanted = rng.lognormal(np.log(medians[capability] * 1000), 0.5)
        took = np.clip(wanted, 500, 300_000).astype(np.int64)
        begun, ended = processed[mask], processed[mask] + took
        promised = ((ended - accepted[mask]) * 13 // 10_000) + 5
        eta: dict[str, Value] = {
            "number": promised,
            "other": accepted[mask] + START + promised * 1000,
        }
        self._ack(mask, accepted[mask], T.ACCEPTED_TASK, sent.owner[mask], 1, **eta)
        self._of_task(mask, begun, T.TASK_ACCEPT, **eta)
        chance = rng.random(len(took))
        failed, cancelled = chance < 0.004, chance > 0.99
        self._updates(mask, begun, took, cancelled)
        self._cancel(mask, begun + took // 2, cancelled)
        np.add.at(self._traffic.failed_tasks, capability[failed], 1)
        for template, which in ((T.TASK_FAILED, failed), (T.TASK_COMPLETE, ~failed & ~cancelled)):
            chosen = _within(mask, which)
            self._of_task(chosen, ended[which], template)

    def _of_task(self, mask: Mask, times: Ints, template: int, **more: Value) -> None:
        """What the owner tells the creator of a task."""
        sent = self._sent
        self._ack(
            mask,
            times,
            template,
            sent.owner[mask],
            1,
            to_agent=sent.source[mask] + 1,
            **more,
        )

    def _updates(self, mask: Mask, begun: Ints, took: Ints, cancelled: Mask) -> None:
        count = np.where(cancelled, 0, self._rng.integers(0, 4, len(took)))
        for update in (1, 2, 3):
            which = count >= update
            parts = count[which] + 1
            times = begun[which] + took[which] * update // parts
            told = 1000 * update // parts
            self._of_task(_within(mask, which), times, T.TASK_UPDATE, number=told)

    def _cancel(self, mask: Mask, times: Ints, cancelled: Mask) -> None:
        sent, chosen, times = self._sent, _within(mask, cancelled), times[cancelled]
        home, owner = sent.home[chosen], sent.owner[chosen]
        ids, net = new_ids(self._rng, times), self._net(home, owner)
        self._write(
            times,
            0,
            np.where(home == owner, T.TASK_CANCEL_LOCAL, T.TASK_CANCEL),
            id=ids,
            node=home,
            source=sent.source[chosen],
            to_node=owner + 1,
            to_agent=sent.target[chosen] + 1,
            ref=sent.id[chosen],
            corr=sent.id[chosen],
            expires=times + TTL,
        )
        back: dict[str, Value] = {"node": owner, "source": sent.target[chosen], "ref": ids}
        back |= {"to_node": home + 1, "corr": sent.id[chosen]}
        self._write(times + net, 1, T.ACCEPTED, **back)
        self._write(times + net + 20, 2, T.PROCESSED, **back)


def _within(mask: Mask, which: Mask) -> Mask:
    """The part of the mask's rows that `which` chooses among them."""
    chosen = np.zeros_like(mask)
    chosen[np.flatnonzero(mask)[which]] = True
    return chosen
