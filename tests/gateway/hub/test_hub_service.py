from pathlib import Path

from tests.gateway.hub.hub_client import HubClient
from tests.waiting import wait_until


def test_tasks_and_folders_are_forgotten_in_the_end(tmp_path: Path) -> None:
    hub = HubClient(tmp_path / "g", hub__keep_tasks_secs=0.001)
    with hub.gateway:
        hub.define("brief", "sh", "-c", "echo 1 > $GATEPOST_RESULT_FILE")
        hub.create("brief")
        folder = hub.state_dir / "sessions"
        wait_until(lambda: folder.exists() and list(folder.iterdir()), 30)
        wait_until(lambda: hub.get("tasks")["tasks"] == [] and not list(folder.iterdir()), 60)
