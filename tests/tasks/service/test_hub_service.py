from pathlib import Path

from gatepost.tasks.sessions import session_name
from tests.tasks.service.hub_client import HubClient
from tests.waiting import wait_until


def test_tasks_and_folders_are_forgotten_in_the_end(tmp_path: Path) -> None:
    hub = HubClient(tmp_path / "g", hub__keep_tasks_secs=0.001)
    with hub.gateway:
        hub.define("brief", "sh", "-c", "until [ -e go ]; do sleep 0.01; done;"
                   " echo 1 > $GATEPOST_RESULT_FILE")  # fmt: skip
        id = hub.create("brief")
        wait_until(lambda: hub.task(id)["status"] == "running")
        folder = hub.state_dir / "sessions"
        (folder / session_name(id) / "work" / "go").touch()
        wait_until(lambda: hub.get("tasks")["tasks"] == [] and not list(folder.iterdir()), 60)
