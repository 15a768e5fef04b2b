"""Finds incidents in cases and activity: few rows in, a handful out.

An incident covers an *island*: rows that follow each other without a gap of a whole window. Its id
is made of its class, its subject and its start, so finding it again changes nothing.
"""

import hashlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.arrow import table_of
from gatepost.pipeline.tables.facts import ABSENT, NONE, Column
from gatepost.pipeline.tables.groups import Columns, Groups, earlier
from gatepost.pipeline.tables.schemas import INCIDENTS
from gatepost.pipeline.tables.slo import window_of

SAMPLES: Final = 5

Row = dict[str, Any]


def identity(*parts: object) -> str:
    """An id made of these parts alone, so that it is the same every time."""
    joined = "\x1f".join("" if part is None else str(part) for part in parts)
    return hashlib.sha256(joined.encode()).hexdigest()[:32]


def slow(cases: Columns, as_of: int, objectives: Objectives) -> Column:
    """Whether each case was accepted, but not processed or replied to within the SLA."""
    accepted_at, ended_at = cases.number("accepted_at"), cases.number("ended_at")
    took = np.where(ended_at == ABSENT, as_of, ended_at) - accepted_at
    late: Column = (accepted_at != ABSENT) & (took > objectives.sla * 1000)
    return late


def incidents(cases: Columns, activity: Columns, as_of: int, objectives: Objectives) -> pa.Table:
    """Find all incidents as of the latest known event."""
    return table_of(INCIDENTS, _Found(cases, activity, as_of, objectives).rows())


# Node, agent and capability.
_Subject = tuple[str | None, str | None, str | None]


class _Silence(NamedTuple):
    """A node wrote nothing from `since` to `until`; `until` is ABSENT while it is still silent."""

    node: str
    since: int
    until: int


class _Found:
    """Finds the incidents of each class, one method for each."""

    def __init__(
        self, cases: Columns, activity: Columns, as_of: int, objectives: Objectives
    ) -> None:
        self._cases = cases
        self._activity = activity
        self._as_of = as_of
        self._objectives = objectives
        self._sent_at = cases.number("sent_at")
        self._left_at = earlier(cases.number("accepted_at"), cases.number("dead_at"))

    def rows(self) -> Iterator[Row]:
        yield from self._sla_breaches()
        dead = self._cases.number("dead_at") != ABSENT
        unroutable = self._cases.is_any("reason", "no_route")
        yield from self._routing_misses(np.flatnonzero(dead & unroutable))
        yield from self._bursts(np.flatnonzero(dead & ~unroutable))
        yield from self._backlogs()
        yield from self._silent()

    # -- slow or given-up deliveries

    def _sla_breaches(self) -> Iterator[Row]:
        late = np.flatnonzero(slow(self._cases, self._as_of, self._objectives))
        accepted_at, ended_at = self._cases.number("accepted_at"), self._cases.number("ended_at")
        for rows in self._islands(late, accepted_at, "to_node"):
            node, agent, capability = self._subject(rows, "to_node")
            yield self._incident(
                "sla_breach",
                (node, agent, capability),
                (int(accepted_at[rows].min()), _end(ended_at[rows])),
                rows,
                f"{agent} of {node} accepted {len(rows)} deliveries and did not finish them"
                f" within {self._objectives.sla} s",
            )

    def _routing_misses(self, dead: Column) -> Iterator[Row]:
        for rows in self._islands(dead, self._cases.number("dead_at"), "node"):
            node, agent, _ = subject = self._subject(rows, "node")
            sentence = f"{len(rows)} deliveries from {node} to {agent} had no route"
            yield self._dead("routing_miss", subject, rows, sentence)

    def _bursts(self, dead: Column) -> Iterator[Row]:
        dead_at = self._cases.number("dead_at")
        for rows in self._islands(dead, dead_at, "node"):
            if _densest(dead_at[rows], self._objectives.window_ms) >= self._objectives.burst:
                node, agent, _ = subject = self._subject(rows, "node")
                sentence = f"{node} gave up on {len(rows)} deliveries to {agent}"
                yield self._dead("dead_letter_burst", subject, rows, sentence)

    def _islands(self, rows: Column, at: Column, node: str) -> Iterator[Column]:
        """The rows of one node, agent and capability, split where a whole window has none."""
        keys = [self._cases.text(name)[rows] for name in (node, "to_agent", "capability_id")]
        for each in Groups.runs(at[rows], self._objectives.window_ms, *keys).each():
            yield rows[each]

    def _subject(self, rows: Column, node: str) -> _Subject:
        first = self._cases.table.slice(int(rows[0]), 1)
        node, agent, capability = (
            first[name][0].as_py() for name in (node, "to_agent", "capability_id")
        )
        return node, agent, capability

    def _dead(self, name: str, subject: _Subject, rows: Column, sentence: str) -> Row:
        dead_at = self._cases.number("dead_at")[rows]
        lasted = int(self._sent_at[rows].min()), int(dead_at.max())
        return self._incident(name, subject, lasted, rows, sentence, int(dead_at.min()))

    # -- waiting deliveries

    def _backlogs(self) -> Iterator[Row]:
        """Growing backlogs of agents; where a whole node is silent, one backlog for the node."""
        by_node: dict[_Silence, list[Column]] = {}
        for node, agent, begin, end in self._growing():
            rows = self._waiting(node, agent, end)
            silences = [
                silence
                for silence in self._silences
                if silence.node == node and begin < self._end_of(silence) and end > silence.since
            ]
            for silence in silences:
                by_node.setdefault(silence, []).append(rows)
            if len(rows) and not silences:
                yield self._backlog(node, agent, rows, begin)
        for silence, waiting in by_node.items():
            if len(rows := np.unique(np.concatenate(waiting))):
                yield self._backlog(silence.node, None, rows, silence.since)

    def _backlog(self, node: str, agent: str | None, rows: Column, since: int) -> Row:
        lasted = int(self._sent_at[rows].min()), _end(self._left_at[rows])
        sentence = (
            f"mail for {agent or node} piled up for more than {self._objectives.backlog} s:"
            f" {len(rows)} deliveries waited"
        )
        return self._incident("backlog", (node, agent, None), lasted, rows, sentence, since)

    def _growing(self) -> Iterator[tuple[str, str, int, int]]:
        """Node, agent, start and end of each run of windows in which the agent's backlog grew."""
        objectives, step = self._objectives, self._objectives.window_ms
        node, agent, window, net = self._flows()
        runs = Groups.runs(window, step, node, agent)
        least = objectives.backlog // objectives.window + 1
        enough = (runs.sizes >= least) & (runs.sum(net) >= objectives.backlog_least)
        names = self._cases.names(runs, [node, agent])
        begins, ends = runs.least(window).tolist(), (runs.most(window) + step).tolist()
        for run in np.flatnonzero(enough).tolist():
            yield *names[run], begins[run], ends[run]

    def _flows(self) -> tuple[Column, Column, Column, Column]:
        """Node, agent, window and growth for windows at whose end more waited than at its start."""
        sent_in = window_of(self._sent_at, self._objectives)
        left = self._left_at != ABSENT
        left_in = np.where(left, window_of(self._left_at, self._objectives), ABSENT)
        node, agent = self._cases.text("to_node"), self._cases.text("to_agent")
        waited = (node != NONE) & (agent != NONE) & (~left | (left_in > sent_in))
        rows = np.concatenate([np.flatnonzero(waited), np.flatnonzero(waited & left)])
        window = np.concatenate([sent_in[waited], left_in[waited & left]])
        change = np.where(np.arange(len(rows)) < np.count_nonzero(waited), 1, -1)
        groups = Groups.alike(node[rows], agent[rows], window)
        grows = (net := groups.sum(change)) > 0
        return (
            groups.first(node[rows])[grows],
            groups.first(agent[rows])[grows],
            groups.first(window)[grows],
            net[grows],
        )

    def _waiting(self, node: str, agent: str, at: int) -> Column:
        """The cases sent to the agent before `at` that were neither accepted nor dead by then."""
        rows = self._by_agent[node, agent]
        left_at = np.where(self._left_at[rows] == ABSENT, self._as_of + 1, self._left_at[rows])
        found: Column = rows[(self._sent_at[rows] < at) & (left_at >= at)]
        return found

    @cached_property
    def _by_agent(self) -> dict[tuple[str | None, ...], Column]:
        return self._grouped("to_node", "to_agent")

    @cached_property
    def _by_node(self) -> dict[tuple[str | None, ...], Column]:
        return self._grouped("to_node")

    def _grouped(self, *names: str) -> dict[tuple[str | None, ...], Column]:
        """Texts of these columns → rows of the cases that have them."""
        keys = [self._cases.text(name) for name in names]
        groups = Groups.alike(*keys)
        return dict(zip(self._cases.names(groups, keys), groups.each(), strict=True))

    # -- silence

    @cached_property
    def _silences(self) -> dict[_Silence, Column]:
        """Long silences of nodes for which deliveries waited → rows of these deliveries."""
        found = ((silence, self._missed(silence)) for silence in self._gaps())
        return {silence: rows for silence, rows in found if len(rows)}

    def _gaps(self) -> Iterator[_Silence]:
        """All gaps in the activity of nodes that are longer than the objective."""
        node = self._activity.text("node")
        windows = Groups.alike(node, self._activity.number("window_start"))
        node_of = windows.first(node)
        since = windows.most(self._activity.number("last_at"))
        first_at = windows.least(self._activity.number("first_at"))
        same_node = node_of[1:] == node_of[:-1]
        until = np.append(
            np.where(same_node, first_at[1:], ABSENT), [ABSENT] * min(1, len(node_of))
        )
        silent_ms = np.where(until == ABSENT, self._as_of, until) - since
        long = np.flatnonzero(silent_ms > self._objectives.silence * 1000)
        names = self._activity.texts(node_of[long]).to_pylist()
        return map(_Silence, names, since[long].tolist(), until[long].tolist())

    def _missed(self, silence: _Silence) -> Column:
        """The cases sent to the node during the silence that waited until its end."""
        rows = self._by_node.get((silence.node,), np.zeros(0, np.int64))
        sent_at, left_at = self._sent_at[rows], self._left_at[rows]
        waited = left_at == ABSENT
        if silence.until != ABSENT:
            waited |= left_at >= silence.until
        found: Column = rows[(sent_at > silence.since) & (sent_at < self._end_of(silence)) & waited]
        return found

    def _end_of(self, silence: _Silence) -> int:
        return self._as_of if silence.until == ABSENT else silence.until

    def _silent(self) -> Iterator[Row]:
        for silence, rows in self._silences.items():
            sentence = (
                f"{silence.node} wrote nothing for more than {self._objectives.silence} s"
                f" while {len(rows)} deliveries waited for it"
            )
            until = None if silence.until == ABSENT else silence.until
            lasted = silence.since, until
            yield self._incident("silent_node", (silence.node, None, None), lasted, rows, sentence)

    def _incident(
        self,
        name: str,
        subject: _Subject,
        lasted: tuple[int, int | None],
        rows: Column,
        sentence: str,
        since: int | None = None,
    ) -> Row:
        """Build the row; `since` replaces the start in the id where the start may still change."""
        node, agent, capability = subject
        return {
            "incident_id": identity(name, *subject, lasted[0] if since is None else since),
            "class": name,
            "node": node,
            "agent": agent,
            "capability_id": capability,
            "started_at": lasted[0],
            "ended_at": lasted[1],
            "count": len(rows),
            "samples": self._samples(rows),
            "sentence": sentence,
        }

    def _samples(self, rows: Column) -> list[str]:
        """The first few conversations, in an order that is the same every time."""
        rank = self._cases.rank("corr_id", rows)
        first = np.lexsort((rank, self._sent_at[rows]))[:SAMPLES]
        names: list[str] = self._cases.table["corr_id"].take(pa.array(rows[first])).to_pylist()
        return names


def _end(times: Column) -> int | None:
    """The last of these times, or None while one is missing."""
    return None if np.any(times == ABSENT) else int(times.max())


def _densest(at: Column, width: int) -> int:
    """The most times in any stretch of this width."""
    at = np.sort(at)
    return int(np.max(np.searchsorted(at, at, "right") - np.searchsorted(at, at - width)))
