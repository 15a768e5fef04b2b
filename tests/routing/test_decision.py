"""Whom a message is routed to: owner, fallback or nobody, and the same on every gateway."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gatepost.errors import NoRoute, UnknownAgent
from gatepost.routing import (
    AgentHome,
    GatewayEntry,
    Route,
    RoutingDirectory,
    RoutingRule,
    decide_route,
    may_speak_for,
)

KEY = b"k" * 32


def gateway(*capabilities: str, online: bool = True) -> GatewayEntry:
    return GatewayEntry(KEY, online, frozenset(capabilities))


def directory(
    home: AgentHome | None = None,
    rules: dict[str, RoutingRule] | None = None,
    **gateways: GatewayEntry,
) -> RoutingDirectory:
    """Of the agent `job`. Gateways `own`, `one` and `two` are there unless told otherwise."""
    known = {"me": gateway(), "own": gateway(), "one": gateway(), "two": gateway()}
    homes = {} if home is None else {"job": home}
    return RoutingDirectory(known | gateways, homes, rules or {})


AWAY = gateway(online=False)
HOME = AgentHome("own", ("one", "two"))
RULE = RoutingRule("own", ("two", "one"))


def to(picture: RoutingDirectory, *refused: str, me: str = "me", hosted: bool = False) -> Route:
    return decide_route(picture, me, "job", hosted=hosted, refused=frozenset(refused))


def test_mail_goes_to_the_owner() -> None:
    assert to(directory(HOME)) == Route("own", "owner")


def test_an_agent_of_ours_is_local_known_to_the_room_or_not() -> None:
    assert to(directory(HOME), me="own") == Route("own", "local")
    assert to(directory(), hosted=True) == Route("me", "local")


def test_what_the_room_says_counts_more_than_what_is_hosted_here() -> None:
    assert to(directory(HOME), hosted=True).node == "own"


def test_an_owner_that_is_away_keeps_its_mail() -> None:
    assert to(directory(HOME, own=AWAY)) == Route("own", "owner"), "no rule names a fallback"
    nobody = directory(HOME, {"job": RULE}, own=AWAY, one=AWAY, two=AWAY)
    assert to(nobody) == Route("own", "owner", offer=True, version=1)


def test_with_a_fallback_everything_is_an_offer() -> None:
    assert to(directory(HOME, {"job": RULE})) == Route("own", "owner", offer=True, version=1)


def test_fallbacks_are_asked_in_the_order_of_the_rule() -> None:
    picture = directory(HOME, {"job": RULE}, own=AWAY)
    assert to(picture) == Route("two", "fallback", offer=True, version=1)
    assert to(replace(picture, gateways=picture.gateways | {"two": AWAY})).node == "one"
    assert to(picture, "two").node == "one"


def test_only_who_stands_by_is_a_fallback() -> None:
    assert to(directory(AgentHome("own"), {"job": RULE}, own=AWAY)) == Route(
        "own", "owner", version=1
    )
    assert to(directory(AgentHome("own", ("one",)), {"job": RULE}, own=AWAY)).node == "one"


def test_standing_by_without_a_rule_is_nothing() -> None:
    assert to(directory(HOME, own=AWAY)).node == "own"


def test_a_fallback_here_is_local() -> None:
    picture = directory(HOME, {"job": RULE}, own=AWAY)
    assert to(picture, me="two") == Route("two", "local", version=1)


def test_a_rule_for_the_node_holds_for_its_agents() -> None:
    picture = directory(HOME, {"own": RULE}, own=AWAY)
    assert to(picture).node == "two"


def test_a_rule_for_the_agent_comes_before_one_for_its_node() -> None:
    rules = {"own": RULE, "job": RoutingRule("own", ("one",), priority=7, version=3)}
    assert to(directory(HOME, rules, own=AWAY)) == Route("one", "fallback", True, 7, 3)


def test_a_rule_for_another_node_says_nothing() -> None:
    assert to(directory(HOME, {"two": RULE}, own=AWAY)) == Route("own", "owner")


def test_who_lacks_a_capability_gets_nothing() -> None:
    rules = {"job": replace(RULE, requires=frozenset({"gpu"}))}
    able = gateway("gpu", "disk")
    assert to(directory(HOME, rules, own=able)).node == "own"
    assert to(directory(HOME, rules, one=able)).node == "one"
    with pytest.raises(NoRoute):
        to(directory(HOME, rules))


def test_who_refused_is_not_asked_again() -> None:
    picture = directory(HOME, {"job": RULE})
    assert to(picture, "own").node == "two"
    assert to(picture, "own", "two") == Route("one", "fallback", version=1), "the last is no offer"
    with pytest.raises(NoRoute):
        to(picture, "own", "two", "one")


def test_a_rule_alone_names_an_owner() -> None:
    assert to(directory(None, {"job": RoutingRule("two")})) == Route("two", "owner", version=1)


def test_nobody_ever_heard_of_it() -> None:
    with pytest.raises(UnknownAgent, match="gatepost agent add job"):
        to(directory())


def test_an_agent_that_left_has_no_route() -> None:
    with pytest.raises(NoRoute):
        to(directory(AgentHome(None)))


def test_an_owner_that_left_the_room_takes_nothing() -> None:
    with pytest.raises(NoRoute):
        to(directory(AgentHome("gone")))
    rules = {"job": RoutingRule("gone", ("one",))}
    assert to(directory(AgentHome("gone", ("one",)), rules)).node == "one"


# -- the same everywhere

NODES = ("a", "b", "c", "d", "e")
some_nodes = st.lists(st.sampled_from(NODES), unique=True, max_size=4).map(tuple)
some_capabilities = st.frozensets(st.sampled_from(("gpu", "disk")))
rules = st.builds(
    RoutingRule,
    st.sampled_from(NODES),
    some_nodes,
    some_capabilities,
    st.integers(0, 9),
    st.integers(1, 9),
)
pictures = st.builds(
    RoutingDirectory,
    st.dictionaries(
        st.sampled_from(NODES),
        st.builds(GatewayEntry, st.just(KEY), st.booleans(), some_capabilities),
    ),
    st.dictionaries(
        st.just("job"), st.builds(AgentHome, st.none() | st.sampled_from(NODES), some_nodes)
    ),
    st.dictionaries(st.sampled_from(("job", *NODES)), rules, max_size=3),
)
refusals = st.frozensets(st.sampled_from(NODES), max_size=3)


def answer(picture: RoutingDirectory, me: str, refused: frozenset[str]) -> str:
    try:
        return decide_route(picture, me, "job", refused=refused).node
    except (NoRoute, UnknownAgent) as error:
        return error.code


@given(pictures, refusals)
def test_every_gateway_decides_the_same(picture: RoutingDirectory, refused: frozenset[str]) -> None:
    """Wherever it is asked, and in whatever order the room was read. One's own is always there."""
    shuffled = RoutingDirectory(
        dict(reversed(picture.gateways.items())),
        dict(reversed(picture.agents.items())),
        dict(reversed(picture.rules.items())),
    )
    members = [id for id, found in picture.gateways.items() if found.online]
    answers = {answer(each, me, refused) for each in (picture, shuffled) for me in members}
    assert len(answers) <= 1


@given(pictures, refusals)
def test_whoever_gets_it_may_have_it(picture: RoutingDirectory, refused: frozenset[str]) -> None:
    try:
        found = decide_route(picture, "outside", "job", refused=refused)
    except (NoRoute, UnknownAgent):
        return
    home = picture.agents.get("job")
    owner = home.owner if home else None
    rule = picture.rules.get("job") or picture.rules.get(owner or "")
    assert found.node not in refused
    assert rule is None or rule.requires <= picture.gateways[found.node].capabilities
    if found.decision == "fallback":
        assert home is not None
        assert rule is not None
        assert picture.is_online(found.node)
        assert found.node in home.standbys
        assert found.node in rule.fallbacks
    else:
        assert found.node == (owner or (rule and rule.owner))


# -- who may speak for an agent


@pytest.mark.parametrize(
    ("home", "rules", "may"),
    [
        (None, {}, {"own", "one", "two"}),
        (AgentHome(None), {}, {"own", "one", "two"}),
        (AgentHome("own"), {}, {"own"}),
        (AgentHome("own", former=("one",)), {}, {"own", "one"}),
        (AgentHome("own", rivals=("one",)), {}, {"own"}),
        (HOME, {}, {"own"}),
        (HOME, {"job": RoutingRule("own", ("two",))}, {"own", "two"}),
        (HOME, {"own": RoutingRule("own", ("one",))}, {"own", "one"}),
        (AgentHome("own"), {"job": RULE}, {"own"}),
    ],
)
def test_a_node_speaks_for_its_agents_its_former_ones_and_those_it_stands_in_for(
    home: AgentHome | None, rules: dict[str, RoutingRule], may: set[str]
) -> None:
    known = directory(home, rules)
    assert {node for node in ("own", "one", "two") if may_speak_for(known, node, "job")} == may


def test_an_agent_called_unhealthy_by_its_gateway_is_avoided_but_never_refused() -> None:
    def ill(*nodes: str) -> RoutingDirectory:
        unhealthy = frozenset((node, "job") for node in nodes)
        return replace(directory(HOME, {"job": RULE}), unhealthy=unhealthy)

    assert to(ill()).node == "own"
    assert to(ill("own")) == Route("two", "fallback", True, version=1)
    assert to(ill("own", "two")).node == "one"
    assert to(ill("own", "two", "one")).node == "own"
    assert to(ill("own"), me="own").node == "own"
    assert to(ill("two"), "own").node == "one"
    alone = replace(directory(HOME), unhealthy=frozenset({("own", "job")}))
    assert to(alone).node == "own"


@pytest.mark.parametrize("name", ["operator", "Hub"])
def test_no_rule_makes_a_reserved_name_reachable(name: str) -> None:
    seen = RoutingDirectory(
        gateways={"ann": gateway()},
        agents={name: AgentHome("ann")},
        rules={name: RoutingRule("ann")},
    )
    with pytest.raises(UnknownAgent):
        decide_route(seen, "bob", name)
