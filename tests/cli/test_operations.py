import re
from pathlib import Path

import pytest

from gatepost.bench.hostile import HostileBenchOptions, HostileBenchResult, TurnLatency
from gatepost.bench.mailbox import describe_machine
from gatepost.cli.commands.messages.trace import _print_journey
from gatepost.ledger import TERMS
from gatepost.wire.report_views import Journey, JourneyStep
from tests.cli.conftest import Cli


def test_agents_are_added_listed_and_removed(cli: Cli) -> None:
    assert cli.ok("agent", "add", "bert", "ernie") == "mail can be sent to bert, ernie\n"
    rows = [line.split("\t") for line in cli.ok("agent", "list").splitlines()]
    assert rows[0] == ["Agent", "Type", "Role", "Lives", "Registered", "Seen"]
    assert {"bert", "ernie"} <= {row[0] for row in rows}
    assert "bert removed" in cli.ok("agent", "remove", "bert")
    assert "bert" not in {agent["id"] for agent in cli.json("agent", "list")}


def test_removing_an_agent_with_mail_wants_to_be_sure(cli: Cli, agent: str) -> None:
    cli.message_to(agent)
    refused = cli("agent", "remove", agent)
    assert (refused.code, "1 waiting message" in refused.err) == (2, True)
    assert cli.json("agent", "remove", agent, "--yes") == {"count": 1}


def test_removing_an_unknown_agent_fails(cli: Cli) -> None:
    result = cli("agent", "remove", "nobody", "--json")
    assert (result.code, result.error["code"]) == (1, "unknown_agent")


def test_status_counts_each_mailbox(cli: Cli, agent: str) -> None:
    cli.message_to(agent)
    text = cli.ok("status")
    assert "accepting messages" in text
    (ledger,) = [line for line in text.splitlines() if " sent = " in line]
    assert re.findall("[a-z ]*[a-z]", ledger) == [
        " sent",
        *(f" {t}".replace("_", " ") for t in TERMS),
    ]
    status = cli.json("status")
    assert status["gateway"]["accepting"] is True
    (counts,) = [box for box in status["mailboxes"] if box["name"] == agent]
    expected = {"waiting": 1, "in_flight": 0, "dead_letters": 0, "order": "fifo"}
    assert counts == {"name": agent, **expected}


def test_trace_does_not_wait_for_the_turn_of_a_message_that_has_left_the_journal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sent = JourneyStep(1, "ann", "sent", "m1", "message", "al", "bo", "bob")
    _print_journey(Journey("m1", "m1", ["m1"], [sent], ended=["m1"]))
    assert "its delivery has ended; bob knows the outcome" in capsys.readouterr().out


def test_trace_says_in_words_how_far_a_clock_is_off(capsys: pytest.CaptureFixture[str]) -> None:
    sent = JourneyStep(1, "ann", "sent", "m1", "message", "al", "bo", "bob")
    clocks = {"bob": 3_600_377, "cat": -5_400_000}
    _print_journey(Journey("m1", "m1", ["m1"], [sent], clocks=clocks))
    said = capsys.readouterr().out
    assert "the clock of bob is 1.0 h ahead; its times are corrected" in said
    assert "the clock of cat is 1.5 h behind; its times are corrected" in said


def test_trace_tells_a_journey_with_its_times(cli: Cli, agent: str) -> None:
    id = cli.message_to(agent)
    assert "turn has not ended yet" in cli.ok("trace", id)
    cli.ok("ack", agent, cli.take(agent)[0]["receipt"], "--reply", "thanks")
    first, _, *rows = cli.ok("trace", id).splitlines()
    assert first == f"{id} cli → {agent}"
    assert [row.split("\t")[2] for row in rows] == [
        f"sent by cli to {agent}",
        f"accepted by {agent}",
        f"{agent}'s turn ended (attempt 1)",
        f"reply by {agent} to cli",
        "reply accepted by cli",
        "reply kept for cli",
        f"processed by {agent}: ok",
    ]
    spans = [row.split("\t")[3] for row in rows]
    assert spans[0] == "" and all(re.fullmatch(r"(\+[\d.]+ (ms|s))?", span) for span in spans)
    assert spans[2] == spans[6], "both were committed together, so long after the send"
    events = cli.call("GET", f"/messages/{id}/trace")
    assert [event["kind"] for event in events] == ["message", "ack", "reply", "ack"]
    assert f"reply by {agent} to cli" in cli.ok("trace", events[2]["eventId"])
    receipt = events[1]["eventId"]
    assert cli.ok("trace", receipt).splitlines() == [
        f"{receipt} event about {id}",
        *cli.ok("trace", id).splitlines(),
    ]
    reply = cli.ok("trace", events[2]["eventId"]).splitlines()
    assert reply[0] == f"{events[2]['eventId']} {agent} → cli"
    journey = cli.json("trace", id)
    assert [step["what"] for step in journey["steps"]][:2] == ["sent", "accepted"]
    assert journey["unreachable"] == {}


def test_trace_of_a_conversation_tells_its_messages_apart(cli: Cli, agent: str) -> None:
    send = {"from_agent": "cli", "to_agent": agent, "payload": 1, "corr_id": f"talk:{agent}"}
    one, two = (cli.call("POST", "/messages", **send)["event_id"] for _ in range(2))
    asked, *lines = cli.ok("trace", f"talk:{agent}").splitlines()
    assert asked == f"talk:{agent} conversation of 2 messages"
    assert lines[:2] == [f"#1 {one} cli → {agent}", f"#2 {two} cli → {agent}"]
    assert f"#2 sent by cli to {agent}" in lines[3:][1] + lines[3:][2]
    assert f"#1 waits in {agent}'s mailbox (attempt 1)" in "\n".join(lines)
    whole = cli.json("trace", f"talk:{agent}", "--conversation")
    assert whole["event_ids"] == [one, two]
    assert cli.json("trace", one)["more_in_conversation"] == 1


def test_trace_of_a_dead_letter_leads_to_it_and_to_its_replay(cli: Cli, agent: str) -> None:
    id = cli.dead_letter(agent, reason="fire")
    traced = cli.ok("trace", id)
    assert f"processed by {agent}: dead_letter, " in traced
    assert f"gatepost dlq show {agent} {id}" in traced
    (replayed,) = cli.json("dlq", "replay", agent, id)["replayed_as"]
    assert f"a replay of {id}" in cli.ok("trace", replayed)


def test_status_of_a_message(cli: Cli, agent: str) -> None:
    id = cli.message_to(agent)
    assert cli.ok("status", id).splitlines()[0] == f"{id} accepted"
    cli.ok("ack", agent, cli.take(agent)[0]["receipt"], "--reply", "thanks")
    shown = cli.ok("status", id)
    assert re.search(rf"{id} replied ok after [\d.]+ (ms|s)\n", shown)
    assert shown.endswith("\nthanks\n")
    assert cli.json("status", id)["sent_at"] > 0
    assert cli("status", "nonsense", "--json").error["code"] == "invalid_id"


def test_trace_of_nothing_fails(cli: Cli) -> None:
    unknown = "01900000-0000-7000-8000-000000000000"
    assert cli("trace", unknown, "--json").error["code"] == "unknown_message"
    assert cli("trace", "nonsense", "--json").error["code"] == "unknown_message"
    assert cli("trace", "no such id", "--json").error["code"] == "invalid_id"


def test_audit_lists_what_was_done_by_hand(cli: Cli, agent: str) -> None:
    id = cli.dead_letter(agent)
    cli.ok("dlq", "discard", agent, id, "--yes")
    (entry,) = cli.json("audit", "--limit", "1")
    assert (entry["action"], entry["subject"]) == ("dead_letter.discard", id)
    header, row = cli.ok("audit", "--limit", "1").splitlines()
    assert header.split("\t") == ["When", "Actor", "Action", "Subject", "Detail"]
    assert row.split("\t")[3] == id


def test_ids_stay_whole_on_any_terminal(cli: Cli, agent: str) -> None:
    cli.ok("agent", "add", "al")
    id = cli.message_to("al")
    seen = {columns: cli.seen("inbox", "al", columns=columns) for columns in (40, 80, 120)}
    assert all(id in text for text in seen.values())
    for columns in (80, 120):
        header, row = re.sub(r"\x1b\[[\d;]*m", "", seen[columns]).splitlines()
        assert header.split() == ["Message", "From", "Age", "Retries", "State", "Size"]
        assert len(row) <= columns


def test_colour_only_where_it_is_wanted(cli: Cli) -> None:
    assert "\x1b[" in cli.seen("status")
    assert "\x1b[" not in cli.ok("status")
    assert "\x1b[3" not in Cli(cli.home, NO_COLOR="1").seen("status")


def test_a_reader_that_leaves_early_is_no_error(cli: Cli) -> None:
    with cli.running("--help") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_bench_measures_a_gateway_of_its_own(tmp_path: Path) -> None:
    small = ("--messages", "300", "--outstanding", "32", "--singles", "10")
    cli = Cli(tmp_path / "state", PYTHONWARNINGS="")
    result = cli.in_own_process("bench", "mailbox", *small, "--json")
    assert (result.code, result.err) == (0, "")
    assert result.document["throughput"]["messages"] == 300
    assert not list((tmp_path / "state").glob("bench-*"))


def test_bench_hostile_measures_with_the_options_of_its_command(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[HostileBenchOptions] = []

    def measure(state_dir: Path, options: HostileBenchOptions) -> HostileBenchResult:
        found.append(options)
        waits = TurnLatency(1, 1.0, 1.0)
        return HostileBenchResult(describe_machine(), options, waits, waits, waits, {})

    monkeypatch.setattr("gatepost.bench.hostile.bench_hostile", measure)
    cli("bench", "hostile")
    given = ("--connections", "30", "--sessions", "3", "--agents", "4", "--secs", "5")
    cli("bench", "hostile", *given)
    assert found == [
        HostileBenchOptions(),
        HostileBenchOptions(connections=30, sessions=3, agents=4, secs=5),
    ]
