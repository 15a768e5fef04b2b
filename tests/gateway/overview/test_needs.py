"""What a person has to do: found in what the gateway knows, the most urgent first."""

from typing import Any

import msgspec
from msgspec.structs import replace

from gatepost.gateway.overview.needs import NeedFacts, list_needs
from gatepost.wire.gateway_views import MailboxCounts, PeerStatus, Status
from gatepost.wire.operations import DeadLetter
from gatepost.wire.report_views import IncidentView, ReviewView

NOW = 1_800_000_000_000
QUIET = Status("ann", "1.0", 1, True, None, 2, 0, 0, 0, 9, 4096)


def incident(id: str, class_: str = "sla_breach", **fields: Any) -> IncidentView:
    given: dict[str, Any] = {
        "detail": "late",
        "raised_at": NOW,
        "source": "ann",
        "corr_ids": [],
    } | fields
    return IncidentView(id, class_, f"subject of {id}", **given)


def test_a_gateway_on_which_all_is_well_needs_nobody() -> None:
    found = list_needs(NeedFacts(NOW, QUIET))
    assert (found.needs, found.more) == ([], 0)


def test_the_most_urgent_comes_first() -> None:
    away = PeerStatus("laptop", "offline", False, None, NOW, 18, NOW - 60_000)
    letter = DeadLetter("m1", "ann", "painter", NOW, 4, "boom", NOW, 4)
    facts = NeedFacts(
        NOW,
        replace(QUIET, accepting=False, problem="the disk is full", peers=[away]),
        [MailboxCounts("painter", 0, 0, 3)],
        {"painter": [letter] * 3},
        incidents=[incident("i1"), incident("i2", "audit_violation")],
        reviews=[ReviewView("r1", "paint", "1", "2", "sla_breach", 3, [], [], NOW, "open", None,
                            None, "")],
    )  # fmt: skip
    found = list_needs(facts).needs
    assert [need.kind for need in found] == [
        *("incident", "storage", "dead_letters", "node", "review", "incident"),
    ]
    assert [need.urgency for need in found] == sorted(need.urgency for need in found)
    assert "disk is full" in found[1].text
    assert found[3].text == "laptop is offline · 18 messages waiting for 1 min"


def test_each_action_is_one_call_and_the_command_that_does_the_same() -> None:
    letter = DeadLetter("m1", "ann", "a/b", NOW, 4, "boom", NOW, 4)
    facts = NeedFacts(NOW, QUIET, [MailboxCounts("a/b", 0, 0, 1)], {"a/b": [letter]})
    (need,) = list_needs(facts).needs
    assert need.text == "1 dead letter of a/b"
    assert need.action.path == "/v1/mailboxes/a%2Fb/dead-letters/replay"
    assert msgspec.json.decode(need.action.body) == {"replayed": False}
    assert need.action.command == "gatepost dlq replay a/b --all"


def test_many_incidents_of_a_class_are_one_need() -> None:
    many = [incident(f"i{number}") for number in range(40)]
    settled = incident("old", status="resolved")
    over = incident("over", ended_at=NOW)
    (need,) = list_needs(NeedFacts(NOW, QUIET, incidents=[*many, settled, over])).needs
    assert need.text == "Sla breach: 40 incidents"
    assert need.action.path == "/v1/incidents/resolve-all"
    assert need.action.command == "gatepost incidents --resolve-all --class sla_breach --yes"


def test_a_gateway_that_is_online_and_slow_needs_nobody() -> None:
    busy = PeerStatus("laptop", "online", True, None, NOW, 18, NOW - 60_000)
    assert list_needs(NeedFacts(NOW, replace(QUIET, peers=[busy]))).needs == []


def test_a_list_that_is_too_long_says_what_was_left_out() -> None:
    peers = [PeerStatus(f"n{i}", "offline", False, None, NOW, 1, NOW) for i in range(60)]
    found = list_needs(NeedFacts(NOW, replace(QUIET, peers=peers)))
    assert (len(found.needs), found.more) == (50, 10)
