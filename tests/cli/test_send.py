import json
import signal
import time
from pathlib import Path

from gatepost.cli.message_outcome import DEFAULT_WAIT_SECS
from gatepost.mailbox import MailboxPolicy
from tests.cli.conftest import Cli
from tests.waiting import wait_until


def test_prints_the_event_id_and_its_state(cli: Cli, agent: str) -> None:
    id, state = cli.ok("send", agent, "hello").split()
    assert state == "accepted"
    assert cli.json("inbox", agent)["messages"][0]["msg_id"] == id


def test_json_is_what_the_gateway_knows_of_the_message(cli: Cli, agent: str) -> None:
    sent = cli.json("send", agent, "hello", "--from", "alice")
    assert sent["state"] == "accepted"
    assert cli.json("inbox", agent)["messages"][0]["from"] == "alice"


def test_a_payload_is_text_unless_called_json(cli: Cli, agent: str) -> None:
    cli.ok("send", agent, "[1]")
    cli.ok("send", agent, "[1]", "--json-payload")
    assert [m["payload"] for m in cli.take(agent)] == ["[1]", [1]]


def test_a_payload_that_is_not_json_is_wrong_usage(cli: Cli, agent: str) -> None:
    result = cli("send", agent, "{a", "--json-payload")
    assert result.code == 2
    assert "not JSON" in result.err


def test_a_dash_reads_standard_input(cli: Cli, agent: str) -> None:
    sent = cli.in_own_process("send", agent, "-", stdin="grüße\n".encode())
    assert (sent.code, sent.err) == (0, "")
    assert cli.take(agent)[0]["payload"] == "grüße\n"


def test_a_mistyped_option_is_not_sent_as_a_payload(cli: Cli, agent: str) -> None:
    result = cli("send", agent, "--wiat")
    assert result.code == 2
    assert "No such option" in result.err
    assert cli.take(agent) == []


def test_what_follows_two_dashes_is_a_payload(cli: Cli, agent: str) -> None:
    cli.ok("send", agent, "--", "--json")
    assert cli.take(agent)[0]["payload"] == "--json"


def test_nothing_to_send_is_wrong_usage(cli: Cli, agent: str) -> None:
    assert cli("send", agent).code == 2
    assert cli("send", agent, "x", "--file", "/etc/hostname").code == 2


def test_a_file_arrives_byte_by_byte(cli: Cli, agent: str, tmp_path: Path) -> None:
    content = bytes(range(256)) * 8192
    (tmp_path / "sent").write_bytes(content)
    cli.ok("send", agent, "--file", str(tmp_path / "sent"))
    event = cli.take(agent)[0]["event"]
    said = cli.ok("fetch", event["payload_ref"], "--output", str(tmp_path / "fetched"))
    assert "2.0 MiB" in said
    assert (tmp_path / "fetched").read_bytes() == content
    assert (tmp_path / "fetched").stat().st_mode & 0o777 == 0o600


def test_a_fetched_file_replaces_nothing(cli: Cli, agent: str, tmp_path: Path) -> None:
    cli.ok("send", agent, "--file", "-", stdin=b"bytes")
    digest = cli.take(agent)[0]["event"]["payload_ref"]
    (tmp_path / "here").write_text("mine")
    assert cli("fetch", digest, "--output", str(tmp_path / "here")).code == 2
    assert (tmp_path / "here").read_text() == "mine"
    assert cli.in_own_process("fetch", digest) == (0, "bytes", "")


def test_a_file_that_cannot_be_read_is_wrong_usage(cli: Cli, agent: str) -> None:
    result = cli("send", agent, "--file", "/does/not/exist")
    assert (result.code, "No such file" in result.err) == (2, True)


def test_text_too_large_for_a_request_is_sent_all_the_same(cli: Cli, agent: str) -> None:
    text = "x" * 2_000_000
    cli.ok("send", agent, "-", stdin=text.encode())
    digest = cli.take(agent)[0]["event"]["payload_ref"]
    assert json.loads(cli.ok("fetch", digest)) == text


def test_the_same_idempotency_key_sends_once(cli: Cli, agent: str) -> None:
    first = cli.json("send", agent, "once", "--idempotency-key", f"{agent}-1")
    again = cli.json("send", agent, "once", "--idempotency-key", f"{agent}-1")
    other = cli("send", agent, "other", "--idempotency-key", f"{agent}-1", "--json")
    assert first["event_id"] == again["event_id"]
    assert (other.code, other.error["code"]) == (1, "idempotency_conflict")
    assert len(cli.take(agent)) == 1


def test_waiting_for_processed_shows_outcome_and_reply(cli: Cli, agent: str) -> None:
    with cli.running("send", agent, "hi", "--wait", "processed", "--timeout", "20") as sending:
        (message,) = cli.json("inbox", agent, "--take", "--wait", "10")["messages"]
        cli.ok("ack", agent, message["receipt"], "--reply", "hi yourself")
        out, _ = sending.communicate(timeout=20)
    first, second = out.splitlines()
    assert first.startswith(f"{message['msg_id']} replied ok after ")
    assert second == "hi yourself"
    assert sending.returncode == 0


def test_a_turn_that_ends_badly_was_not_reached(cli: Cli, agent: str) -> None:
    waiting = ("send", agent, "hi", "--wait", "processed", "--timeout", "20", "--json")
    with cli.running(*waiting) as sending:
        (message,) = cli.json("inbox", agent, "--take", "--wait", "10")["messages"]
        cli.ok("nack", agent, message["receipt"], "--reason", "no such order")
        out, err = sending.communicate(timeout=20)
    assert sending.returncode == 1
    assert json.loads(out)["outcome"] == "dead_letter"
    assert json.loads(err)["code"] == "outcome_dead_letter"
    assert "no such order" in err


def test_what_is_not_processed_in_time_was_not_reached(cli: Cli, agent: str) -> None:
    began = time.monotonic()
    result = cli("send", agent, "hi", "--wait", "processed", "--timeout", "0.3")
    assert time.monotonic() - began < 5
    assert (result.code, result.out.split()[1]) == (1, "accepted")
    assert f"gatepost trace {result.out.split()[0]}" in result.err


def test_an_unknown_agent_is_told_how_to_become_known(cli: Cli) -> None:
    result = cli.in_own_process("send", "nobody", "hi")
    assert (result.code, result.out) == (1, "")
    assert "gatepost agent add nobody" in result.err
    assert cli("send", "nobody", "hi", "--json").error["code"] == "unknown_agent"


def test_an_id_with_a_path_in_it_is_wrong_usage(cli: Cli) -> None:
    for command in (("send", "../x", "hi"), ("inbox", "../x"), ("dlq", "list", "a/b")):
        result = cli(*command, "--json")
        assert (result.code, result.error["code"]) == (2, "invalid_id")


def test_a_message_to_several_prints_a_line_for_each(cli: Cli, agent: str) -> None:
    other = f"{agent[:100]}-2"
    cli.ok("agent", "add", other)
    said = cli.ok("send", "--to", agent, "--to", other, "both of you")
    rows = [line.split() for line in said.splitlines()]
    assert [row[1:] for row in rows] == [[agent, "accepted"], [other, "accepted"]]
    for row, name in zip(rows, (agent, other), strict=True):
        (message,) = cli.take(name)
        assert (message["msg_id"], message["payload"]) == (row[0], "both of you")
    sent = cli.json("send", agent, "hi", "--to", other)
    assert [copy["to_agent"] for copy in sent["copies"]] == [agent, other]


def test_one_that_is_unknown_is_named_and_the_others_have_it(cli: Cli, agent: str) -> None:
    result = cli("send", "--to", agent, "--to", "nobody-at-all", "hi", "--json")
    assert (result.code, result.error["code"]) == (1, "unknown_agent")
    assert "nobody-at-all" in result.error["message"]
    assert len(cli.take(agent)) == 1


def test_a_broadcast_goes_to_all(cli: Cli, agent: str) -> None:
    sent = cli.json("send", "--broadcast", "all of you", "--wait", "accepted")
    assert agent in [copy["to_agent"] for copy in sent["copies"]]
    assert cli.take(agent)[0]["payload"] == "all of you"


def test_whom_it_is_for_has_to_be_said_once(cli: Cli, agent: str) -> None:
    assert cli("send", "--broadcast", "--to", agent, "x").code == 2
    assert cli("send", "--to", agent).code == 2
    assert cli("send", "--broadcast").code == 2
    assert cli("send", agent, "--file", "-", "--to", agent, stdin=b"x").code == 0


def test_await_prints_the_reply_to_a_sender_without_a_mailbox(cli: Cli, agent: str) -> None:
    id = cli.ok("send", agent, "question", "--from", "nobody").split()[0]
    (message,) = cli.take(agent)
    cli.ok("ack", agent, message["receipt"], "--reply", "the answer")
    first, second = cli.ok("await", id).splitlines()
    assert first.startswith(f"{id} replied ok after ")
    assert second == "the answer"
    assert cli.json("await", id)["reply"] == "the answer"


def test_await_ends_at_its_timeout_and_knows_no_strange_id(cli: Cli, agent: str) -> None:
    id = cli.ok("send", agent, "question").split()[0]
    assert cli.ok("await", id, "--until", "accepted").split() == [id, "accepted"]
    result = cli("await", id, "--timeout", "0.1", "--json")
    assert (result.code, result.error["code"]) == (1, "deadline_exceeded")
    strange = cli("await", id[:-4] + "0000", "--timeout", "0.1", "--json")
    assert (strange.code, strange.error["code"]) == (1, "unknown_message")
    assert cli("await", "nonsense").code == 2


def test_a_large_reply_is_uploaded_and_printed_whole(cli: Cli, agent: str) -> None:
    id = cli.ok("send", agent, "question").split()[0]
    (message,) = cli.take(agent)
    answer = "y" * 600_000
    acked = cli.in_own_process(
        "ack", agent, message["receipt"], "--reply", "-", stdin=answer.encode()
    )
    assert acked.code == 0
    assert cli.ok("await", id).splitlines()[1] == answer
    assert cli.json("await", id)["reply"] == answer


def test_a_message_may_wait_for_a_moment(cli: Cli, agent: str) -> None:
    cli.ok("send", agent, "later", "--not-before", "+1h")
    cli.ok("send", agent, "now", "--order", "none", "--max-retries", "0")
    assert [message["payload"] for message in cli.take(agent)] == ["now"]
    assert "pending, in " in cli.ok("inbox", agent)
    result = cli("send", agent, "x", "--not-before", "soon")
    assert (result.code, "is no time" in result.err) == (2, True)
    result = cli("send", agent, "x", "--not-before", "+1h", "--ttl", "60")
    assert (result.code, "would expire before" in result.err) == (1, True)


def test_a_wait_is_longer_than_the_retries_of_a_turn_that_fails() -> None:
    policy = MailboxPolicy()
    retries = sum(policy.backoff_after(attempt) for attempt in range(policy.max_retries))
    assert retries / 1000 < DEFAULT_WAIT_SECS


def test_an_interrupted_wait_names_the_message_that_goes_on(cli: Cli, agent: str) -> None:
    with cli.running("send", agent, "hello", "--wait", "processed") as process:
        wait_until(lambda: bool(cli.json("inbox", agent)["messages"]))
        (mail,) = cli.json("inbox", agent)["messages"]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    # The command may not have its answer yet when the message is in the mailbox.
    id = mail["msg_id"]
    assert f"`gatepost await {id}`" in said or f"`gatepost trace {id}`" in said


def test_a_subject_is_shown_wherever_the_message_is_listed(cli: Cli, agent: str) -> None:
    cli.ok("send", agent, "hello", "--subject", "change 17")
    header, row = cli.ok("inbox", agent).splitlines()
    assert (header.split("\t")[-1], row.split("\t")[-1]) == ("Subject", "change 17")
    taken = cli.ok("inbox", agent, "--take")
    assert "subject: change 17\n" in taken
    cli.ok("nack", agent, taken.split("lease handle ")[1].split("\n")[0], "--no-retry")
    assert cli.ok("dlq", "list", agent).splitlines()[1].endswith("\tchange 17")


def test_a_list_without_subjects_has_no_column_for_them(cli: Cli, agent: str) -> None:
    cli.ok("send", agent, "hello")
    assert "Subject" not in cli.ok("inbox", agent)
    cli.take(agent)


def test_an_empty_subject_is_refused(cli: Cli, agent: str) -> None:
    assert cli("send", agent, "hello", "--subject", "", "--json").error["code"] == "invalid_request"
