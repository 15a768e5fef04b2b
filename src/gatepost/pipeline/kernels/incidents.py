"""Finds incidents in cases and activity: few rows in, a handful out.

An incident covers an *island*: rows that follow each other without a gap of a whole window. Its id
is made of its class, its subject and its start, so finding it again changes nothing.
"""

import hashlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from gatepost.pipeline.kernels.columns import ABSENT, NONE, Codes, Flags, Numbers
from gatepost.pipeline.kernels.groups import CodedColumns, Groups, earliest_known
from gatepost.pipeline.kernels.slo import window_start
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.tables.arrow_schemas import arrow_schema, rows_to_table
from gatepost.pipeline.tables.schemas import ACTIVITY, INCIDENTS

if TYPE_CHECKING:
    from gatepost.pipeline.read_plan import SetAside

MOST_SAMPLES: Final = 5
_NO_ACTIVITY = CodedColumns(arrow_schema(ACTIVITY).empty_table())

Row = dict[str, Any]


def stable_id(*parts: object) -> str:
    """An id derived from these parts alone, so that it is always the same."""
    joined = "\x1f".join("" if part is None else str(part) for part in parts)
    return hashlib.sha256(joined.encode()).hexdigest()[:32]


def breaches_sla(cases: CodedColumns, as_of: int, objectives: Objectives) -> Flags:
    """Whether each case was accepted, but not processed or replied to within the SLA."""
    accepted_at, ended_at = cases.number_column("accepted_at"), cases.number_column("ended_at")
    took = np.where(ended_at == ABSENT, as_of, ended_at) - accepted_at
    late: Flags = (accepted_at != ABSENT) & (took > objectives.sla * 1000)
    return late


def end_after(last: int, as_of: int, objectives: Objectives) -> int | None:
    """The end of a series of moments: the last one, after a window without another."""
    return None if as_of - last <= objectives.window_ms else last


def find_incidents(
    cases: CodedColumns, activity: CodedColumns, as_of: int, objectives: Objectives
) -> pa.Table:
    """Find all incidents as of the latest known event."""
    parts = (
        find_receiver_incidents(cases, activity, as_of, objectives),
        find_sender_incidents(cases, as_of, objectives),
        find_clock_skews(cases, as_of, objectives),
    )
    return pa.concat_tables(parts)


def find_receiver_incidents(
    cases: CodedColumns, activity: CodedColumns, as_of: int, objectives: Objectives
) -> pa.Table:
    """Find the incidents of nodes that were sent to; needs all cases and activity of a node."""
    finder = _IncidentFinder(cases, activity, as_of, objectives)
    return rows_to_table(INCIDENTS, finder.receiver_rows())


def find_sender_incidents(cases: CodedColumns, as_of: int, objectives: Objectives) -> pa.Table:
    """Find the incidents of nodes that gave up; needs all dead letters of a node."""
    finder = _IncidentFinder(cases, _NO_ACTIVITY, as_of, objectives)
    return rows_to_table(INCIDENTS, finder.sender_rows())


def find_clock_skews(cases: CodedColumns, as_of: int, objectives: Objectives) -> pa.Table:
    """Find clocks that differ; needs all cases that `is_skewed` selects."""
    finder = _IncidentFinder(cases, _NO_ACTIVITY, as_of, objectives)
    return rows_to_table(INCIDENTS, finder.clock_skew_rows())


def is_skewed(cases: CodedColumns, objectives: Objectives) -> Flags:
    """Whether each case was accepted before it was sent, by the clocks of its nodes."""
    accepted_at = cases.number_column("accepted_at")
    ahead_ms = cases.number_column("sent_at") - accepted_at
    skewed: Flags = (accepted_at != ABSENT) & (ahead_ms > objectives.clock_skew * 1000)
    return skewed


def describe_aside(aside: Iterable["SetAside"], as_of: int, objectives: Objectives) -> pa.Table:
    """An incident for every node or range of events that was not taken in, or not counted."""
    return rows_to_table(INCIDENTS, (_aside_row(each, as_of, objectives) for each in aside))


def _aside_row(each: "SetAside", as_of: int, objectives: Objectives) -> Row:
    return {
        "incident_id": stable_id("bad_archive", *each.key),
        "class": "bad_archive",
        "node": each.node,
        "started_at": each.at,
        "ended_at": end_after(each.at, as_of, objectives) if each.events else each.ended,
        "count": each.count,
        "samples": [],
        "sentence": each.sentence,
    }


# Node, agent and capability.
_Subject = tuple[str | None, str | None, str | None]


class _Silence(NamedTuple):
    """A node wrote nothing from `since` to `until`; `until` is ABSENT while it is still silent."""

    node: str
    since: int
    until: int


class _IncidentFinder:
    """Finds the incidents of each class, one method for each."""

    def __init__(
        self, cases: CodedColumns, activity: CodedColumns, as_of: int, objectives: Objectives
    ) -> None:
        self._cases = cases
        self._activity = activity
        self._as_of = as_of
        self._objectives = objectives
        self._sent_at = cases.number_column("sent_at")
        self._left_at = earliest_known(
            cases.number_column("accepted_at"), cases.number_column("dead_at")
        )

    def receiver_rows(self) -> Iterator[Row]:
        yield from self._sla_breaches()
        yield from self._find_backlogs()
        yield from self._silent_nodes()

    def sender_rows(self) -> Iterator[Row]:
        dead = self._cases.number_column("dead_at") != ABSENT
        unroutable = self._cases.is_any("reason", "no_route")
        yield from self._routing_misses(np.flatnonzero(dead & unroutable))
        yield from self._dead_letter_bursts(np.flatnonzero(dead & ~unroutable))

    # -- clocks

    def clock_skew_rows(self) -> Iterator[Row]:
        """Nodes whose clock differs from that of others: receipts came before their messages.

        Of two clocks that differ, the wrong one is that which differs from more others.
        """
        ahead_ms = self._sent_at - self._cases.number_column("accepted_at")
        rows = np.flatnonzero(is_skewed(self._cases, self._objectives))
        sender, receiver = (self._cases.text_codes(name)[rows] for name in ("node", "to_node"))
        others: dict[int, set[int]] = {}
        for one, other in set(zip(sender.tolist(), receiver.tolist(), strict=True)):
            others.setdefault(one, set()).add(other)
            others.setdefault(other, set()).add(one)
        weight = {code: len(known) for code, known in others.items()}
        wrong = np.array(
            [
                one if weight[one] >= weight[other] else other
                for one, other in zip(sender.tolist(), receiver.tolist(), strict=True)
            ],
            np.int64,
        )
        for code in sorted(set(wrong.tolist())):
            mine = rows[wrong == code]
            is_ahead = bool((sender[wrong == code] == code).any())
            yield self._clock_skew(code, mine, int(ahead_ms[mine].max()), is_ahead=is_ahead)

    def _clock_skew(self, code: int, rows: Numbers, most_ms: int, *, is_ahead: bool) -> Row:
        node = self._cases.decode_texts(np.array([code], np.int64))[0].as_py()
        return self._make_incident(
            "clock_skew",
            (node, None, None),
            (int(self._sent_at[rows].min()), self._end_after(self._sent_at[rows])),
            rows,
            f"the clock of {node} is {'ahead of' if is_ahead else 'behind'} others by up to"
            f" {most_ms // 1000} s: {len(rows)} deliveries were accepted before they were sent",
        )

    # -- slow or given-up deliveries

    def _sla_breaches(self) -> Iterator[Row]:
        late = np.flatnonzero(breaches_sla(self._cases, self._as_of, self._objectives))
        accepted_at, ended_at = (
            self._cases.number_column("accepted_at"),
            self._cases.number_column("ended_at"),
        )
        for rows in self._split_islands(late, accepted_at, "to_node"):
            node, agent, capability = _subject_of(self._cases, rows, "to_node")
            yield self._make_incident(
                "sla_breach",
                (node, agent, capability),
                (int(accepted_at[rows].min()), _last_end(ended_at[rows])),
                rows,
                f"{agent} of {node} accepted {len(rows)} deliveries and did not finish them"
                f" within {self._objectives.sla} s",
            )

    def _routing_misses(self, dead: Numbers) -> Iterator[Row]:
        for rows in self._split_islands(dead, self._cases.number_column("dead_at"), "node"):
            node, agent, _ = subject = _subject_of(self._cases, rows, "node")
            sentence = f"{len(rows)} deliveries from {node} to {agent} had no route"
            yield self._dead_letter_incident("routing_miss", subject, rows, sentence)

    def _dead_letter_bursts(self, dead: Numbers) -> Iterator[Row]:
        dead_at = self._cases.number_column("dead_at")
        for rows in self._split_islands(dead, dead_at, "node"):
            if _densest_count(dead_at[rows], self._objectives.window_ms) >= self._objectives.burst:
                node, agent, _ = subject = _subject_of(self._cases, rows, "node")
                sentence = f"{node} gave up on {len(rows)} deliveries to {agent}"
                yield self._dead_letter_incident("dead_letter_burst", subject, rows, sentence)

    def _split_islands(self, rows: Numbers, at: Numbers, node: str) -> Iterator[Numbers]:
        """The rows of one node, agent and capability, split where a whole window has none."""
        keys = [self._cases.text_codes(name)[rows] for name in (node, "to_agent", "capability_id")]
        for each in Groups.group_runs(at[rows], self._objectives.window_ms, *keys).each_group():
            yield rows[each]

    def _dead_letter_incident(
        self, name: str, subject: _Subject, rows: Numbers, sentence: str
    ) -> Row:
        dead_at = self._cases.number_column("dead_at")[rows]
        lasted = int(self._sent_at[rows].min()), self._end_after(dead_at)
        return self._make_incident(name, subject, lasted, rows, sentence, int(dead_at.min()))

    # -- waiting deliveries

    def _find_backlogs(self) -> Iterator[Row]:
        """Growing backlogs of agents; where a whole node is silent, one backlog for the node."""
        by_node: dict[_Silence, list[Numbers]] = {}
        for node, agent, begin, end in self._growing_backlogs():
            rows = self._waiting_rows(node, agent, end)
            silences = [
                silence
                for silence in self._silences
                if silence.node == node and begin < self._end_of(silence) and end > silence.since
            ]
            for silence in silences:
                by_node.setdefault(silence, []).append(rows)
            if len(rows) and not silences:
                yield self._backlog_incident(node, agent, rows, begin)
        for silence, waiting in by_node.items():
            if len(rows := np.unique(np.concatenate(waiting))):
                yield self._backlog_incident(silence.node, None, rows, silence.since)

    def _backlog_incident(self, node: str, agent: str | None, rows: Numbers, since: int) -> Row:
        lasted = int(self._sent_at[rows].min()), _last_end(self._left_at[rows])
        sentence = (
            f"mail for {agent or node} piled up for more than {self._objectives.backlog} s:"
            f" {len(rows)} deliveries waited"
        )
        return self._make_incident("backlog", (node, agent, None), lasted, rows, sentence, since)

    def _growing_backlogs(self) -> Iterator[tuple[str, str, int, int]]:
        """Node, agent, start and end of each run of windows in which the agent's backlog grew."""
        objectives, step = self._objectives, self._objectives.window_ms
        node, agent, window, net = self._net_inflows()
        runs = Groups.group_runs(window, step, node, agent)
        least = objectives.backlog // objectives.window + 1
        enough = (runs.sizes >= least) & (runs.sum_values(net) >= objectives.backlog_least)
        names = self._cases.group_texts(runs, [node, agent])
        begins, ends = runs.min_values(window).tolist(), (runs.max_values(window) + step).tolist()
        for run in np.flatnonzero(enough).tolist():
            yield *names[run], begins[run], ends[run]

    def _net_inflows(self) -> tuple[Codes, Codes, Numbers, Numbers]:
        """Node, agent, window and growth for windows at whose end more waited than at its start."""
        sent_in = window_start(self._sent_at, self._objectives)
        left = self._left_at != ABSENT
        left_in = np.where(left, window_start(self._left_at, self._objectives), ABSENT)
        node, agent = self._cases.text_codes("to_node"), self._cases.text_codes("to_agent")
        waited = (node != NONE) & (agent != NONE) & (~left | (left_in > sent_in))
        rows = np.concatenate([np.flatnonzero(waited), np.flatnonzero(waited & left)])
        window = np.concatenate([sent_in[waited], left_in[waited & left]])
        change = np.where(np.arange(len(rows)) < np.count_nonzero(waited), 1, -1)
        groups = Groups.group_equal(node[rows], agent[rows], window)
        grows = (net := groups.sum_values(change)) > 0
        return (
            groups.first_values(node[rows])[grows],
            groups.first_values(agent[rows])[grows],
            groups.first_values(window)[grows],
            net[grows],
        )

    def _waiting_rows(self, node: str, agent: str, at: int) -> Numbers:
        """The cases sent to the agent before `at` that were neither accepted nor dead by then."""
        rows = self._rows_by_agent[node, agent]
        left_at = np.where(self._left_at[rows] == ABSENT, self._as_of + 1, self._left_at[rows])
        found: Numbers = rows[(self._sent_at[rows] < at) & (left_at >= at)]
        return found

    @cached_property
    def _rows_by_agent(self) -> dict[tuple[str | None, ...], Numbers]:
        return self._group_rows("to_node", "to_agent")

    @cached_property
    def _rows_by_node(self) -> dict[tuple[str | None, ...], Numbers]:
        return self._group_rows("to_node")

    def _group_rows(self, *names: str) -> dict[tuple[str | None, ...], Numbers]:
        """Texts of these columns → rows of the cases that have them."""
        keys = [self._cases.text_codes(name) for name in names]
        groups = Groups.group_equal(*keys)
        return dict(zip(self._cases.group_texts(groups, keys), groups.each_group(), strict=True))

    # -- silence

    @cached_property
    def _silences(self) -> dict[_Silence, Numbers]:
        """Long silences of nodes for which deliveries waited → rows of these deliveries."""
        found = ((silence, self._missed_rows(silence)) for silence in self._activity_gaps())
        return {silence: rows for silence, rows in found if len(rows)}

    def _activity_gaps(self) -> Iterator[_Silence]:
        """All gaps in the activity of nodes that are longer than the objective."""
        node = self._activity.text_codes("node")
        windows = Groups.group_equal(node, self._activity.number_column("window_start"))
        node_of = windows.first_values(node)
        since = windows.max_values(self._activity.number_column("last_at"))
        first_at = windows.min_values(self._activity.number_column("first_at"))
        same_node = node_of[1:] == node_of[:-1]
        until = np.append(
            np.where(same_node, first_at[1:], ABSENT), [ABSENT] * min(1, len(node_of))
        )
        silent_ms = np.where(until == ABSENT, self._as_of, until) - since
        long = np.flatnonzero(silent_ms > self._objectives.silence * 1000)
        names = self._activity.decode_texts(node_of[long]).to_pylist()
        return map(_Silence, names, since[long].tolist(), until[long].tolist())

    def _missed_rows(self, silence: _Silence) -> Numbers:
        """The cases sent to the node during the silence that waited until its end."""
        rows = self._rows_by_node.get((silence.node,), np.zeros(0, np.int64))
        sent_at, left_at = self._sent_at[rows], self._left_at[rows]
        waited = left_at == ABSENT
        if silence.until != ABSENT:
            waited |= left_at >= silence.until
        found: Numbers = rows[
            (sent_at > silence.since) & (sent_at < self._end_of(silence)) & waited
        ]
        return found

    def _end_of(self, silence: _Silence) -> int:
        return self._as_of if silence.until == ABSENT else silence.until

    def _silent_nodes(self) -> Iterator[Row]:
        for silence, rows in self._silences.items():
            sentence = (
                f"{silence.node} wrote nothing for more than {self._objectives.silence} s"
                f" while {len(rows)} deliveries waited for it"
            )
            until = None if silence.until == ABSENT else silence.until
            lasted = silence.since, until
            yield self._make_incident(
                "silent_node", (silence.node, None, None), lasted, rows, sentence
            )

    def _end_after(self, times: Numbers) -> int | None:
        return end_after(int(times.max()), self._as_of, self._objectives)

    def _make_incident(
        self,
        name: str,
        subject: _Subject,
        lasted: tuple[int, int | None],
        rows: Numbers,
        sentence: str,
        since: int | None = None,
    ) -> Row:
        """Build the row. If its start may still change, `since` stands for it in the id."""
        node, agent, capability = subject
        return {
            "incident_id": stable_id(name, *subject, lasted[0] if since is None else since),
            "class": name,
            "node": node,
            "agent": agent,
            "capability_id": capability,
            "started_at": lasted[0],
            "ended_at": lasted[1],
            "count": len(rows),
            "samples": self._sample_corr_ids(rows),
            "sentence": sentence,
        }

    def _sample_corr_ids(self, rows: Numbers) -> list[str]:
        """The first few conversations, in an order that is the same every time."""
        rank = self._cases.text_ranks("corr_id", rows)
        first = np.lexsort((rank, self._sent_at[rows]))[:MOST_SAMPLES]
        names: list[str] = self._cases.table["corr_id"].take(pa.array(rows[first])).to_pylist()
        return names


def _subject_of(cases: CodedColumns, rows: Numbers, node: str) -> _Subject:
    first = cases.table.slice(int(rows[0]), 1)
    node, agent, capability = (
        first[name][0].as_py() for name in (node, "to_agent", "capability_id")
    )
    return node, agent, capability


def _last_end(times: Numbers) -> int | None:
    """The last of these times, or None while one is missing."""
    return None if np.any(times == ABSENT) else int(times.max())


def _densest_count(at: Numbers, width: int) -> int:
    """The most times in any stretch of this width."""
    at = np.sort(at)
    return int(np.max(np.searchsorted(at, at, "right") - np.searchsorted(at, at - width)))
