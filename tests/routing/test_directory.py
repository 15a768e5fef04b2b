"""What routing knows of the room: a picture of the view, and who is believed to be there."""

from msgspec.structs import replace

from gatepost.room import RoutingRecord
from gatepost.routing import AgentHome, DirectoryBuilder, RoutingRule, build_directory
from tests.room.sample_records import ROOT, agent, author, claim, entry, publish, room

VPS = author("vps", "backbone")
RULE = RoutingRecord(
    owner_node_id="root",
    fallback_node_ids=("vps",),
    requires_capabilities=("gpu",),
    priority_default=5,
    epoch=2,
)


def test_the_picture_is_what_the_view_shows() -> None:
    found = room(
        entry(ROOT),
        entry(VPS, capabilities=("gpu",)),
        claim(ROOT, "agents", "job", agent("root")),
        claim(VPS, "agents", "job", replace(agent("vps"), standby=True)),
        claim(ROOT, "routing", "job", RULE),
    )
    picture = build_directory(found.effective, lambda id: id == "vps")
    online = [picture.is_online(id) for id in ("vps", "root", "nobody", None)]
    assert online == [True, False, False, False]
    assert picture.gateways["vps"].key == VPS.key.public
    assert picture.gateways["vps"].capabilities == {"gpu"}
    assert picture.agents == {"job": AgentHome("root", ("vps",))}
    assert picture.rules == {"job": RoutingRule("root", ("vps",), frozenset({"gpu"}), 5, 2)}


def test_rivals_are_in_the_picture() -> None:
    found = room(
        entry(ROOT),
        entry(VPS),
        claim(ROOT, "agents", "job", agent("root")),
        claim(VPS, "agents", "job", agent("vps")),
    )
    assert build_directory(found.effective, lambda id: True).agents == {
        "job": AgentHome("root", (), ("vps",))
    }


def test_agents_are_copied_again_only_if_one_has_moved() -> None:
    found = room(entry(ROOT), entry(VPS), claim(ROOT, "agents", "job", agent("root")), of=ROOT)
    builder = DirectoryBuilder()

    def agents() -> dict[str, AgentHome]:
        return builder.build_directory(found.effective, lambda id: True).agents

    first = agents()
    publish(found, "agents", "job@root", replace(agent("root"), last_seen_at=9), 9)
    assert agents() is first, "a heartbeat moves nobody"
    publish(found, "agents", "two@root", agent("root"), 9)
    assert agents() == {"job": AgentHome("root"), "two": AgentHome("root")}
