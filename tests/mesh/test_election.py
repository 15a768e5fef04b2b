from gatepost.mesh.election import MAX_TERM_JUMP, Election, ElectionView
from gatepost.mesh.election_states import (
    TRANSITIONS,
    ElectionInput,
    ElectionState,
    describe_leader,
)
from gatepost.mesh.mesh_time import MeshTimers
from gatepost.wire.mesh_views import MAX_COUNTER, Term

TIMERS = MeshTimers()
BEST = ElectionView(is_alone=False, is_best=True)
WORSE = ElectionView(is_alone=False, is_best=False)
ALONE = ElectionView(is_alone=True, is_best=True)
PUBLISHER, STANDBY = ElectionState.PUBLISHER, ElectionState.STANDBY
SUSPECT, VACANT = ElectionState.SUSPECT, ElectionState.VACANT


def elect(name: str = "bob", priority: int = 20, honoured: Term | None = None) -> Election:
    return Election((priority, name), True, TIMERS, 0, honoured)


def lead(election: Election) -> Election:
    election.check_timers(0, ALONE)
    assert election.is_publisher
    return election


def test_the_takeover_of_the_protocol() -> None:
    bob = elect()
    bob.hear_publisher((10, "ann"), Term(4, "ann"), now=0)
    bob.check_timers(29_999, BEST)
    assert (bob.state, bob.publisher) == (STANDBY, "ann")
    bob.check_timers(30_000, BEST)
    assert (bob.state, bob.publisher) == (SUSPECT, "ann")
    bob.check_timers(119_999, BEST)
    assert bob.state is SUSPECT
    bob.check_timers(120_000, BEST)
    assert (bob.state, bob.honoured, bob.takeovers) == (PUBLISHER, Term(5, "bob"), 1)


def test_a_worse_node_leaves_the_office_to_a_better_one() -> None:
    bob = elect()
    bob.check_timers(120_000, WORSE)
    assert bob.state is VACANT
    bob.hear_publisher((10, "ann"), Term(1, "ann"), now=120_000)
    assert (bob.state, bob.publisher) == (STANDBY, "ann")


def test_a_node_that_may_not_lead_never_does() -> None:
    edge = Election((0, "edge"), False, TIMERS, 0)
    for view in (ALONE, BEST):
        edge.check_timers(500_000, view)
        assert edge.state is VACANT


def test_a_node_without_peers_leads_at_once_and_goes_on_when_they_come() -> None:
    bob = lead(elect())
    assert bob.honoured == Term(1, "bob")
    bob.check_timers(10_000, WORSE)
    assert bob.is_publisher and bob.honoured == Term(1, "bob")


def test_a_publisher_steps_down_for_a_better_one_only() -> None:
    bob = lead(elect())
    bob.hear_publisher((30, "cat"), Term(1, "cat"), now=0)
    assert bob.is_publisher
    bob.hear_publisher((20, "zed"), Term(1, "zed"), now=0)
    assert bob.is_publisher
    bob.hear_publisher((20, "ann"), Term(2, "ann"), now=0)
    assert (bob.state, bob.publisher) == (STANDBY, "ann")


def test_a_contested_publisher_claims_a_higher_term_on_its_next_heartbeat() -> None:
    bob = lead(elect())
    bob.hear_publisher((30, "cat"), Term(7, "cat"), now=0)
    assert bob.honoured == Term(1, "bob")
    bob.check_timers(10_000, BEST)
    assert (bob.state, bob.honoured, bob.takeovers) == (PUBLISHER, Term(8, "bob"), 1)
    bob.check_timers(20_000, BEST)
    assert bob.honoured == Term(8, "bob")


def test_two_publishers_of_one_counter_are_never_both_honoured() -> None:
    cat = elect("cat")
    cat.hear_publisher((20, "bob"), Term(5, "bob"), now=0)
    cat.hear_publisher((10, "ann"), Term(5, "ann"), now=0)
    assert cat.honoured == Term(5, "bob")
    cat.hear_publisher((10, "ann"), Term(6, "ann"), now=0)
    assert cat.honoured == Term(6, "ann")
    cat.hear_publisher((20, "bob"), Term(5, "bob"), now=0)
    assert cat.honoured == Term(6, "ann")


def test_a_released_lease_needs_no_grace_and_only_its_holder_releases_it() -> None:
    bob = elect()
    bob.hear_publisher((10, "ann"), Term(1, "ann"), now=0)
    assert not bob.hear_release("eve", None)
    assert not bob.hear_release("ann", Term(9, "ann"))
    assert bob.state is STANDBY
    assert bob.hear_release("ann", Term(1, "ann"))
    bob.take_vacant_office(BEST)
    assert (bob.state, bob.honoured) == (PUBLISHER, Term(2, "bob"))


def test_a_publisher_that_restarts_listens_before_it_claims_again() -> None:
    bob = elect(honoured=Term(3, "bob"))
    assert (bob.state, bob.publisher) == (STANDBY, None)
    bob.check_timers(20_000, BEST)
    assert bob.state is STANDBY
    bob.check_timers(30_000, BEST)
    assert bob.honoured == Term(4, "bob") and bob.is_publisher


def test_a_publisher_that_slept_longer_than_its_lease_has_lost_it() -> None:
    bob = lead(elect())
    bob.skip_time(119_999, now=119_999)
    assert bob.is_publisher
    bob.skip_time(120_000, now=240_000)
    assert bob.state is SUSPECT
    bob.check_timers(240_001, WORSE)
    assert not bob.is_publisher


def test_time_that_this_process_slept_is_no_silence_of_the_publisher() -> None:
    bob = elect()
    bob.hear_publisher((10, "ann"), Term(1, "ann"), now=0)
    bob.skip_time(500_000, now=500_000)
    bob.check_timers(500_000, BEST)
    assert bob.state is STANDBY


def test_reports_of_others_raise_the_counter_but_honour_nobody() -> None:
    bob = elect()
    bob.hear_report(Term(9, "zed"), None, now=0)
    assert bob.honoured is None
    bob.check_timers(120_000, BEST)
    assert bob.honoured == Term(10, "bob")


def test_a_report_deposes_a_publisher_only_for_a_better_one_of_a_later_term() -> None:
    for term, rank, stays in (
        (Term(9, "ann"), None, True),
        (Term(9, "cat"), (30, "cat"), True),
        (Term(0, "ann"), (10, "ann"), True),
        (Term(9, "ann"), (10, "ann"), False),
    ):
        bob = lead(elect())
        bob.hear_report(term, rank, now=0)
        assert bob.is_publisher == stays, (term, rank)


def test_a_term_that_cannot_be_true_changes_nothing() -> None:
    bob = lead(elect())
    assert not bob.hear_publisher((0, "ann"), Term(MAX_TERM_JUMP + 2, "ann"), now=0)
    assert not bob.hear_publisher((0, "ann"), Term(2, "zed"), now=0)
    assert not bob.hear_report(Term(MAX_COUNTER, "ann"), (0, "ann"), now=0)
    assert bob.is_publisher and bob.highest == Term(1, "bob")


def test_the_table_has_every_state_and_input() -> None:
    assert {source for source, _ in TRANSITIONS} == set(TRANSITIONS.values()) == set(ElectionState)
    assert {input for _, input in TRANSITIONS} == set(ElectionInput)


def test_one_sentence_says_who_leads_and_calls_no_gateway_suspect_that_is_not() -> None:
    own = "bob, this gateway"
    assert describe_leader("bob", "bob", PUBLISHER, 2) == f"{own}, leads the mesh in term 2"
    assert describe_leader("bob", "ann", STANDBY, 3) == (
        f"ann leads the mesh in term 3; {own}, stands by"
    )
    assert describe_leader("bob", "ann", SUSPECT, 3) == (
        f"ann leads the mesh in term 3, but is silent; {own}, stands by"
    )
    assert describe_leader("bob", None, VACANT, 3) == (
        f"no gateway leads the mesh: the lease is free; {own}, stands by"
    )
    for state in (STANDBY, SUSPECT, "waiting"):
        found = describe_leader("bob", None, state, None)
        assert found == f"no gateway leads the mesh yet; {own}, listens"
