import apsw
import pytest

from gatepost.access import CombinedNodeDirectory, KnownNode
from gatepost.journal import Tx
from gatepost.room.admission_chain import AdmissionLink, ChainVerifier, Genesis
from tests.access.harness import START, AccessHarness, key, refused


class Told:
    """A directory that knows what it was told, as the room's view will."""

    def __init__(self, *known: KnownNode, admitted: tuple[KnownNode, ...] = ()) -> None:
        self._known = known
        self._admitted = admitted

    def by_id(self, tx: Tx, node_id: str) -> KnownNode | None:
        return next((s for s in self._known if s.node_id == node_id), None)

    def by_key(self, tx: Tx, public_key: bytes) -> KnownNode | None:
        return next((s for s in self._known if s.public_key == public_key), None)

    def admitted_by(self, tx: Tx, node_id: str) -> list[KnownNode]:
        return list(self._admitted)


def test_an_admission_names_the_node_its_tier_and_its_issuer(harness: AccessHarness) -> None:
    admission = harness.join("mbp-jane", tier="backbone").admission
    assert admission is not None
    assert (admission.node_id, admission.public_key) == ("mbp-jane", key("mbp-jane").public)
    assert (admission.tier, admission.issuer, admission.issued_at) == (
        "backbone",
        "vps-jane",
        START,
    )


def test_an_admission_is_the_link_by_which_the_room_traces_a_node(harness: AccessHarness) -> None:
    made = harness.join("mbp-jane").admission
    assert made is not None
    link = AdmissionLink(made.node_id, made.tier, made.issued_at, made.public_key, made.signature)
    ChainVerifier(Genesis("vps-jane", harness.issuer.key.public)).verify_chain((link,))


def test_the_journal_knows_whom_it_admitted_by_id_and_by_key(harness: AccessHarness) -> None:
    harness.join("mbp-jane")
    public = key("mbp-jane").public
    expected = KnownNode("mbp-jane", public, "edge", False)
    assert harness.run(lambda tx: harness.directory.by_id(tx, "mbp-jane")) == expected
    assert harness.run(lambda tx: harness.directory.by_key(tx, public)) == expected
    assert harness.run(lambda tx: harness.directory.by_id(tx, "lab-jane")) is None
    assert harness.run(lambda tx: harness.directory.admitted_by(tx, "vps-jane")) == [expected]


def test_a_node_invited_again_changes_its_tier_and_keeps_its_key(harness: AccessHarness) -> None:
    harness.join("mbp-jane", tier="edge")
    again = harness.join("mbp-jane", tier="backbone").admission
    assert harness.admissions() == [again]
    assert again is not None
    assert again.tier == "backbone"


def test_storage_itself_binds_an_id_to_its_key(harness: AccessHarness) -> None:
    harness.join("mbp-jane")
    with pytest.raises(apsw.ConstraintError, match="never changes"):
        harness.connection.execute("UPDATE admission SET public_key = x'00'")


def test_of_several_directories_the_one_that_says_revoked_is_right(harness: AccessHarness) -> None:
    fine = KnownNode("a", b"1", "edge", False)
    out = KnownNode("a", b"1", "edge", True)
    tx = Tx(harness.connection, START)
    x, y, z = (KnownNode(name, name.encode(), "edge", False) for name in "xyz")
    both = CombinedNodeDirectory(Told(fine, admitted=(x, y)), Told(out, admitted=(y, z)))
    assert both.by_id(tx, "a") == both.by_key(tx, b"1") == out
    assert both.admitted_by(tx, "a") == [x, y, z]
    assert both.by_id(tx, "b") is None
    assert CombinedNodeDirectory(Told(), Told(fine)).by_id(tx, "a") == fine


@pytest.mark.parametrize(("id", "name"), [("vps-jane", "eve"), ("eve", "vps-jane")])
def test_nobody_joins_as_the_gateway_itself(harness: AccessHarness, id: str, name: str) -> None:
    request = harness.joiner(name, node_id=id).with_invite(harness.invite().token)
    with refused("node_mismatch"):
        harness.exchange(request)
