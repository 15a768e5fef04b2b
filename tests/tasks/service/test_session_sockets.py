"""Sockets of sessions: each has one, which outlives the gateway's process."""

from pathlib import Path

import pytest

from gatepost.tasks.runtimes.bubblewrap import find_bubblewrap
from gatepost.tasks.runtimes.session_user import find_any_user
from tests.tasks.service.hub_client import HubClient
from tests.waiting import wait_until

# Reports until it is told to end, and prints a line for each report behind a failed one.
_PATIENT = """
print(os.environ["GATEPOST_SOCKET"])
failed, found = True, 0
while not os.path.exists("go"):
    try:
        status = report(event="task.progress", progress=0.5)[0]
    except OSError:
        failed = True
    else:
        if failed and status == 200:
            found += 1
            print(f"answered {found}")
        failed = status != 200
    time.sleep(0.05)
json.dump(found, open(os.environ["GATEPOST_RESULT_FILE"], "w"))
"""


@pytest.mark.parametrize("sandbox", ["none", "bubblewrap"])
def test_a_session_finds_its_socket_again_after_a_restart(tmp_path: Path, sandbox: str) -> None:
    if sandbox == "bubblewrap" and find_bubblewrap(find_any_user()) is None:
        pytest.skip("bubblewrap is not installed or makes no sandbox here")
    hub = HubClient(tmp_path / "g", hub__sandbox=sandbox)
    with hub.gateway:
        hub.define_python("patient", _PATIENT)
        id = hub.create("patient")
        hub.wait_for_log(id, "answered 1")
        hub.gateway.kill9()
        hub.gateway.start()
        hub.wait_for_log(id, "answered 2")
        hub.gateway.stop()
        hub.gateway.start()
        log = hub.wait_for_log(id, "answered 3")
        assert Path(log.splitlines()[0]).exists()
        (hub.state_dir / "sessions" / hub.task(id)["session_name"] / "work" / "go").touch()
        assert hub.wait_for_end(id)["result"] == 3
        wait_until(lambda: not list((hub.state_dir / "hub").iterdir()))


def test_sockets_of_sessions_that_ended_meanwhile_are_removed(tmp_path: Path) -> None:
    hub = HubClient(tmp_path / "g")
    stale = hub.state_dir / "hub" / "gone"
    stale.mkdir(parents=True)
    (stale / "s").touch()
    with hub.gateway:
        assert not stale.exists()
