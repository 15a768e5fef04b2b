"""The bounds of docs/security.md, row by row: a hostile source fills its own, and others go on.

Each row has a case. Those that need no other machine or process are carried out here: the source is
refused with a code at its bound, and another one still works. The others name the tests that show
both. A row without a case fails, and so does a case without a row.
"""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from gatepost.access.rate_limit import SourceRateLimiter
from gatepost.config import LimitsSettings
from gatepost.delivery.abuse import AbuseKind
from gatepost.delivery.incidents import IncidentLog
from gatepost.errors import (
    ContractStoreFull,
    MailboxFull,
    RateLimited,
    TaskQueueFull,
    TooManyAgents,
    Unavailable,
    WrongState,
)
from gatepost.events import EventIdGenerator
from gatepost.gateway.admin.agent_session_calls import AgentSessionCalls
from gatepost.gateway.api import frame_channel
from gatepost.journal import Tx, open_memory_journal
from gatepost.listening.connection_pool import MAX_PER_HOLDER, OPERATOR, ConnectionPool
from gatepost.mesh.service.backend_health import MAX_REPORTS_PER_NODE, BackendHealth
from gatepost.room import writer_quota
from gatepost.room.cost_limit import CostLimits
from gatepost.room.findings import MAX_OF_WRITER, choose_reports
from gatepost.tasks.capabilities.contract import MAX_CONTRACTS, ContractDocument, encode_contract
from gatepost.tasks.capabilities.contract import keep_contract as keep
from gatepost.tasks.skill_installs import MAX_OFFERS_OF_NODE
from gatepost.testing import ManualClock
from gatepost.wire.operations import Enqueue, NewMessage, NewSend, Register, Send
from tests.access.harness import AccessHarness, refused
from tests.delivery.forger import Forger
from tests.delivery.inbox.test_source_quota import LIMITS, limit_sources, out_of_turn, usage
from tests.delivery.mesh import Mesh
from tests.delivery.test_abuse import Reporter
from tests.gateway.api.test_frame_channel import Peer
from tests.gateway.tools import opened
from tests.room.sample_records import agent, author, claim, entry, room, update
from tests.room.test_findings import said
from tests.tasks.capabilities.test_contract import numbered
from tests.tasks.harness import HubHarness
from tests.tasks.task_mesh import TaskMesh
from tests.tasks.test_skill_installs import SkillMesh, capability, offer
from tests.tasks.test_task_queue import Queue

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
HOUR = 3_600_000

# Row → the tests that show the refusal, and that another source still works.
SHOWN: dict[str, tuple[str, ...]] = {
    "process at the Unix socket of agents": (
        "tests/gateway/api/test_unix_socket.py::test_a_line_without_end_is_refused_and_the_connection_closed",
        "tests/gateway/api/test_unix_socket.py::test_silent_connections_give_way_to_new_ones",
    ),
    "client of MCP, what the gateway keeps for it": (
        "tests/mcp/test_agent_desk.py::test_mail_in_hand_and_long_bodies_have_a_bound",
        "tests/mcp/test_agent_desk.py::test_the_desk_that_was_used_least_recently_gives_way",
        "tests/security/test_mcp.py::test_a_client_cannot_make_the_gateway_watch_without_end",
    ),
    "client of A2A, what the gateway keeps for it": (
        "tests/security/test_a2a.py::test_streams_and_pushes_of_one_caller_are_bounded",
        "tests/security/test_a2a.py::test_bodies_that_are_too_large_or_garbage_are_refused",
        "tests/a2a/test_push.py::test_a_task_has_five_pushes_at_most",
    ),
    "agent of A2A elsewhere": (
        "tests/a2a/test_outside.py::test_a_turn_that_does_not_end_in_time_is_a_dead_letter",
        "tests/a2a/test_outside.py::test_an_answer_without_end_is_cut_off",
    ),
    "connection of an agent, operations": (
        "tests/gateway/api/test_frame_channel.py::test_a_client_with_too_much_under_way_must_wait",
        "tests/gateway/api/test_frame_channel.py::test_a_client_that_does_not_listen_must_wait",
        "tests/bench/test_hostile.py::test_agents_wait_less_than_five_times_as_long_beside_a_crowd",
    ),
    "session of an external agent, messages": (
        "tests/gateway/admin/test_external_agents.py::test_a_session_uses_up_no_rate_limit_but_its_own",
    ),
    "session of an external agent, blobs": (
        "tests/gateway/admin/test_agent_blobs.py::test_uploads_need_the_scope_to_send_and_have_a_limit",
        "tests/gateway/admin/test_agent_blobs.py::test_large_messages_that_are_refused_count_as_uploads_that_were_not_sent",
    ),
    "agent, large inputs of its tasks": (
        "tests/security/test_task_inputs.py::test_tasks_that_nobody_takes_leave_nothing_of_their_inputs",
        "tests/security/test_task_inputs.py::test_a_call_takes_as_many_bytes_of_inputs_as_one_blob_can_have",
    ),
    "session of the hub, tokens": (
        "tests/tasks/test_session_tasks.py::test_tasks_are_claimed_oldest_first_each_once_and_with_a_token",
        "tests/tasks/test_task_tokens.py::test_a_token_is_for_one_agent_and_one_task",
        "tests/tasks/test_task_tokens.py::test_a_token_cannot_be_renewed_once_its_task_has_ended",
    ),
    "session of the hub, at its socket": (
        "tests/security/test_hostile_sessions.py::test_two_sessions_that_crowd_the_socket_shut_nobody_out",
    ),
    "session of the hub, output": (
        "tests/tasks/runtimes/test_process_runtime.py::test_a_flood_of_output_is_bounded_and_can_be_stopped",
        "tests/tasks/service/test_session_contents.py::test_others_go_on_while_a_large_result_is_judged",
    ),
    "address, at the join endpoint": (
        "tests/mesh/service/test_bootstrap_server.py::test_brute_force_is_throttled_and_named_and_harms_nobody_else",
    ),
    "streams of datagrams through Tor": (
        "tests/mesh/transports/test_datagram_streams.py::test_a_stream_that_breaks_the_rules_is_ended",
        "tests/mesh/transports/test_datagram_streams.py::test_idle_streams_of_strangers_shut_no_member_out",
    ),
    "node, on a link": (
        "tests/links/test_hostile_peer.py::test_a_peer_that_ignores_its_credit_is_cut_off",
        "tests/security/test_hostile_links.py::test_connections_without_end",
        "tests/security/test_hostile_links.py::test_a_message_of_empty_pieces_without_end",
    ),
    "node, blobs it announces": (
        "tests/links/test_hostile_peer.py::test_blobs_that_never_come_hold_up_nobody_else",
        "tests/links/test_hostile_peer.py::test_a_source_that_does_not_answer_gets_one_slot",
    ),
    "any source, lines of the log": (
        "tests/gateway/monitoring/test_logs.py::test_a_log_file_is_private_and_renewed_before_it_fills_the_disk",
        "tests/gateway/monitoring/test_logs.py::test_a_warning_that_strangers_cause_is_logged_once_a_minute",
    ),
    "node, skills it is asked to install": (
        "tests/tasks/test_skill_installs.py::test_a_gateway_that_refuses_costs_six_requests_whatever_it_claims",
        "tests/tasks/test_skill_installs.py::test_a_gateway_that_does_not_answer_has_few_open_requests",
        "tests/security/test_skills.py::test_a_node_that_claims_many_agents_and_refuses_skills_costs_little",
    ),
    "node, questions about its tasks": (
        "tests/tasks/test_report_requests.py::test_nothing_is_said_again_while_a_report_waits_to_be_read",
    ),
    "node, contents to check against contracts": (
        "tests/tasks/contract_checks/test_contract_pool.py::test_what_waits_of_one_source_is_bounded",
        "tests/tasks/contract_checks/test_contract_pool.py::test_a_source_that_is_slow_again_and_again_is_refused_and_named",
        "tests/tasks/contract_checks/test_contract_pool.py::test_others_wait_a_fraction_of_a_second_while_slow_checks_run",
    ),
    "node, confirmed offers named to it early": (
        "tests/links/test_outbox_feed.py::test_a_reader_that_gives_no_credit_leaves_a_bounded_number_of_confirmed_offers_to_name",
    ),
    "node, questions whether it is reached": (
        "tests/links/test_reach_part.py::test_one_gateway_has_a_bounded_number_of_visits_over_all_its_links",
    ),
    "node, logs of its tasks": (
        "tests/links/test_log_part.py::test_one_gateway_gets_a_bounded_share_over_all_its_links",
    ),
    "node, whose outbox is relayed": (
        "tests/links/test_hostile_peer.py::test_a_replica_that_becomes_too_large_loses_its_oldest_events",
    ),
    "gateway that answers our HTTP request": (
        "tests/links/service/test_join_client.py::test_an_answer_is_small_and_not_compressed",
    ),
    "sender of mesh datagrams": (
        "tests/mesh/test_datagram_judge.py::test_a_member_that_floods_is_limited_alone",
        "tests/mesh/test_datagram_judge.py::test_a_flood_of_forgeries_costs_few_signatures_and_silences_nobody",
    ),
    "node, traces and proofs": (
        "tests/links/test_trace_part.py::test_a_gateway_asks_for_so_many_events_and_then_slowly",
        "tests/links/test_hostile_peer.py::test_traces_are_not_answered_to_a_peer_that_takes_nothing",
    ),
    "tasks that wait for sessions": (
        "tests/security/test_task_flood.py::test_a_flood_of_tasks_fills_the_share_of_its_node_and_ends_with_its_revocation",
    ),
    "requests at the sockets of sessions": (
        "tests/bench/test_hostile.py::test_agents_wait_less_than_five_times_as_long_beside_hostile_sessions",
    ),
    "fetches of blobs": (
        "tests/security/test_edge.py::test_references_to_blobs_that_never_come_keep_nobody_from_theirs",
    ),
}
CARRIED_OUT: set[str] = set()

Test = Callable[..., Any]


def bounds(*rows: str) -> Callable[[Test], Test]:
    """The test fills the bounds of these rows."""
    CARRIED_OUT.update(rows)
    return lambda test: test


def _read_rows(heading: str) -> list[list[str]]:
    section = PAGE.read_text().partition("\n## Bounds\n")[2].partition("\n## ")[0]
    table = section.partition(heading)[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


SOURCES = {row[0]: row[1:] for row in _read_rows("| source, and what it uses |")}
# Without the names of their settings.
PLACES = {
    row[0].partition(" (")[0]: row[1] for row in _read_rows("| place that several sources fill |")
}


def test_each_row_states_a_bound_once() -> None:
    assert len(SOURCES) == len(_read_rows("| source, and what it uses |")) > 30
    assert [name for name, bounds in SOURCES.items() if not any(bounds)] == []


def test_each_row_has_a_case_and_each_case_a_row() -> None:
    open_ended = {name for name, share in PLACES.items() if "**none**" in share}
    rows = SOURCES.keys() | (PLACES.keys() - open_ended)
    assert rows - CARRIED_OUT - SHOWN.keys() == set(), "rows without a case"
    assert (CARRIED_OUT | SHOWN.keys()) - rows == set(), "cases without a row"


def test_what_has_no_bound_is_a_matter_of_trust() -> None:
    trust = PAGE.read_text().partition("\n## Trust that remains\n")[2].partition("\n## ")[0].lower()
    for name, share in PLACES.items():
        if "**none**" in share:
            assert "(#trust-that-remains)" in share
            assert name.removeprefix("a ").partition(" of the ")[0] in trust, name


def test_the_named_tests_exist() -> None:
    for row, tests in SHOWN.items():
        for test in tests:
            file, _, name = test.partition("::")
            text = (ROOT / file).read_text()
            assert re.search(rf"def {name}\(", text), f"{row}: there is no {test}"


# -- connections, operations and tokens


@bounds("connection of a stranger")
def test_strangers_take_no_place_but_those_of_strangers() -> None:
    closed: list[int] = []
    limits = LimitsSettings(max_connections=16, max_unauthenticated=16)
    pool = ConnectionPool(limits, lambda address: None)
    known = pool.admit("198.51.100.1", lambda: closed.append(-1))
    known.identify("session:honest")
    for number in range(100):
        pool.admit("192.0.2.1", lambda number=number: closed.append(number))  # type: ignore[misc]
    assert pool.anonymous_count == 8
    assert closed == list(range(92)), "the oldest of the flood give way"


@bounds("holder of a token, connections", "connections")
def test_a_holder_of_a_token_has_its_share_of_the_connections() -> None:
    pool = ConnectionPool(LimitsSettings(max_connections=1024), lambda address: None)

    def connect(holder: str) -> None:
        pool.admit("192.0.2.1", lambda: None).identify(holder)

    for _ in range(MAX_PER_HOLDER):
        connect("session:mallory")
    with pytest.raises(Unavailable):
        connect("session:mallory")
    connect("session:honest")
    connect(OPERATOR)


@bounds("address, at the exchange endpoints", "address, wrong tokens")
def test_an_address_uses_up_its_own_rate_limit() -> None:
    limiter = SourceRateLimiter(1.0, 5, ManualClock())
    for _ in range(5):
        limiter.take_token("192.0.2.1")
    with pytest.raises(RateLimited) as caught:
        limiter.take_token("192.0.2.1")
    assert caught.value.retry_after
    limiter.take_token("198.51.100.1")


@bounds("connection of an agent, waits")
@pytest.mark.anyio
async def test_a_connection_waits_for_few_answers_and_another_one_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_channel, "_MAX_WAITS", 5)
    async with opened(tmp_path / "state") as operations:
        await operations.perform(Register(agent="bob"))
        answer = await operations.perform(Send(messages=[NewSend("al", "bob", Raw(b"1"))]))
        wait = {"op": "await", "event_id": answer.results[0].event_id, "wait_secs": 50}
        greedy, honest = Peer(operations), Peer(operations)
        greedy.send(*({"id": number, **wait} for number in range(6)))
        (told,) = await greedy.heard(1)
        assert told["error"]["code"] == "unavailable"
        honest.send({"op": "peek", "id": 1, "mailbox": "bob"})
        (told,) = await honest.heard(1)
        assert told["op"] == "summaries"
        await operations.mailboxes.purge("bob", "operator")
        assert {told["op"] for told in await greedy.heard(5)} == {"awaited"}


@bounds("connection of an agent, subscriptions")
@pytest.mark.anyio
async def test_a_connection_has_one_subscription_for_a_mailbox(tmp_path: Path) -> None:
    async with opened(tmp_path / "state") as operations:
        greedy, honest = Peer(operations), Peer(operations)
        for peer in (greedy, greedy, honest):
            peer.send({"op": "subscribe", "id": 1, "mailbox": "box", "credit": 1})
        done, told = sorted(await greedy.heard(2), key=lambda each: "error" in each)
        assert "error" not in done and told["error"]["code"] == "invalid_request"
        (done,) = await honest.heard(1)
        assert "error" not in done
        for peer in (greedy, honest):
            peer.channel.close()


@bounds("session of an external agent, calls")
@pytest.mark.anyio
async def test_a_session_has_64_calls_and_another_session_its_own() -> None:
    calls = AgentSessionCalls()
    held = [
        asyncio.ensure_future(calls.run_call("mallory", asyncio.Event().wait())) for _ in range(64)
    ]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await calls.run_call("mallory", asyncio.sleep(0))
    await calls.run_call("honest", asyncio.sleep(0))
    calls.end_calls(["mallory"])
    await asyncio.gather(*held, return_exceptions=True)


@bounds("session of an external agent, tokens")
def test_a_refresh_token_that_comes_again_ends_its_session_alone() -> None:
    harness = AccessHarness()
    stolen, honest = harness.agent("mallory"), harness.agent("honest")
    harness.refresh(stolen.refresh_token)
    harness.refresh(stolen.refresh_token)
    with refused("revoked"):
        harness.authenticate(stolen.access_token)
    harness.authenticate(honest.access_token)


# -- agents, mailboxes and the journal


@bounds("agents and mailboxes of a gateway", "mailbox, mail that waits")
@pytest.mark.anyio
async def test_a_full_mailbox_is_full_for_its_agent_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with opened(state, limits__max_agents=2, mailbox__max_pending=3) as operations:
        for name in ("full", "free"):
            await operations.perform(Register(agent=name))
        with pytest.raises(TooManyAgents):
            await operations.perform(Register(agent="third"))

        async def enqueue(box: str, number: int) -> Any:
            new = NewMessage("mallory", box, Raw(b"1"), msg_id=f"{box}:{number}")
            return (await operations.perform(Enqueue(messages=[new]))).results[0]

        for number in range(3):
            assert (await enqueue("full", number)).error is None
        assert (await enqueue("full", 3)).error.code == MailboxFull.code
        assert (await enqueue("free", 0)).error is None


@bounds("node, events that wait here", "events that wait here")
def test_a_node_has_its_quota_of_events_that_wait() -> None:
    mesh = Mesh("a", "b", "mallory")
    for node in ("a", "mallory"):
        mesh.link(node, "b")
    b = mesh["b"]
    limit_sources(b, LIMITS)
    mesh.flow()
    Forger(mesh["mallory"]).emit_many(b, out_of_turn(20))
    mesh.flow()
    assert usage(b, "mallory")[0] == LIMITS.held_events
    sent = mesh["a"].send(b)
    mesh.flow()
    assert b.mail() == [sent.event_id]


@bounds("any source, incidents", "incidents")
def test_incidents_of_a_peer_hide_none_of_another() -> None:
    log, connection = IncidentLog("me"), open_memory_journal()
    tx = Tx(connection, 10 * HOUR)
    for number in range(2_000):
        log.raise_(tx, "skipped", f"mallory/{number}", "again")
        log.raise_(tx, "dead_letter", f"{number}", "again")
    for kind in ("skipped", "task_known"):
        log.raise_(tx, kind, "honest/1", "once")
    rows = connection.execute("SELECT class, count(*) FROM incident GROUP BY class ORDER BY class")
    # One more incident says how many others there were.
    assert rows.fetchall() == [("dead_letter", 1_001), ("skipped", 102), ("task_known", 1)]


@bounds("any source, abuse")
def test_abuse_of_many_sources_is_named_or_counted() -> None:
    reporter = Reporter()
    for number in range(400):
        reporter.report(f"address:192.0.2.{number}", AbuseKind.TOKEN_GUESSING, "x")
        reporter.report(f"node{number}", AbuseKind.FORGED_SENDER, "x")
    reporter.report("late", AbuseKind.TOKEN_GUESSING, "x")
    reporter.writer.run_group([])
    subjects = [subject for subject, _ in reporter.incidents()]
    # Sixteen nodes, the other nodes, all addresses, and the node that comes late.
    assert len(subjects) == 19
    assert any(subject.startswith("late/") for subject in subjects)


# -- the room


@bounds("node, in the room")
def test_a_writer_fills_its_own_part_of_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    eve, honest = author("eve"), author("honest")
    monkeypatch.setattr(writer_quota, "MAX_KEYS_PER_WRITER", 3)
    seen = room(entry(eve))
    records = [claim(eve, "agents", f"job{number}", agent("eve")) for number in range(9)]
    taken = [record for record in records if seen.apply_update(update(record)).changed]
    assert taken == records[:2]
    assert seen.apply_update(update(entry(honest))).changed == (entry(honest),)


@bounds("node, time to check its room messages")
def test_a_node_that_costs_much_time_pauses_alone() -> None:
    named: list[str] = []
    limits = CostLimits(named.append)
    assert not limits.charge("mallory", 4.9, 0.0)
    assert limits.charge("mallory", 1.0, 0.0) > 0
    assert not limits.charge("honest", 0.1, 0.0)
    assert named == ["mallory"]


@bounds("node, reports in the room")
def test_of_a_writer_its_newest_reports_are_shown() -> None:
    flood = {f"e{number}": (said("eve", number),) for number in range(MAX_OF_WRITER + 9)}
    found = choose_reports({**flood, "honest": (said("ann", -99),)}, said("ann").record.raised_at)
    assert len(found) == MAX_OF_WRITER + 1 and "honest" in found


@bounds("node, unhealthy agents it reports")
def test_a_node_reports_few_unhealthy_agents() -> None:
    health = BackendHealth(keep_ms=1_000)
    for number in range(MAX_REPORTS_PER_NODE + 9):
        health.note_report("eve", f"a{number}", now=0)
    health.note_report("honest", "bo", now=0)
    found = health.unhealthy_agents(1)
    assert len(found) == MAX_REPORTS_PER_NODE + 1 and ("honest", "bo") in found


# -- tasks, capabilities and skills


@bounds("node, tasks it requests", "sessions")
def test_a_node_that_floods_the_queue_is_refused_and_others_have_their_turn() -> None:
    queue = Queue()
    flood = queue.flood("mallory")
    with pytest.raises(TaskQueueFull) as caught:
        queue.ask("mallory")
    assert caught.value.code == "task_queue_full"
    honest, own = queue.ask("ann"), queue.ask(None, "operator", by_operator=True)
    assert {honest, own} < set(queue.claim(3))
    assert len(flood) < 96 / 2


@bounds("node, cancellations before their tasks")
def test_a_node_cancels_few_tasks_before_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatepost.tasks.executed_tasks._MAX_EARLY_CANCELS", 3)
    gate, ids = TaskMesh().b, EventIdGenerator(ManualClock())
    executed = gate.engine.executed

    def cancel(node: str) -> None:
        gate.gate.do(lambda tx: executed.keep_early_cancel(tx, node, ids.next_id(), "no more"))

    for _ in range(3):
        cancel("mallory")
    with pytest.raises(WrongState):
        cancel("mallory")
    cancel("honest")


@bounds("node, contracts")
def test_a_node_fills_its_own_part_of_the_contracts() -> None:
    hub = HubHarness()

    def bring(source: str, body: bytes) -> None:
        hub.run(lambda tx: keep(tx, body, source))

    for number in range(MAX_CONTRACTS):
        bring("mallory", numbered(number))
    with pytest.raises(ContractStoreFull):
        bring("mallory", numbered(-1))
    bring("honest", encode_contract(ContractDocument(input={"type": "object"})))
    bring("", numbered(-1))


@bounds("node, skills it distributes")
def test_a_node_distributes_few_skills() -> None:
    mesh = SkillMesh()
    published = mesh.publish(*(capability(f"c{n}") for n in range(MAX_OFFERS_OF_NODE + 1)))
    codes = [offer(mesh, each, mesh.a, mesh.b, "gateway").error_code for each in published]
    assert codes == [None] * MAX_OFFERS_OF_NODE + ["invalid_request"]
