"""Hostile datagrams: each is refused for its own reason, and the good ones still pass."""

import json
from random import Random

import pytest

from gatepost.mesh.datagram_judge import SkewedMessage
from gatepost.mesh.datagram_signature import NodeKeySigner, append_signature
from gatepost.mesh.members import MeshMember, TunnelPlace
from gatepost.mesh.messages import (
    Heartbeat,
    LeaseClaim,
    MeshMessage,
    MeshRole,
    PeerAnnounce,
    encode_message,
)
from gatepost.mesh.refusals import Refusal
from tests.mesh.harness import Wire, WirePeer, at

BEAT = Heartbeat(role=MeshRole.STANDBY, known_peers=(), intro_point_count=0)


@pytest.fixture
def ann() -> WirePeer:
    return WirePeer("ann")


@pytest.fixture
def bob(ann: WirePeer) -> WirePeer:
    """Bob hears ann. Neither knows the address of the other yet."""
    bob = WirePeer("bob")
    Wire(ann, bob)
    return bob


def judge(bob: WirePeer, datagram: bytes, source: str = "ann:7", now: int = 0) -> object:
    return bob.judge.judge_datagram(datagram, source, at(now))


def test_a_datagram_of_a_member_is_its_message(ann: WirePeer, bob: WirePeer) -> None:
    assert judge(bob, ann.sign(BEAT, "bob")) == MeshMessage("ann", BEAT, "bob")


def test_an_unknown_sender_is_refused_before_anything_else_is_looked_at(bob: WirePeer) -> None:
    """The order of the protocol: sender, then timestamp, then payload."""
    zed = WirePeer("zed")
    assert judge(bob, zed.sign(BEAT, "bob")) is Refusal.UNKNOWN_SENDER
    assert judge(bob, zed.sign(BEAT, "bob", now=60_000)) is Refusal.UNKNOWN_SENDER
    text = b'{"node_id":"zed","timestamp":0,"type":"x","payload":7}'
    assert judge(bob, text) is Refusal.UNKNOWN_SENDER


def test_names_and_cookies_of_any_form_are_judged(ann: WirePeer, bob: WirePeer) -> None:
    fields = {"timestamp": at(0).unix_secs, "type": "heartbeat", "payload": {}}
    nobody = json.dumps({"node_id": "\0é", **fields}).encode()
    assert judge(bob, nobody) is Refusal.UNKNOWN_SENDER
    elsewhere = json.dumps({"node_id": "ann", **fields, "to": "\0é"}).encode()
    assert judge(bob, elsewhere) is Refusal.WRONG_RECEIVER
    echo = json.dumps({"node_id": "ann", **fields, "to": "bob", "echo": "é"}).encode()
    assert judge(bob, append_signature(echo, ann.signer)) is Refusal.BAD_PAYLOAD


@pytest.mark.parametrize(("secs", "passes"), [(5, True), (6, False), (-5, True), (-6, False)])
def test_the_clock_window_is_five_seconds(
    ann: WirePeer, bob: WirePeer, secs: int, passes: bool
) -> None:
    text = encode_message(MeshMessage("ann", BEAT, "bob"), at(0).unix_secs + secs)
    verdict = judge(bob, append_signature(text, ann.signer))
    message = MeshMessage("ann", BEAT, "bob")
    assert verdict == (message if passes else SkewedMessage(message, secs))


def test_a_bad_timestamp_counts_before_a_bad_payload(ann: WirePeer, bob: WirePeer) -> None:
    text = b'{"node_id":"ann","timestamp":0,"type":"heartbeat","payload":7,"to":"bob"}'
    assert judge(bob, append_signature(text, ann.signer)) is Refusal.CLOCK_SKEW
    text = text.replace(b":0,", b":%d," % at(0).unix_secs)
    assert judge(bob, append_signature(text, ann.signer)) is Refusal.BAD_PAYLOAD


def test_nobody_speaks_in_the_name_of_another(ann: WirePeer, bob: WirePeer) -> None:
    eve = WirePeer("eve")
    text = encode_message(MeshMessage("ann", LeaseClaim(0), "bob"), at(0).unix_secs)
    assert judge(bob, append_signature(text, eve.signer)) is Refusal.BAD_SIGNATURE
    assert judge(bob, text) is Refusal.BAD_SIGNATURE
    other_room = NodeKeySigner(ann.key, b"another room")
    assert judge(bob, append_signature(text, other_room)) is Refusal.BAD_SIGNATURE
    own = encode_message(MeshMessage("bob", BEAT, "bob"), at(0).unix_secs)
    assert judge(bob, append_signature(own, bob.signer)) is Refusal.UNKNOWN_SENDER


def test_a_datagram_counts_once(ann: WirePeer, bob: WirePeer) -> None:
    datagram = ann.sign(BEAT, "bob")
    assert isinstance(judge(bob, datagram), MeshMessage)
    assert judge(bob, datagram, now=4_000) is Refusal.REPLAYED
    assert judge(bob, datagram, source="eve:7", now=4_000) is Refusal.REPLAYED
    assert judge(bob, datagram, now=6_000) == SkewedMessage(MeshMessage("ann", BEAT, "bob"), -6)


def test_only_an_authentic_datagram_tells_how_far_a_clock_is_off(
    ann: WirePeer, bob: WirePeer
) -> None:
    text = encode_message(MeshMessage("ann", BEAT, "bob"), at(0).unix_secs + 3660)
    assert judge(bob, append_signature(text, _Forger())) is Refusal.CLOCK_SKEW
    assert judge(bob, text) is Refusal.CLOCK_SKEW
    skewed = SkewedMessage(MeshMessage("ann", BEAT, "bob"), 3660)
    assert judge(bob, append_signature(text, ann.signer)) == skewed


def test_old_datagrams_that_a_stranger_repeats_keep_no_member_from_being_heard(
    ann: WirePeer, bob: WirePeer
) -> None:
    cookie = bob.engine._cookies.cookie_for("ann", "ann:7")
    old = ann.sign(BEAT, "bob", echo=cookie)
    verdicts = [judge(bob, old, now=20_000) for _ in range(1_000)]
    assert Refusal.CLOCK_SKEW in verdicts, "few of them cost a signature"
    fresh = ann.sign(BEAT, "bob", now=20_000, echo=cookie)
    assert isinstance(judge(bob, fresh, now=20_000), MeshMessage)


def test_a_repeated_datagram_or_one_for_anybody_costs_no_signature(
    ann: WirePeer, bob: WirePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    datagram, for_anybody = ann.sign(BEAT, "bob"), ann.sign(BEAT, None)
    assert isinstance(judge(bob, datagram), MeshMessage)
    monkeypatch.setattr(bob.signer, "verify", pytest.fail)
    assert judge(bob, datagram) is Refusal.REPLAYED
    assert judge(bob, for_anybody) is Refusal.WRONG_RECEIVER


def test_a_forgery_does_not_make_its_original_a_repetition(ann: WirePeer, bob: WirePeer) -> None:
    text = encode_message(MeshMessage("ann", BEAT, "bob"), at(0).unix_secs)
    assert judge(bob, append_signature(text, _Forger())) is Refusal.BAD_SIGNATURE
    assert isinstance(judge(bob, append_signature(text, ann.signer)), MeshMessage)


def test_a_datagram_for_another_node_is_not_passed_on(ann: WirePeer, bob: WirePeer) -> None:
    assert judge(bob, ann.sign(BEAT, "cat")) is Refusal.WRONG_RECEIVER
    assert judge(bob, ann.sign(BEAT, None)) is Refusal.WRONG_RECEIVER
    assert isinstance(judge(bob, ann.sign(PeerAnnounce("", "", "", ""), None)), MeshMessage)


def test_an_oversized_datagram_is_not_decoded(ann: WirePeer, bob: WirePeer) -> None:
    announce = PeerAnnounce("", "", "", "", padding="." * 1200)
    text = encode_message(MeshMessage("ann", announce, "bob"), at(0).unix_secs)
    assert judge(bob, append_signature(text, ann.signer)) is Refusal.OVERSIZED
    assert judge(bob, b"[" * 100_000) is Refusal.OVERSIZED


def test_inside_a_tunnel_the_tunnel_authenticates(ann: WirePeer, bob: WirePeer) -> None:
    member = MeshMember("ann", ann.key.public, True, tunnel=TunnelPlace("10.200.200.2"))
    bob.judge.members = {"ann": member}
    text = encode_message(MeshMessage("ann", BEAT), at(0).unix_secs)
    assert judge(bob, text, source="10.200.200.3:51820") is Refusal.BAD_SIGNATURE
    assert isinstance(judge(bob, text, source="10.200.200.2:51820"), MeshMessage)


def test_inside_a_tunnel_the_cluster_token_may_be_shown(ann: WirePeer, bob: WirePeer) -> None:
    bob.node.set_cluster_tokens(("token",))
    bob.judge.members = {
        "ann": MeshMember("ann", ann.key.public, True, tunnel=TunnelPlace("10.200.200.2"))
    }
    for token, counts in (("token", True), ("wrong", False), ("", False)):
        message = MeshMessage("ann", PeerAnnounce(token, "", "", ""))
        text = encode_message(message, at(0).unix_secs)
        signed = append_signature(encode_message(message, at(0).unix_secs, 1), ann.signer)
        verdict = judge(bob, text, source="10.200.200.2:51820")
        assert verdict == (message if counts else Refusal.BAD_HMAC)
        assert judge(bob, signed, source="192.0.2.7:7", now=1000) is Refusal.BAD_HMAC


def test_an_announcement_needs_the_cluster_token_where_there_is_one(
    ann: WirePeer, bob: WirePeer
) -> None:
    bob.node.set_cluster_tokens(("token",))
    announce = ann.sign(PeerAnnounce("", "", "", ""), "bob")
    assert judge(bob, announce) is Refusal.BAD_HMAC


def test_a_flood_of_forgeries_costs_few_signatures_and_silences_nobody(
    ann: WirePeer, bob: WirePeer
) -> None:
    cookie = bob.engine._cookies.cookie_for("ann", "ann:7")
    checked = 0
    for number in range(20_000):
        text = encode_message(MeshMessage("ann", LeaseClaim(number), "bob"), at(0).unix_secs)
        forged = append_signature(text, _Forger())
        verdict = judge(bob, forged, source=f"10.0.{number % 250}.1:7", now=number // 20)
        checked += verdict is Refusal.BAD_SIGNATURE
        assert verdict in (Refusal.BAD_SIGNATURE, Refusal.RATE_LIMITED)
    assert checked <= 400 + 200 + 1
    datagram = ann.sign(BEAT, "bob", echo=cookie)
    assert isinstance(judge(bob, datagram, now=1_000), MeshMessage)


def test_a_flood_of_strangers_keeps_no_member_from_becoming_known(
    ann: WirePeer, bob: WirePeer
) -> None:
    """Such as a node that was started again, which everybody has to get to know anew."""
    for node in (ann, bob):
        node.node.set_cluster_tokens(("token",))
    forged = PeerAnnounce("", "", "", "", hmac="A" * 44)
    for number in range(1_000):
        message = MeshMessage("ann", forged, "bob")
        text = encode_message(message, at(0).unix_secs, seq=number)
        judge(bob, append_signature(text, _Forger()), source=f"10.0.{number % 250}.1:7")
    assert judge(bob, ann.sign(BEAT, "bob")) is Refusal.RATE_LIMITED
    announce = ann.engine.outgoing.announce_to("bob:7", "bob").message.payload
    verdicts = [judge(bob, ann.sign(announce, "bob")) for _ in range(20)]
    assert all(isinstance(verdict, MeshMessage) for verdict in verdicts[:10])
    assert verdicts[10:] == [Refusal.RATE_LIMITED] * 10, "a member cannot flood with them either"


def test_a_member_that_floods_is_limited_alone(ann: WirePeer) -> None:
    bob, eve = WirePeer("bob"), WirePeer("eve", may_lead=False)
    Wire(ann, bob, eve)
    cookies = bob.engine._cookies
    echo = cookies.cookie_for("eve", "eve:7")
    verdicts = [
        judge(bob, eve.sign(LeaseClaim(n), "bob", echo=echo), source="eve:7") for n in range(300)
    ]
    assert verdicts.count(Refusal.RATE_LIMITED) == 200
    echo = cookies.cookie_for("ann", "ann:7")
    assert isinstance(judge(bob, ann.sign(BEAT, "bob", echo=echo)), MeshMessage)


def test_mutated_datagrams_never_raise_and_never_count(ann: WirePeer, bob: WirePeer) -> None:
    random, datagram = Random(7), ann.sign(BEAT, "bob")
    for number in range(3_000):
        mutated = bytearray(datagram)
        for _ in range(random.randint(1, 8)):
            mutated[random.randrange(len(mutated))] = random.randrange(256)
        del mutated[random.randint(1, len(mutated)) :]
        verdict = judge(bob, bytes(mutated), source=f"eve:{number}", now=number * 10)
        assert isinstance(verdict, Refusal) or bytes(mutated) == datagram


def test_signed_nonsense_of_a_member_never_raises(ann: WirePeer, bob: WirePeer) -> None:
    random = Random(8)
    values: list[object] = [None, -1, 2**70, 1.5, "", "\x00", "é" * 9, [], {}, [[]] * 9, True]
    for number in range(500):
        payload = {
            name: random.choice(values)
            for name in ("role", "known_peers", "priority", "term", "backend", "intro_points")
        }
        kind = random.choice(["heartbeat", "lease_claim", "peer_announce", "unheard of", ""])
        whole = {"node_id": "ann", "timestamp": at(number * 100).unix_secs, "type": kind}
        text = json.dumps(whole | {"payload": payload, "to": "bob"}).encode()
        verdict = judge(bob, append_signature(text, ann.signer), now=number * 100)
        assert verdict in (Refusal.BAD_PAYLOAD, Refusal.RATE_LIMITED)


class _Forger:
    def sign(self, text: bytes) -> bytes:
        return b"\x01" * 64

    def verify(self, public_key: bytes, text: bytes, signature: bytes) -> bool:
        return False
