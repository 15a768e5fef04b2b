"""Whose an agent is: handed on, overridden, contested, in any order."""

import pytest
from msgspec.structs import replace

from gatepost.room import (
    AgentRecord,
    KnownOwners,
    RecordAuthor,
    RecordRetention,
    SharedRoom,
    SignedRecord,
    sign_transfer,
    transfer_claim,
)
from gatepost.room.retention import rejoin_room, rotate_room
from tests.room.sample_records import (
    GENESIS,
    NOW,
    ROOT,
    agent,
    author,
    claim,
    entry,
    proof_of,
    revocation,
    room,
    update,
)

VPS = author("vps", "backbone", at=NOW + 1)
ANN = author("ann", at=NOW + 2)
BEN = author("ben", at=NOW + 3)
CAT = author("cat", at=NOW + 4)
EVERYONE = [entry(who) for who in (ROOT, VPS, ANN, BEN, CAT)]


def gateway(*claims: SignedRecord, dead: str = "") -> str | None:
    """The owner, for a replica that hears all claims at once, while `dead` is silent."""
    owners = KnownOwners(is_dead=lambda member: member.id == dead)
    return owner_in(SharedRoom(GENESIS, records=[*EVERYONE, *claims], owners=owners))


def owner_in(seen: SharedRoom) -> str | None:
    found = seen.effective.agents.get("job")
    return found.gateway if found else None


def then(seen: SharedRoom, *claims: SignedRecord) -> str | None:
    """The owner, once these claims came too."""
    seen.apply_update(update(*claims))
    return owner_in(seen)


def knowing(*claims: SignedRecord, dead: str = "") -> SharedRoom:
    """A replica that has looked at these claims."""
    owners = KnownOwners(is_dead=lambda member: member.id == dead)
    seen = SharedRoom(GENESIS, records=[*EVERYONE, *claims], owners=owners)
    owner_in(seen)
    return seen


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
    invented = says(ANN, replace(agent("ann"), epoch=99))
    assert gateway(says(BEN, BENS), invented) == "ben"
    (found,) = knowing(says(BEN, BENS), invented).effective.contested_agents()
    assert (found.claimants, found.rivals) == (("ann",), ())


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
    assert gateway(says(BEN, BENS), says(VPS, overridden(VPS, ANN, 2)), dead="ben") == "ann"
    assert gateway(says(CAT, CATS), says(VPS, overridden(VPS, ANN, 3)), dead="cat") == "ann"


def test_nobody_overrides_an_owner_that_is_alive() -> None:
    for epoch in (2, 3, 2**31 - 1):
        stolen = says(VPS, overridden(VPS, VPS, epoch))
        assert gateway(says(BEN, BENS), stolen) == "ben"
        assert then(knowing(says(BEN, BENS)), stolen) == "ben"


def test_an_override_counts_once_its_owner_is_dead_or_revoked() -> None:
    silent: list[str] = []
    owners = KnownOwners(is_dead=lambda member: member.id in silent)
    seen = SharedRoom(GENESIS, records=[*EVERYONE, says(BEN, BENS)], owners=owners)
    assert then(seen, says(VPS, overridden(VPS, ANN, 2))) == "ben"
    silent.append("ben")
    seen.effective.recheck_contested()
    assert owner_in(seen) == "ann"
    revoked = knowing(says(BEN, BENS), says(VPS, overridden(VPS, ANN, 2)))
    assert then(revoked, revocation(ROOT, BEN)) == "ann"


def test_an_override_leaves_epochs_for_later() -> None:
    assert gateway(says(BEN, BENS), says(VPS, overridden(VPS, ANN, 5000)), dead="ben") == "ben"


def test_the_agent_of_a_revoked_owner_is_not_free_for_all() -> None:
    seen = knowing(says(BEN, BENS))
    assert then(seen, revocation(ROOT, BEN), says(ANN, agent("ann"))) is None
    assert then(seen, says(VPS, overridden(VPS, CAT, 2))) == "cat"


@pytest.mark.parametrize("thief", [ANN, VPS, ROOT], ids=lambda who: who.node)
def test_the_first_claim_stands_whoever_claims_it_later(thief: RecordAuthor) -> None:
    """However senior the other node is, and however often it writes."""
    seen = knowing(says(BEN, BENS))
    assert then(seen, says(thief, agent(thief.node), 1000)) == "ben"
    assert seen.effective.agents["job"].rivals == (thief.node,)
    moved = rotate_room(knowing_as(ROOT, seen), proof_of(2), NOW, RecordRetention())
    assert owner_in(moved) == "ben"


def test_who_was_away_waits_for_the_owner_and_believes_nobody_else() -> None:
    seen = knowing_as(CAT, knowing(says(BEN, BENS)))
    back = rejoin_room(seen, proof_of(2))
    back.apply_update(update(entry(ROOT), entry(BEN), entry(ANN), epoch=2))
    back.apply_update(update(says(ANN, agent("ann")), epoch=2))
    assert owner_in(back) is None
    back.apply_update(update(says(BEN, BENS), epoch=2))
    assert owner_in(back) == "ben"


def test_an_agent_that_its_owner_took_back_is_free() -> None:
    seen = knowing(says(BEN, BENS))
    assert then(seen, says(BEN, None, 2)) is None
    assert then(seen, says(ANN, agent("ann"))) == "ann"
    junk = replace(agent("cat"), epoch=99)
    assert then(seen, says(CAT, junk), says(ANN, None, 2)) is None
    assert then(seen, says(BEN, BENS, 3)) == "ben"


def test_an_old_transfer_does_not_count_again() -> None:
    """Also if the owner was restored, and shows its first claim."""
    back = handed(CATS, CAT, BEN)
    seen = knowing(says(BEN, back, 5))
    assert then(seen, says(BEN, BENS, 1_000_000)) == "ben"
    assert then(seen, says(CAT, CATS, 9)) == "ben"


def test_the_coordinator_settles_a_race() -> None:
    race = (says(ANN, agent("ann")), says(BEN, BENS))
    settled = says(ROOT, overridden(ROOT, BEN, 2))
    assert gateway(*race, settled) == "ben"
    for first in race:
        seen = knowing(first)
        assert then(seen, *race, settled) == "ben"


def knowing_as(who: RecordAuthor, seen: SharedRoom) -> SharedRoom:
    seen.set_author(who)
    return seen


def test_the_owner_a_backbone_named_hands_it_on() -> None:
    anns = overridden(VPS, ANN, 2)
    cats = handed(anns, ANN, CAT)
    claims = (says(BEN, BENS), says(VPS, anns), says(ANN, anns), says(CAT, cats))
    assert gateway(*claims, dead="ben") == "cat"


def test_the_dead_owner_comes_back_and_does_not_take_it_back() -> None:
    anns = overridden(VPS, ANN, 2)
    seen = knowing(says(VPS, anns), says(BEN, BENS), dead="ben")
    assert then(knowing(says(VPS, anns)), says(BEN, BENS, 50)) == "ann"
    assert then(seen, says(BEN, replace(BENS, last_seen_at=NOW + 9), 51)) == "ann"


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
    assert (found.gateway, found.rivals) == ("ann", ("ben",)), "heard at once, the senior counts"


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


def test_an_owner_that_was_overridden_is_a_former_owner_and_no_rival() -> None:
    seen = knowing(says(BEN, BENS), dead="ben")
    assert then(seen, says(VPS, overridden(VPS, CAT, 2))) == "cat"
    for _ in range(2):
        owned = seen.effective.agents["job"]
        assert "ben" in owned.former
        assert (owned.rivals, owned.claimants) == ((), ())
        seen.effective.recheck_contested()
        seen.apply_update(update(says(BEN, replace(BENS, last_seen_at=NOW + 5), 2)))


def test_who_claimed_an_agent_in_vain_has_never_owned_it() -> None:
    stolen = handed(agent("cat"), CAT, BEN)
    assert former(says(ANN, agent("ann")), says(CAT, agent("cat")), says(BEN, stolen)) == ()


@pytest.mark.parametrize("name", ["operator", "Operator", "cli", "hub", "gateway"])
def test_a_claim_to_a_reserved_name_does_not_count_and_names_its_writer(name: str) -> None:
    seen = SharedRoom(GENESIS, records=EVERYONE)
    for who in (ANN, VPS):
        seen.apply_update(
            update(claim(who, "agents", name, replace(agent(who.node), standby=False)))
        )
    assert name not in seen.effective.agents
    assert seen.effective.take_reserved_claims() == {(name, "ann"), (name, "vps")}
    assert seen.effective.take_reserved_claims() == set()
