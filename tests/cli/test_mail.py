from tests.cli.conftest import Cli


def test_inbox_looks_without_taking(cli: Cli, agent: str) -> None:
    id = cli.message_to(agent)
    header, row = cli.ok("inbox", agent).splitlines()
    assert header.split("\t") == ["Message", "From", "Age", "Retries", "State", "Size"]
    assert row.split("\t")[0:2] == [id, "cli"]
    assert row.split("\t")[4] == "pending"
    assert len(cli.take(agent)) == 1


def test_inbox_limits_what_it_shows(cli: Cli, agent: str) -> None:
    ids = [cli.message_to(agent, text) for text in "abc"]
    shown = cli.json("inbox", agent, "--limit", "2")["messages"]
    assert [message["msg_id"] for message in shown] == ids[:2]


def test_an_empty_inbox_is_not_a_mistyped_name(cli: Cli, agent: str) -> None:
    assert cli.ok("inbox", agent) == f"{agent} has no mail\n"
    assert "no such agent" in cli.ok("inbox", f"{agent}x")
    assert cli.json("inbox", agent) == {"messages": []}


def test_taking_prints_payloads_and_receipts(cli: Cli, agent: str) -> None:
    id = cli.message_to(agent, "the text")
    first, second, third = cli.ok("inbox", agent, "--take").splitlines()[:3]
    assert first.startswith(f"{id} from cli, ")
    assert second.split()[:2] == ["lease", "handle"]
    assert third == "the text"
    assert cli.json("inbox", agent)["messages"][0]["state"] == "in_flight"


def test_looking_does_not_wait(cli: Cli, agent: str) -> None:
    assert cli("inbox", agent, "--wait", "1").code == 2


def test_what_a_message_says_cannot_steer_the_terminal(cli: Cli, agent: str) -> None:
    cli.message_to(agent, "\x1b]0;gotcha\x07\x1b[31mred [bold]x[/bold]")
    seen = cli.seen("inbox", agent, "--take")
    assert r"\x1b]0;gotcha\x07\x1b[31mred [bold]x[/bold]" in seen


def test_acks_by_receipt_and_by_id(cli: Cli, agent: str) -> None:
    ids = [cli.message_to(agent, text) for text in "ab"]
    receipt = cli.take(agent)[0]["receipt"]
    assert cli.ok("ack", agent, receipt) == "1 message acked\n"
    assert cli.json("ack", agent, "--msg-id", ids[1]) == {"settled": 1, "failures": []}
    assert cli.ok("ack", agent, receipt) == "0 messages acked, 1 already were\n"


def test_a_reply_needs_a_receipt(cli: Cli, agent: str) -> None:
    assert cli("ack", agent, "--msg-id", "x", "--reply", "y").code == 2


def test_no_receipt_is_wrong_usage(cli: Cli, agent: str) -> None:
    for command in ("ack", "nack"):
        result = cli(command, agent)
        assert (result.code, "--take" in result.err) == (2, True)


def test_a_receipt_nobody_gave_fails(cli: Cli, agent: str) -> None:
    result = cli("ack", agent, "nonsense", "--json")
    assert (result.code, result.error["code"]) == (1, "stale_receipt")


def test_acks_out_of_order_are_told_apart(cli: Cli, agent: str) -> None:
    for text in "abc":
        cli.message_to(agent, text)
    receipts = [message["receipt"] for message in cli.take(agent)]
    result = cli("ack", agent, receipts[0], receipts[2], "--json")
    assert result.code == 1
    assert result.document["settled"] == 1
    assert result.document["failures"][0]["subject"] == receipts[2]
    assert result.error["code"] == "out_of_order"


def test_a_nack_keeps_its_reason(cli: Cli, agent: str) -> None:
    id = cli.message_to(agent)
    receipt = cli.take(agent)[0]["receipt"]
    assert cli.ok("nack", agent, receipt, "--reason", "on fire") == "1 message nacked\n"
    assert "on fire" in cli.json("dlq", "show", agent, id)["reason"]


def test_dead_letters_are_listed_by_sender_and_reason(cli: Cli, agent: str) -> None:
    fire, flood = cli.dead_letter(agent, reason="fire"), cli.dead_letter(agent, reason="flood")
    header, *rows = cli.ok("dlq", "list", agent).splitlines()
    assert header.split("\t") == ["Message", "Agent", "From", "Failed", "Attempts", "Reason"]
    assert [row.split("\t")[0] for row in rows] == [fire, flood]
    some = cli.json("dlq", "list", agent, "--sender", "cli", "--reason-contains", "flo")
    assert [letter["msg_id"] for letter in some["messages"]] == [flood]
    assert cli.json("dlq", "list", agent, "--sender", "eve") == {"messages": []}


def test_a_dead_letter_is_shown_with_its_payload(cli: Cli, agent: str) -> None:
    id = cli.dead_letter(agent, "what it said", "fire")
    shown = cli.ok("dlq", "show", agent, id)
    assert shown.startswith(f"{id} from cli to {agent}\n")
    assert "delivered once" in shown
    assert shown.endswith("\nwhat it said\n")
    assert cli("dlq", "show", agent, "other", "--json").error["code"] == "unknown_message"


def test_dead_letters_of_all_agents_are_listed(cli: Cli, agent: str) -> None:
    cli.ok("agent", "add", f"{agent}-2")
    ids = {cli.dead_letter(agent), cli.dead_letter(f"{agent}-2")}
    found = {each["msg_id"]: each["to"] for each in cli.json("dlq", "list")["messages"]}
    assert ids <= found.keys()
    assert f"\t{agent}-2\t" in cli.ok("dlq", "list")
    assert len(cli.json("dlq", "list", "--limit", "1")["messages"]) == 1
    assert cli("dlq", "list", "--after", "x").code == 2


def test_replay_sends_a_dead_letter_again_but_once(cli: Cli, agent: str) -> None:
    id = cli.dead_letter(agent, "again")
    replayed = cli.json("dlq", "replay", agent, id)
    assert replayed["count"] == 1
    assert cli.json("inbox", agent)["messages"][0]["msg_id"] == replayed["replayed_as"][0]
    second = cli("dlq", "replay", agent, id)
    assert (second.code, "not replayed before" in second.err) == (1, True)
    assert replayed["replayed_as"][0] in cli.ok("dlq", "list", agent)


def test_replay_keeps_to_its_rate_and_limit(cli: Cli, agent: str) -> None:
    for text in "abc":
        cli.dead_letter(agent, text)
    *lines, said = cli.ok(
        "dlq", "replay", agent, "--all", "--rate", "20", "--limit", "2"
    ).splitlines()
    assert said == f"2 dead letters of {agent} replayed"
    waiting = [each["msg_id"] for each in cli.json("inbox", agent)["messages"]]
    assert lines == [f"replayed as {id}" for id in waiting]
    assert cli.json("dlq", "replay", agent, "--sender", "cli")["count"] == 1


def test_dead_letters_must_be_chosen(cli: Cli, agent: str) -> None:
    for command in ("replay", "discard"):
        assert cli("dlq", command, agent).code == 2
        assert cli("dlq", command, agent, "some-id", "--all").code == 2


def test_discard_wants_to_be_sure(cli: Cli, agent: str) -> None:
    id = cli.dead_letter(agent)
    refused = cli("dlq", "discard", agent, id)
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert cli.json("dlq", "discard", agent, id, "--yes") == {"count": 1}
    assert cli.ok("dlq", "list", agent) == f"{agent} has no matching dead letters\n"


def test_discard_asks_on_a_terminal(cli: Cli, agent: str) -> None:
    cli.dead_letter(agent)
    for answer, left in (("n\n", 1), ("y\n", 0)):
        with cli.on_terminal("dlq", "discard", agent, "--all") as terminal:
            assert f"Discard all dead letters of {agent} for good?" in terminal.read("[y/N]")
            terminal.type(answer)
            terminal.read()
            assert terminal.process.wait(10) == left
        assert len(cli.json("dlq", "list", agent)["messages"]) == left


def test_purge_turns_mail_into_dead_letters(cli: Cli, agent: str) -> None:
    cli.message_to(agent)
    assert cli("purge", agent).code == 2
    assert cli.ok("purge", agent, "--yes") == f"1 message of {agent} became dead letters\n"
    assert cli.json("purge", agent, "-y") == {"count": 0}


def test_a_nack_without_retry_makes_a_dead_letter(cli: Cli, agent: str) -> None:
    cli.ok("send", agent, "hello")
    (message,) = cli.take(agent)
    cli.ok("nack", agent, message["receipt"], "--no-retry", "--reason", "not mine")
    (letter,) = cli.json("dlq", "list", agent)["messages"]
    assert letter["reason"] == "rejected: not mine"


def test_an_alias_is_given_listed_used_and_removed(cli: Cli, agent: str) -> None:
    alias = f"{agent}-too"
    assert f"{alias}\t{agent}" in cli.ok("agent", "alias", agent, alias)
    cli.ok("send", alias, "hello")
    assert "hello" in cli.ok("inbox", agent, "--take")
    assert alias not in cli.ok("agent", "alias", "--remove", alias)
    assert cli("agent", "alias", agent).code == 2
