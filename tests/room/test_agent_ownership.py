"""Whose an agent is: handed on, overridden, contested, in any order."""

from msgspec.structs import replace

from gatepost.room import AgentRecord, RecordAuthor, SignedRecord, sign_transfer, transfer_claim
from tests.room.sample_records import NOW, ROOT, agent, author, claim, entry, revocation, room

VPS = author("vps", "backbone", at=NOW + 1)
ANN = author("ann", at=NOW + 2)
BEN = author("ben", at=NOW + 3)
CAT = author("cat", at=NOW + 4)
EVERYONE = [entry(who) for who in (ROOT, VPS, ANN, BEN, CAT)]


def gateway(*claims: SignedRecord) -> str | None:
    found = room(*EVERYONE, *claims).effective.agents.get("job")
    return found.gateway if found else None


def says(who: RecordAuthor, data: AgentRecord | None, version: int = 1) -> SignedRecord:
    return claim(who, "agents", "job", data, version)


def handed(claim: AgentRecord, giver: RecordAuthor, taker: RecordAuthor) -> AgentRecord:
    step = sign_transfer(giver.key, giver.node, taker.node, "job", claim.epoch + 1)
    return transfer_claim(claim, step)


def overridden(by: RecordAuthor, taker: RecordAuthor, epoch: int) -> AgentRecord:
    step = sign_transfer(by.key, by.node, taker.node, "job", epoch)
    return transfer_claim(agent("ben"), step, by_backbone=True)


BENS = agent("ben")
CATS = handed(BENS, BEN, CAT)


def test_an_agent_is_where_it_was_registered() -> None:
    assert gateway(says(BEN, BENS)) == "ben"


def test_nobody_registers_an_agent_at_another_node() -> None:
    assert gateway(says(ANN, agent("ben"))) is None


def test_the_taker_owns_it_as_soon_as_the_giver_says_so() -> None:
    assert gateway(says(BEN, CATS, 2)) == "cat"


def test_the_takers_word_is_enough_for_it_carries_the_givers() -> None:
    assert gateway(says(BEN, BENS), says(CAT, CATS)) == "cat"


def test_a_higher_epoch_without_a_transfer_is_nothing() -> None:
    assert gateway(says(BEN, BENS), says(ANN, replace(agent("ann"), epoch=99))) == "ben"


def test_a_higher_version_is_nothing() -> None:
    assert gateway(says(ANN, agent("ann")), says(BEN, BENS, 1000)) == "ann"


def test_a_transfer_by_somebody_who_never_owned_it_does_not_beat_the_senior_line() -> None:
    stolen = handed(agent("cat"), CAT, BEN)
    assert gateway(says(ANN, agent("ann")), says(BEN, stolen)) == "ann"


def test_a_transfer_of_another_agent_is_nothing() -> None:
    step = sign_transfer(BEN.key, "ben", "cat", "other", 2)
    assert gateway(says(BEN, BENS), says(CAT, transfer_claim(BENS, step))) == "ben"


def test_a_transfer_with_a_signature_of_another_is_nothing() -> None:
    step = sign_transfer(CAT.key, "ben", "cat", "job", 2)
    assert gateway(says(BEN, BENS), says(CAT, transfer_claim(BENS, step))) == "ben"


def test_an_agent_goes_round_and_comes_back() -> None:
    anns = handed(CATS, CAT, ANN)
    bens_again = handed(anns, ANN, BEN)
    stale = (says(CAT, CATS), says(ANN, anns))
    assert gateway(*stale, says(BEN, bens_again, 9)) == "ben"
    assert gateway(*stale, says(BEN, BENS)) == "ann"


def test_an_agent_that_left_has_no_gateway_but_is_known() -> None:
    found = room(*EVERYONE, says(BEN, agent(None))).effective.agents["job"]
    assert found.gateway is None


def test_a_claim_taken_back_is_gone() -> None:
    assert gateway(says(BEN, BENS), says(BEN, None, 2)) is None


def test_a_backbone_node_overrides_a_dead_owner() -> None:
    assert gateway(says(BEN, BENS), says(VPS, overridden(VPS, ANN, 2))) == "ann"
    assert gateway(says(CAT, CATS), says(VPS, overridden(VPS, ANN, 3))) == "ann"


def test_the_owner_a_backbone_named_hands_it_on() -> None:
    anns = overridden(VPS, ANN, 2)
    cats = handed(anns, ANN, CAT)
    assert gateway(says(BEN, BENS), says(VPS, anns), says(ANN, anns), says(CAT, cats)) == "cat"


def test_the_dead_owner_comes_back_and_does_not_take_it_back() -> None:
    anns = overridden(VPS, ANN, 2)
    assert gateway(says(VPS, anns), says(BEN, BENS, 50)) == "ann"
    assert gateway(says(VPS, anns), says(CAT, CATS), says(BEN, CATS, 51)) == "ann"


def test_an_edge_node_overrides_nobody() -> None:
    assert gateway(says(BEN, BENS), says(CAT, overridden(CAT, ANN, 5))) == "ben"


def test_an_override_ends_with_the_node_that_made_it() -> None:
    anns = overridden(VPS, ANN, 2)
    assert gateway(says(BEN, BENS), says(ANN, anns), revocation(ROOT, VPS)) == "ben"


def test_what_a_node_handed_on_stays_handed_on_when_it_is_revoked() -> None:
    assert gateway(says(BEN, CATS, 2), says(CAT, CATS), revocation(VPS, BEN)) == "cat"


def test_an_agent_handed_to_a_node_that_was_revoked_is_nobodys() -> None:
    assert gateway(says(BEN, CATS, 2), says(CAT, CATS), revocation(VPS, CAT)) is None


def test_standbys_are_listed_and_own_nothing() -> None:
    standby = replace(agent("ann"), standby=True)
    found = room(*EVERYONE, says(BEN, BENS), says(ANN, standby)).effective.agents["job"]
    assert (found.gateway, found.standbys, found.rivals) == ("ben", ("ann",), ())


def test_rivals_are_named() -> None:
    found = room(*EVERYONE, says(BEN, BENS), says(ANN, agent("ann"))).effective.agents["job"]
    assert (found.gateway, found.rivals) == ("ann", ("ben",))


def test_the_owners_own_signs_of_life_are_shown() -> None:
    alive = replace(CATS, last_seen_at=NOW + 500)
    found = room(*EVERYONE, says(BEN, CATS, 2), says(CAT, alive)).effective.agents["job"]
    assert found.record.last_seen_at == NOW + 500


# -- former owners


def former(*claims: SignedRecord) -> tuple[str, ...]:
    return room(*EVERYONE, *claims).effective.agents["job"].former


def test_everybody_who_handed_an_agent_on_is_a_former_owner() -> None:
    back = handed(handed(CATS, CAT, ANN), ANN, BEN)
    assert former(says(BEN, BENS)) == ()
    assert former(says(BEN, CATS, 2)) == ("ben",)
    assert former(says(BEN, back)) == ("ann", "cat")


def test_an_owner_that_was_overridden_is_a_former_owner() -> None:
    assert "ben" in former(says(BEN, BENS), says(VPS, overridden(VPS, CAT, 2)))


def test_who_claimed_an_agent_in_vain_has_never_owned_it() -> None:
    stolen = handed(agent("cat"), CAT, BEN)
    assert former(says(ANN, agent("ann")), says(CAT, agent("cat")), says(BEN, stolen)) == ()
