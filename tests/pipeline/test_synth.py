"""The synthetic archive: what it says is true, and nothing else is wrong with it.

The checks here are written once more, in plain Python, so that they share nothing with the jobs
that the archive is there to test.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from gatepost.archive import manifest, room_facts
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.schema import EVENT_SCHEMA
from gatepost.archive.segment_encoding import SignedGroup, events_table
from gatepost.archive.verification import verify_archive
from gatepost.errors import PipelineError
from gatepost.events import decode_event, encode_event, event_digest
from gatepost.pipeline.archive_reader import ArchiveReader
from gatepost.pipeline.synth import ArchiveTruth, SynthOptions, generate_archive
from tests.pipeline.planted_faults import FAULTS, generate_planted

MINUTE = 60_000
LIMIT = 65_536
SIZE = 12_000

Event = dict[str, Any]


class Made:
    """A generated archive and everything in it, by node and seq."""

    def __init__(self, root: Path, options: SynthOptions, *faults: str) -> None:
        self.root = root
        self.truth = generate_planted(str(root), options, faults)
        self.store = ArchiveStore.open(str(root))
        self.events: dict[str, list[Event]] = {
            node: list(self._read(node)) for node in manifest.archived_nodes(self.store)
        }

    def _read(self, node: str) -> Iterator[Event]:
        listed = manifest.read_manifest(self.store, node)
        assert listed is not None
        for segment in listed.segments:
            path = self.root / manifest.node_folder(node) / segment.path
            yield from pq.ParquetFile(path).read().to_pylist()

    def all(self) -> Iterator[tuple[str, Event]]:
        for node, events in self.events.items():
            for event in events:
                yield node, event


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("right")
    return Made(root, SynthOptions(events=SIZE, nodes=4, seed=1, bodies=True, segment_rows=2000))


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("wrong")
    return Made(root, SynthOptions(events=SIZE, nodes=4, seed=2), *FAULTS)


# -- the rules of the protocol, once more


def violations(made: Made) -> set[tuple[str, str, bytes]]:
    """(rule, node, event id of the message) of everything that should not be."""
    sent, routed, confirmed = _messages(made)
    found = set()
    for node, events in made.events.items():
        accepted: set[tuple[str, bytes]] = set()
        processed: set[tuple[str, bytes]] = set()
        order: dict[tuple[str, str, str], int] = defaultdict(int)
        for event in events:
            if event["payload_size"] > LIMIT:
                found.add(("payload_over_limit", node, event["event_id"]))
            if event["kind"] != "ack":
                continue
            key = (event["to_node"], event["ref_id"])
            if key not in sent or node not in routed[key]:
                found.add(("receipt_without_message", node, key[1]))
                continue
            if event["status"] == "accepted":
                accepted.add(key)
            if event["status"] != "processed" or key in processed:
                continue
            processed.add(key)
            message = sent[key]
            if key not in accepted:
                found.add(("processed_before_accepted", node, key[1]))
            if message["offer"] and node not in confirmed[key]:
                found.add(("processed_unconfirmed", node, key[1]))
            pair = (key[0], message["source_agent"], message["to_agent"])
            if 0 < message["pair_seq"] < order[pair]:
                found.add(("fifo_broken", node, key[1]))
            order[pair] = max(order[pair], message["pair_seq"])
    return found | _doubled(made)


def _messages(made: Made) -> tuple[dict[Any, Event], dict[Any, set[str]], dict[Any, set[str]]]:
    sent: dict[Any, Event] = {}
    routed: dict[Any, set[str]] = defaultdict(set)
    confirmed: dict[Any, set[str]] = defaultdict(set)
    for node, event in made.all():
        if event["kind"] in ("message", "reply", "task_create", "task_cancel"):
            sent.setdefault((node, event["event_id"]), event)
            routed[node, event["event_id"]].add(event["to_node"])
        if event["signal"] == "confirm":
            confirmed[node, event["ref_id"]].add(event["to_node"])
    return sent, routed, confirmed


def _doubled(made: Made) -> set[tuple[str, str, bytes]]:
    turns: dict[Any, list[tuple[int, str]]] = defaultdict(list)
    for node, event in made.all():
        if event["outcome"] == "ok":
            turns[event["to_node"], event["ref_id"]].append((event["created_at"], node))
    return {
        ("doubled_turn", max(by)[1], key[1])
        for key, by in turns.items()
        if len({node for _, node in by}) > 1
    }


# -- the archive itself


def test_events_are_the_bytes_a_gateway_would_have_written(right: Made) -> None:
    kinds: Counter[str] = Counter()
    for node, event in right.all():
        envelope = decode_event(event["body"])
        assert encode_event(envelope) == event["body"]
        assert (envelope.source_node_id, envelope.seq) == (node, event["seq"])
        assert event_digest(event["body"]) == event["digest"]
        kinds[event["kind"]] += 1
    assert set(kinds) >= {"message", "ack", "reply", "signal", "dead_letter", "task_complete"}


def test_columns_are_as_if_the_bytes_were_archived(right: Made) -> None:
    for node in manifest.archived_nodes(right.store):
        for path in sorted((right.root / manifest.node_folder(node)).rglob("*.parquet")):
            made = pq.ParquetFile(path).read()
            assert made.schema.equals(EVENT_SCHEMA, check_metadata=True)
            rows = made.to_pylist()
            archived = events_table(
                rows[0]["incarnation"],
                [(r["seq"], r["event_id"], r["ref_id"], r["body"], r["digest"]) for r in rows],
                [
                    SignedGroup(r["group_first"], r["seq"], r["chain"], r["signature"])
                    for r in rows
                    if r["group_first"]
                ],
                bodies=True,
            )
            assert made.equals(archived)


def test_each_event_names_the_one_before_it_for_the_same_node(right: Made) -> None:
    for node, events in right.events.items():
        last: dict[str, int] = {}
        for event in events:
            to = event["to_node"]
            there = to is not None and to != node
            assert event["prev_seq_to"] == (last.get(to, 0) if there else 0)
            last[to] = event["seq"]


def test_time_never_goes_back_within_a_node(right: Made) -> None:
    for events in right.events.values():
        assert all(a["created_at"] <= b["created_at"] for a, b in pairwise(events))


def test_nothing_is_wrong_unless_it_was_asked_for(right: Made) -> None:
    assert list(verify_archive(right.store)) == []
    assert violations(right) == set()
    assert not right.truth.violations
    assert not right.truth.incidents


def test_totals_are_those_of_the_files(wrong: Made) -> None:
    counts = {node: Counter(e["kind"] for e in events) for node, events in wrong.events.items()}
    assert wrong.truth.nodes == counts
    assert wrong.truth.events == sum(c.total() for c in counts.values())
    first = {(node, e["event_id"]): e["kind"] for node, e in wrong.all()}
    kinds = Counter(first.values())
    totals = wrong.truth.totals
    assert totals.messages == kinds["message"]
    assert (totals.replies, totals.tasks) == (kinds["reply"], kinds["task_create"])
    assert totals.dead_letters == kinds["dead_letter"]


def test_truth_is_written_down(tmp_path: Path) -> None:
    truth = generate_archive(str(tmp_path), SynthOptions(events=600))
    data = (tmp_path / "truth.json").read_bytes()
    assert msgspec.json.decode(data, type=ArchiveTruth) == truth
    assert msgspec.json.decode(data)["misfires"] == msgspec.to_builtins(truth.misfires)


# -- ordinary traffic


def test_traffic_has_all_that_happens_to_messages(right: Made) -> None:
    every = [event for _, event in right.all()]
    decisions = Counter(event["route_decision"] for event in every)
    assert all(decisions[d] for d in ("owner", "local", "retry", "fallback", "moved"))
    signals = Counter(event["signal"] for event in every)
    assert all(signals[s] for s in ("confirm", "withdraw", "pair_closed"))
    assert {e["outcome"] for e in every} == {"ok", "dead_letter", "expired", None}
    assert {e["reason"] for e in every if e["kind"] == "dead_letter"} == {"expired", "refused"}
    assert any(event["blob_size"] for event in every)
    assert any(event["causation_id"] for event in every)
    assert any(event["offer"] for event in every)


def test_one_node_is_restored_once(right: Made) -> None:
    for node, events in right.events.items():
        incarnations = list(dict.fromkeys(event["incarnation"] for event in events))
        assert len(incarnations) == (2 if node == right.truth.restored else 1)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


def test_a_node_that_is_away_catches_up_late(right: Made) -> None:
    (away,) = right.truth.away
    start, end = away.window
    times = [event["created_at"] for event in right.events[away.node]]
    assert not [at for at in times if start <= at < end]
    late = {
        e["ref_id"]
        for e in right.events[away.node]
        if e["status"] == "accepted" and end <= e["created_at"]
    }
    waiting = [e for _, e in right.all() if e["event_id"] in late and e["created_at"] < end]
    assert waiting, "messages sent while it was away were accepted after its return"


def test_ordinary_traffic_gives_no_cause_for_an_incident(right: Made) -> None:
    accepted: dict[bytes, int] = {}
    for _, event in right.all():
        if event["status"] == "accepted":
            accepted.setdefault(event["ref_id"], event["created_at"])
    for _, event in right.all():
        if event["status"] == "processed" and event["ref_id"] in accepted:
            assert event["created_at"] - accepted[event["ref_id"]] < 2 * MINUTE
    for node, events in right.events.items():
        assert max(b["created_at"] - a["created_at"] for a, b in pairwise(events)) < 8 * MINUTE
        dead = Counter(
            e["created_at"] // (5 * MINUTE) for e in events if e["kind"] == "dead_letter"
        )
        assert max(dead.values(), default=0) <= 5, node


def test_ordinary_tasks_keep_their_promise(right: Made) -> None:
    promised = {e["ref_id"]: e["eta_at"] for _, e in right.all() if e["kind"] == "task_accept"}
    ended = {
        e["ref_id"]: e["created_at"]
        for _, e in right.all()
        if e["kind"] in ("task_complete", "task_failed")
    }
    assert ended
    assert all(at <= promised[id] for id, at in ended.items())


# -- planted things


def test_exactly_the_planted_violations_are_there(wrong: Made) -> None:
    by_rule = {violation.rule: violation for violation in wrong.truth.violations}
    assert len(by_rule) == len(wrong.truth.violations) == 10
    found = violations(wrong)
    planted = {
        ("doubled_turn", "node-03"),
        ("receipt_without_message", "node-02"),
        ("processed_before_accepted", "node-02"),
        ("fifo_broken", "node-02"),
        ("payload_over_limit", "node-01"),
    }
    assert {(rule, node) for rule, node, _ in found} == planted
    assert len(found) == len(planted)
    for rule, node, _ in found:
        assert by_rule[rule].node == node


def test_exactly_the_planted_breaks_of_the_chain_are_there(wrong: Made) -> None:
    found = {(f.rule.value, f.node, f.seq) for f in verify_archive(wrong.store)}
    by_rule = {violation.rule: violation for violation in wrong.truth.violations}
    gap, fork, bad = (by_rule[r] for r in ("chain_gap", "chain_fork", "bad_signature"))
    assert found == {
        ("chain_gap", gap.node, gap.seqs[0]),
        ("chain_fork", fork.node, fork.group_first),
        ("bad_signature", bad.node, bad.group_last),
    }


def test_planted_events_lie_where_the_truth_says(wrong: Made) -> None:
    for violation in wrong.truth.violations:
        if violation.rule in ("chain_gap", "two_publishers"):
            continue
        ids = {
            event["event_id"].hex(): event["seq"]
            for events in wrong.events.values()
            for event in events
        }
        for seq, id in zip(violation.seqs, violation.event_ids, strict=True):
            assert ids[id.replace("-", "")] == seq


def test_a_revoked_node_goes_on_writing(wrong: Made) -> None:
    (planted,) = [v for v in wrong.truth.violations if v.rule == "revoked_node"]
    for node in manifest.archived_nodes(wrong.store):
        facts = room_facts.read_facts(wrong.store, node)
        assert facts is not None
        (revoked,) = facts.revocations
        late = [e for e in wrong.events[revoked.node] if e["seq"] > revoked.last_seq]
        assert [e["seq"] for e in late] == planted.seqs
        assert all(e["created_at"] > revoked.at for e in late)


def test_two_publishers_claim_one_term(wrong: Made) -> None:
    facts = room_facts.read_facts(wrong.store, "node-01")
    assert facts is not None
    claims = Counter(term.counter for term in facts.terms)
    assert [counter for counter, count in claims.items() if count > 1] == [3]


def test_planted_incidents_happened(wrong: Made) -> None:
    incidents = {(i.cls, i.agent): i for i in wrong.truth.incidents}
    silent = incidents["silent_node", None]
    start, end = silent.window
    times = [event["created_at"] for event in wrong.events[silent.node]]
    assert not [at for at in times if start <= at < end]
    assert min(times) < start < end < max(times)
    corr: dict[str, list[Event]] = defaultdict(list)
    for _, event in wrong.all():
        corr[event["corr_id"]].append(event)
    for incident in wrong.truth.incidents:
        assert incident.count == len(incident.corr_ids)
        assert all(id in corr for id in incident.corr_ids)
    for id in incidents["sla_breach", "slow-owner"].corr_ids:
        times = [e["created_at"] for e in corr[id] if e["status"]]
        assert max(times) - min(times) > 50 * MINUTE
    for id in incidents["dead_letter_burst", "burst-owner"].corr_ids:
        assert [e["kind"] for e in corr[id]].count("dead_letter") == 1


def test_no_other_incident_happened(wrong: Made) -> None:
    incidents = wrong.truth.incidents
    slow = {id for i in incidents if i.cls == "sla_breach" for id in i.corr_ids}
    accepted: dict[Any, int] = {}
    breached = set()
    for node, event in wrong.all():
        if event["status"] == "accepted":
            accepted.setdefault((node, event["ref_id"]), event["created_at"])
        since = accepted.get((node, event["ref_id"]), event["created_at"])
        if event["status"] == "processed" and event["created_at"] - since > 15 * MINUTE:
            breached.add(event["corr_id"])
    assert breached == slow
    quiet = {
        node
        for node, events in wrong.events.items()
        if any(b["created_at"] - a["created_at"] > 10 * MINUTE for a, b in pairwise(events))
    }
    assert quiet == {i.node for i in incidents if i.cls == "silent_node"}
    misses = {e["corr_id"] for _, e in wrong.all() if e["reason"] == "no_route"}
    assert misses == {id for i in incidents if i.cls == "routing_miss" for id in i.corr_ids}
    dead = Counter(
        (node, e["created_at"] // (5 * MINUTE))
        for node, e in wrong.all()
        if e["kind"] == "dead_letter"
    )
    burst = {node for (node, _), count in dead.items() if count >= 10}
    assert burst == {i.node for i in incidents if i.cls == "dead_letter_burst"}


def test_misfires_are_counted_by_capability_and_class(wrong: Made) -> None:
    capability = {
        e["event_id"]: e["capability_id"] for _, e in wrong.all() if e["kind"] == "task_create"
    }
    failed = Counter(
        (e["failure_class"], capability[e["ref_id"]])
        for _, e in wrong.all()
        if e["kind"] == "task_failed"
    )
    told = {(m.cls, m.capability_id): m.count for m in wrong.truth.misfires}
    assert {
        k: n for k, n in told.items() if k[0] in ("terminal_error", "contract_mismatch")
    } == failed
    assert told["eta_breach", "late"] == told["sla_breach", "sluggish"] == 3
    assert told["routing_miss", "unhosted"] == 4


# -- the generator


def _files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize("hours", [1, 30])
def test_an_archive_spans_the_hours_that_were_asked_for(tmp_path: Path, hours: int) -> None:
    truth = generate_archive(str(tmp_path), SynthOptions(events=3000, nodes=3, hours=hours))
    segments = ArchiveReader(str(tmp_path)).list_segments()
    last, first = max(s.max_created_at for s in segments), min(s.min_created_at for s in segments)
    assert hours - 0.2 < (last - first) / 3_600_000 < hours + 0.2
    assert truth.events > 2000


def test_the_same_seed_gives_the_same_files_in_one_process_or_two(tmp_path: Path) -> None:
    for name, seed, jobs in (("a", 5, 1), ("b", 5, 2), ("c", 6, 1)):
        options = SynthOptions(events=4000, nodes=3, seed=seed, jobs=jobs)
        generate_planted(str(tmp_path / name), options, ["chain_gap"])
    one, two, other = (_files(tmp_path / name) for name in "abc")
    assert one == two
    assert one != other


def test_about_as_many_events_as_were_asked_for(right: Made) -> None:
    assert right.truth.events == pytest.approx(SIZE, rel=0.05)


def test_progress_adds_up(tmp_path: Path) -> None:
    told: list[int] = []
    made = generate_archive(str(tmp_path / "a"), SynthOptions(events=3000), told.append)
    assert sum(told) == made.events


def test_too_few_nodes_and_folders_in_use_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="at least 3 nodes"):
        SynthOptions(events=10, nodes=2)
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match="not empty"):
        generate_archive(str(tmp_path), SynthOptions(events=10))
