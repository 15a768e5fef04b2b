"""With `--full`: two gateways in a private Tor network, which only their onion services connect."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from gatepost.access import Issuer, MeshSecretStore
from gatepost.clock import SystemClock
from gatepost.events import NodeKey
from gatepost.journal import Tx
from gatepost.mesh.onion.onion_descriptor import OpenedDescriptor, open_descriptor
from gatepost.mesh.onion.onion_identity import OnionIdentity, master_identity
from gatepost.mesh.transports.tor_process import TorProcess
from tests.cli.conftest import Cli
from tests.live_mesh.tools import Gateway
from tests.mesh.transports.private_tor import missing_for_tor, private_tor_network
from tests.waiting import async_wait_until, wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if reason := missing_for_tor():
        pytest.skip(reason)
    with private_tor_network(tmp_path_factory.mktemp("tor")) as settings:
        yield settings


def test_two_gateways_meet_through_onion_services_alone(network: Path, tmp_path: Path) -> None:
    settings = {
        "mesh__transport": "tor",
        "mesh__heartbeat_secs": 2,
        "mesh__suspect_secs": 30,
        "tor__torrc": network,
        "tor__period_minutes": 8,
        "bootstrap__tier": "backbone",
    }
    with Gateway(tmp_path, "ann", **settings) as ann, Gateway(tmp_path, "bob", **settings) as bob:
        ann.invite()
        wait_until(lambda: knows_secrets(ann))
        secret = tmp_path / "join-secret"
        Cli(ann.state_dir).ok("mesh", "secret", "--file", str(secret))
        master = str(ann.call("GET", "/mesh/secrets")["master_onion"])
        join = ("join", "--via", f"http://{master}", "--token-file", str(secret))
        wait_until(lambda: Cli(bob.state_dir)(*join).code == 0, 300, failure=ann.log.read_text)
        assert ".onion" in bob.nodes()["ann"]["endpoint"]
        assert ".onion" in bob.nodes()["bob"]["endpoint"]
        wait_until(lambda: ann.connected_to("bob"), 120, failure=ann.log.read_text)
        wait_until(lambda: is_alive(ann, "bob") and is_alive(bob, "ann"), 180)
        both = ("ann", "bob")
        wait_until(lambda: all(master_points(ann, node) for node in both), 180)
        merged = asyncio.run(fetch_merged(tmp_path, network, master_of(ann)))
        found = {point.pack() for point in merged.points}
        assert all(found & set(master_points(ann, node)) for node in both)


def knows_secrets(gateway: Gateway) -> bool:
    try:
        return bool(gateway.call("GET", "/mesh/secrets"))
    except AssertionError:
        return False


def is_alive(gateway: Gateway, node: str) -> bool:
    peers = gateway.call("GET", "/mesh")["peers"]
    return any(peer["node"] == node and peer["state"] == "alive" for peer in peers)


def master_points(gateway: Gateway, node: str) -> list[str]:
    record = gateway.records().get(f"transports {node}", {}).get("data", {})
    return list(record.get("masterPoints", ()))


def master_of(gateway: Gateway) -> OnionIdentity:
    """The key of the master service, as a member has it in its journal."""
    key = NodeKey((gateway.state_dir / "node.key").read_bytes())
    journal = str(gateway.state_dir / "journal.db")
    connection = apsw.Connection(journal, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        store = MeshSecretStore(Issuer(gateway.name, key, SystemClock()))
        secrets = store.current_secrets(Tx(connection, 0))
    finally:
        connection.close()
    assert secrets is not None
    return master_identity(secrets)


async def fetch_merged(folder: Path, settings: Path, identity: OnionIdentity) -> OpenedDescriptor:
    """The descriptor of the master service, as a client gets it that has both nodes' points."""
    tor = TorProcess(folder / "client", settings)
    name = identity.host.removesuffix(".onion")
    control = await tor.start()
    try:
        await tor.wait_for_network()
        found: list[OpenedDescriptor] = []

        async def fetch() -> bool:
            await control.ask(f"HSFETCH {name}")
            await asyncio.sleep(2)
            text = await control.read_info(f"hs/client/desc/id/{name}")
            found[:] = [open_descriptor(text, identity)] if "hs-descriptor" in text else []
            return bool(found) and len(found[0].points) > 3

        # For half of a period clients use a descriptor that is not merged.
        await async_wait_until(fetch, 420)
        return found[0]
    finally:
        await tor.stop()
