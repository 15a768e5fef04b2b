"""The state directory: private, and whole after a crash."""

import stat
from pathlib import Path

import pytest

from gatepost.connect.gateway_endpoint import GatewayEndpoint
from gatepost.core.gateway_core import Core
from gatepost.core.state_dir import StateDir
from gatepost.errors import ConfigError
from gatepost.journal import Database
from gatepost.testing import GatewayProcess, ManualClock
from tests.gateway.tools import settings


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701, 0o777])
def test_a_directory_others_can_enter_is_refused(state: Path, mode: int) -> None:
    state.mkdir()
    state.chmod(mode)
    with pytest.raises(ConfigError, match=f"chmod 700 {state}"):
        Core(settings(state))
    assert list(state.iterdir()) == []


def test_the_size_of_the_journal_includes_its_log(gateway: GatewayProcess) -> None:
    state = StateDir(gateway.state_dir)
    wal = state.journal.with_name("journal.db-wal")
    assert wal.stat().st_size > 0
    assert state.journal_size() == state.journal.stat().st_size + wal.stat().st_size


def test_everything_a_running_gateway_writes_is_private(gateway: GatewayProcess) -> None:
    root = gateway.state_dir
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    ours = [p for p in root.rglob("*") if "drop" not in p.parts]
    assert {"journal.db", "journal.db-wal", "token", "node.key", "endpoint.json"} <= {
        path.name for path in ours
    }
    for path in ours:
        expected = 0o700 if path.is_dir() else 0o600
        if path == root / "hub" / "sock":
            expected = 0o666  # sessions of another user get it; nobody else passes its folders
        assert stat.S_IMODE(path.lstat().st_mode) == expected, path


def test_token_and_key_are_made_once(state: Path, clock: ManualClock) -> None:
    folder = StateDir(state)
    folder.create_folder()
    token, key = folder.load_local_token(clock), folder.load_node_key(clock)
    assert len(token) == 64
    assert StateDir(state).load_local_token(clock) == token
    assert StateDir(state).load_node_key(clock).public == key.public


@pytest.mark.parametrize("content", ["", "\n", "short"])
def test_an_empty_token_opens_nothing(state: Path, clock: ManualClock, content: str) -> None:
    folder = StateDir(state)
    folder.create_folder()
    folder.token.write_text(content)
    with pytest.raises(ConfigError, match="holds no token"):
        folder.load_local_token(clock)


def test_the_address_is_announced_and_withdrawn(state: Path) -> None:
    folder = StateDir(state)
    folder.create_folder()
    folder.write_endpoint(GatewayEndpoint("http://x", None, 1, "n"))
    assert b'"url":"http://x"' in folder.endpoint.read_bytes()
    folder.remove_endpoint()
    folder.remove_endpoint()
    assert not folder.endpoint.exists()


def test_a_directory_belongs_to_one_node(state: Path) -> None:
    Core(settings(state, node__id="one")).database.close()
    with pytest.raises(ConfigError, match="belongs to node 'one'"):
        Core(settings(state, node__id="two"))
    Core(settings(state, node__id="one")).database.close()


def test_a_lost_node_key_is_named_and_not_replaced(state: Path) -> None:
    Core(settings(state)).database.close()
    (state / "node.key").unlink()
    with pytest.raises(ConfigError, match=r"node\.key is missing.*gatepost restore.*new node\.id"):
        Core(settings(state))
    assert not (state / "node.key").exists()


def test_a_truncated_node_key_is_refused(state: Path) -> None:
    Core(settings(state)).database.close()
    (state / "node.key").write_bytes(b"short")
    with pytest.raises(ConfigError, match=r"node\.key is damaged"):
        Core(settings(state))


def test_the_key_of_another_node_is_refused(state: Path) -> None:
    Core(settings(state)).database.close()
    (state / "node.key").write_bytes(bytes(32))
    with pytest.raises(ConfigError, match="not the key of the journal"):
        Core(settings(state))


def test_a_start_that_stopped_before_it_had_a_node_goes_on(state: Path) -> None:
    folder = StateDir(state)
    folder.create_folder()
    Database.open(folder.journal).close()
    Core(settings(state)).database.close()
    assert folder.key.exists()
