"""Sessions of the hub that only want to be in the way: others and the operator go on.

Each attack runs in a sandbox and without one. It opens its connections at the session socket.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from gatepost.tasks.runtimes.bubblewrap import find_bubblewrap
from gatepost.tasks.runtimes.session_user import find_any_user
from tests.tasks.service.hub_client import HubClient
from tests.waiting import wait_until

_CONNECTIONS = 700
# Keeps as many connections open as it can. `START` is what it sends over each of them, and
# `TAKES_TURNS` says whether it sends that again after each answer.
_CROWD = """
import select
token = open(os.environ["GATEPOST_TOKEN_FILE"]).read()
start = START.replace("TOKEN", token).encode()
opened, connections = 0, []
while True:
    while len(connections) < COUNT:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(os.environ["GATEPOST_SOCKET"])
        try:
            connection.sendall(start)
        except OSError:
            continue
        opened += 1
        if opened == COUNT:
            print("the crowd is complete")
        connections.append(connection)
    polled = select.poll()
    by_number = {each.fileno(): each for each in connections}
    for number in by_number:
        polled.register(number, select.POLLIN)
    for number, _ in polled.poll(20):
        try:
            said = by_number[number].recv(65536)
            if said and TAKES_TURNS:
                by_number[number].sendall(start)
        except OSError:
            said = b""
        if not said:
            by_number[number].close()
            connections.remove(by_number[number])
"""
_HALF_HEAD = (
    "POST /api/hub/messages HTTP/1.1\\r\\nhost: x\\r\\nauthorization: Bearer TOKEN\\r\\nx: "
)
_HALF_BODY = (
    "POST /api/hub/messages HTTP/1.1\\r\\nhost: x\\r\\ncontent-type: application/json\\r\\n"
    "authorization: Bearer TOKEN\\r\\ncontent-length: 1000\\r\\n\\r\\n{"
)
_NOTHING = ""
_FLOOD = "GET /api/hub/tasks HTTP/1.1\\r\\nhost: x\\r\\nauthorization: Bearer TOKEN\\r\\n\\r\\n"
# Reports progress again and again over new connections.
_HONEST = """
waits, statuses = [], []
for n in range(COUNT):
    began = time.monotonic()
    statuses.append(report(event="task.progress", progress=n / COUNT)[0])
    waits.append(time.monotonic() - began)
result = {"longest": max(waits), "statuses": sorted(set(statuses))}
json.dump(result, open(os.environ["GATEPOST_RESULT_FILE"], "w"))
"""
_TURNS = 30
_LONGEST_SECS = 5.0


@pytest.fixture(scope="module", params=["none", "bubblewrap"])
def hub(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A gateway whose sessions all have a sandbox, or none."""
    if request.param == "bubblewrap" and find_bubblewrap(find_any_user()) is None:
        pytest.skip("bubblewrap is not installed or makes no sandbox here")
    folder: Path = tmp_path_factory.mktemp("hub") / "g"
    client = HubClient(folder, hub__sandbox=request.param)
    with client.gateway:
        client.define_python("honest", _HONEST.replace("COUNT", str(_TURNS)))
        yield client


def _crowd(start: str, takes_turns: bool = False) -> str:
    code = _CROWD.replace("START", f'"{start}"').replace("TAKES_TURNS", str(takes_turns))
    return code.replace("COUNT", str(_CONNECTIONS))


def _open_files(hub: HubClient) -> int:
    count: int = psutil.Process(hub.gateway.pid).num_fds()
    return count


def _naming_sessions(hub: HubClient) -> list[Any]:
    with hub.http() as http:
        found = http.get("/v1/incidents").json()["incidents"]
    return [each for each in found if each["subject"].startswith("session:")]


@pytest.mark.parametrize(
    ("name", "start", "takes_turns"),
    [
        ("half-head", _HALF_HEAD, False),
        ("half-body", _HALF_BODY, False),
        ("silent", _NOTHING, False),
        ("flood", _FLOOD, True),
    ],
    ids=["half heads", "half bodies", "silence", "flood"],
)
def test_two_sessions_that_crowd_the_socket_shut_nobody_out(
    hub: HubClient, name: str, start: str, takes_turns: bool
) -> None:
    limits = {"open_files": 2000}
    hub.define_python(name, _crowd(start, takes_turns), limits=limits)
    before = _open_files(hub)
    attackers = [hub.create(name) for _ in range(2)]
    try:
        for id in attackers:
            hub.wait_for_log(id, "the crowd is complete")
        result = hub.wait_for_end(hub.create("honest"))["result"]
        print(f"{name}: {result}")
        assert result["statuses"] == [200]
        assert result["longest"] < _LONGEST_SECS
        assert hub.get("tasks")["tasks"], "the operator is served"
        assert _open_files(hub) - before < 100
        wait_until(lambda: len(_naming_sessions(hub)) >= 2)
    finally:
        for id in attackers:
            hub.cancel(id)
        for id in attackers:
            hub.wait_for_session_end(id)


# Sends a head of each size, and writes down the statuses.
_HEADS = """
result = {}
for size in (65536, 65537, 80000):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["GATEPOST_SOCKET"])
    start, end = b"GET /healthz HTTP/1.1\\r\\nhost: x\\r\\nx: ", b"\\r\\n\\r\\n"
    connection.sendall(start + b"a" * (size - len(start + end)) + end)
    result[str(size)] = int(connection.recv(65536).split()[1])
json.dump(result, open(os.environ["GATEPOST_RESULT_FILE"], "w"))
"""


def test_a_head_of_a_session_has_64_kib_exactly(hub: HubClient) -> None:
    hub.define_python("heads", _HEADS)
    result = hub.wait_for_end(hub.create("heads"))["result"]
    assert result == {"65536": 200, "65537": 431, "80000": 431}
