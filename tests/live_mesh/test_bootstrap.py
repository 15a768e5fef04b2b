"""Real gateways that join with the join secret, and share it: ann founds, the others find her."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from gatepost.access.join_secret import parse_join_secret
from gatepost.access.node_invites import read_invite_issuer
from gatepost.mesh.bootstrap import BootstrapAnswer, BootstrapRequest
from gatepost.mesh.rendezvous import DESCRIPTOR_PATH, verify_document
from tests.cli.conftest import Cli
from tests.live_mesh.conftest import running
from tests.live_mesh.tools import BareNode, Gateway
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(240)
NAMES = {"ann", "bob", "cat"}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Gateway]]:
    """Bob joins via the descriptor file of ann, and cat via the address of bob."""
    folder = tmp_path_factory.mktemp("bootstrap")
    options = {"log__level": "debug", "bootstrap__tier": "backbone"}
    with running(folder, "ann", "bob", "cat", **options) as (ann, bob, cat):
        ann.invite()
        secret, file = folder / "join-secret", folder / "descriptor.json"
        wait_until(lambda: knows_secrets(ann) and points_of(ann) == {"ann"})
        Cli(ann.state_dir).ok("mesh", "secret", "--file", str(secret))
        assert secret.stat().st_mode & 0o777 == 0o600
        shown = Cli(ann.state_dir).ok("mesh", "descriptor", "--file", str(file))
        assert [line.split("\t")[0] for line in shown.splitlines()[1:]] == ["ann"]
        text = secret.read_bytes()
        told = Cli(bob.state_dir).ok("join", "--via", str(file), "--token", "-", stdin=text)
        assert told == "joined the room of ann through ann, as backbone node\n"
        wait_until(lambda: points_of(bob) == {"ann", "bob"})
        joined = Cli(cat.state_dir).ok("join", "--via", bob.url, "--token-file", str(secret))
        assert joined == "joined the room of ann through ann, as backbone node\n"
        yield [ann, bob, cat]


def points_of(gateway: Gateway) -> set[str]:
    answer = httpx.get(gateway.url + DESCRIPTOR_PATH)
    if answer.status_code != 200:
        return set()
    found = verify_document(answer.content, time.time_ns() // 1_000_000)
    return {point.node for point in found.data.points}


def secrets_of(gateway: Gateway) -> dict[str, Any]:
    return dict(gateway.call("GET", "/mesh/secrets"))


def knows_secrets(gateway: Gateway) -> bool:
    try:
        return bool(secrets_of(gateway))
    except AssertionError:
        return False


def agree(version: int, *gateways: Gateway) -> bool:
    if not all(map(knows_secrets, gateways)):
        return False
    found = [secrets_of(gateway) for gateway in gateways]
    return found[0]["version"] == version and all(each == found[0] for each in found)


def ask(host: Gateway, secret_text: str, node: BareNode) -> httpx.Response:
    secret = parse_join_secret(secret_text)
    request = BootstrapRequest(secret.cluster_token, int(time.time()), node.name, node.key.public)
    body = msgspec.json.encode(request)
    return httpx.post(f"{host.url}/.rb/{secret.join_secret}", content=body)


def test_every_node_serves_the_descriptor_of_the_publisher(mesh: list[Gateway]) -> None:
    wait_until(lambda: all(points_of(each) >= NAMES - {"cat"} for each in mesh))
    ann, bob, _ = mesh
    wait_until(lambda: len({httpx.get(g.url + DESCRIPTOR_PATH).content for g in (ann, bob)}) == 1)


def test_the_answer_names_real_peers_and_hands_over_an_invite(mesh: list[Gateway]) -> None:
    ann, bob, _ = mesh
    wait_until(lambda: agree(secrets_of(ann)["version"], ann, bob))
    answer = ask(bob, secrets_of(bob)["join_secret"], BareNode(bob, "eve"))
    assert answer.status_code == 200
    said = msgspec.json.decode(answer.content, type=BootstrapAnswer)
    assert "ann" in {peer.node_id for peer in said.known_peers}
    assert (said.success, said.responder_node_id) == (True, "bob")
    assert read_invite_issuer(said.invite).fingerprint == bob.nodes()["bob"]["fingerprint"]
    # The invite is for eve's key alone.
    thief = BareNode(bob, "eve")
    assert thief.exchange(thief.joiner.with_invite(said.invite)).json()["code"] == "invalid_proof"


def test_a_rotated_secret_reaches_every_member_and_no_revoked_node(mesh: list[Gateway]) -> None:
    ann, bob, cat = mesh
    wait_until(lambda: agree(1, *mesh))
    first = secrets_of(cat)
    cat_key = ann.nodes()["cat"]["fingerprint"]
    ann.call("POST", "/room/nodes/cat/revoke", {})
    wait_until(lambda: agree(2, ann, bob))
    rotated = bob.call("POST", "/mesh/secrets/rotate")
    wait_until(lambda: agree(3, ann, bob))
    assert secrets_of(ann) == rotated != first
    shared = [each for each in bob.call("GET", "/room")["records"] if each["map"] == "secrets"]
    assert {each["state"] for each in shared if cat_key in each["key"]} <= {"tombstone"}
    assert secrets_of(cat) == first

    assert ask(ann, first["join_secret"], BareNode(ann, "fay")).status_code == 404, "the old secret"
    node = BareNode(ann, "cat")
    assert ask(ann, rotated["join_secret"], node).status_code == 404, "a revoked name"
    wait_until(lambda: "cat" not in points_of(bob))


def test_no_secret_is_in_a_log_or_in_the_room(mesh: list[Gateway]) -> None:
    secrets = {secrets_of(each)["join_secret"].rpartition(".")[2] for each in mesh}
    found = "".join(each.log.read_text() for each in mesh) + str(mesh[0].records())
    for text in secrets:
        parsed = parse_join_secret(f"gpm1.{'0' * 32}.{text}")
        for secret in (text, parsed.join_secret, parsed.cluster_token):
            assert secret not in found
