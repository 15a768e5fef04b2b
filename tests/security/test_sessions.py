"""Sessions of a real gateway that try to leave their user, their sandbox, or their own end."""

import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatepost.tasks.runtimes.bubblewrap import find_bubblewrap
from gatepost.tasks.runtimes.process_identity import pids_with_variable
from gatepost.tasks.runtimes.process_runtime import SESSION_VARIABLE
from gatepost.tasks.runtimes.session_user import find_any_user
from tests.gateway.slow_request import SlowRequest
from tests.tasks.service.hub_client import PYTHON, HubClient
from tests.waiting import wait_until

SANDBOXES = [
    "none",
    pytest.param(
        "bubblewrap",
        marks=pytest.mark.skipif(
            find_bubblewrap(find_any_user()) is None,
            reason="bubblewrap is not installed or makes no sandbox here",
        ),
    ),
]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the gateway of this test runs as root")

# Opens what only root of the machine may write to, and changes nothing of it.
PROBE = """
import glob, os
paths = ["/proc/sysrq-trigger", *glob.glob("/proc/sys/kernel/*"), *glob.glob("/proc/irq/*/*"),
         "/sys/kernel/uevent_helper", "/etc/passwd", "/dev/kmsg"]
for path in paths:
    try:
        # Of what all may open for writing, the kernel checks each write.
        if os.stat(path).st_mode & 0o002:
            continue
        os.close(os.open(path, os.O_WRONLY))
    except OSError:
        continue
    print("WRITABLE", path)
for call in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0])):
    try:
        call()
        print("BECAME", os.getresuid(), os.getresgid(), os.getgroups())
    except OSError:
        pass
"""


@pytest.fixture(scope="module", params=SANDBOXES)
def cell(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HubClient]:
    """A gateway whose sessions run in one kind of sandbox, or in none."""
    state = tmp_path_factory.mktemp("cell") / "g"
    with (hub := HubClient(state, hub__sandbox=request.param)).gateway:
        yield hub


def users_of(pid: int) -> set[int]:
    """All users and groups of a process, as this machine sees them."""
    found: set[int] = set()
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, values = line.partition(":")
        if name in ("Uid", "Gid", "Groups"):
            found |= {int(each) for each in values.split()}
    return found


@needs_root
def test_no_process_of_a_session_is_root_outside_or_inside(cell: HubClient) -> None:
    cell.define("plain", "sh", "-c", "id -u; id -g; sleep 1000 & echo up; wait")
    id = cell.create("plain")
    log = cell.wait_for_log(id, "up").split()
    assert log[0] != "0" and log[1] != "0"
    pids = pids_with_variable(SESSION_VARIABLE, cell.task(id)["session_name"])
    assert len(pids) >= 2
    assert all(0 not in users_of(pid) for pid in pids)
    cell.cancel(id)


@needs_root
def test_two_sessions_have_two_users_that_cannot_signal_each_other(cell: HubClient) -> None:
    cell.define("sleeper", "sh", "-c", "echo up; exec sleep 1000")
    cell.define("killer", "sh", "-c", "for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done; id -u")
    victim = cell.create("sleeper")
    cell.wait_for_log(victim, "up")
    (pid, *_) = pids_with_variable(SESSION_VARIABLE, cell.task(victim)["session_name"])
    killer = cell.create("killer")
    cell.wait_for_end(killer)
    assert cell.task(victim)["status"] == "running"
    assert str(max(users_of(pid))) not in cell.log(killer).split()
    cell.cancel(victim)


def test_a_session_writes_no_setting_of_the_kernel_and_does_not_become_root(
    cell: HubClient,
) -> None:
    cell.define("prober", PYTHON, "-S", "-c", PROBE + "print('done')")
    id = cell.create("prober")
    assert cell.wait_for_log(id, "done").split() == ["done"]


@needs_root
def test_a_session_reads_and_changes_nothing_of_the_state_directory_but_its_work(
    cell: HubClient,
) -> None:
    cell.define("other", "sh", "-c", "echo up; exec sleep 1000")
    other = cell.create("other")
    cell.wait_for_log(other, "up")
    folder = cell.state_dir / "sessions" / cell.task(other)["session_name"]
    tries = [
        *(f"cat {cell.state_dir}/{name}" for name in ("token", "node.key", "journal.db")),
        f"cat {folder}/secrets/token",
        f"cat {folder}/task.json",
        f"ls {folder}/work",
        f"ls {cell.state_dir}/agents",
    ]
    script = "; ".join(f"{each} 2>/dev/null && echo GOT" for each in tries)
    forge = 'echo \'{"reason": "exited", "code": 0}\' > ../exit.json; rm ../status.json'
    cell.define("thief", "sh", "-c", f"{script}; {forge}; cat ../task.json; echo; echo end; exit 3")
    id = cell.create("thief")
    log = cell.wait_for_log(id, "end")
    assert "GOT" not in log and "do it" in log
    assert cell.wait_for_end(id)["error_code"] == "session_failed"
    cell.cancel(other)


def test_a_session_works_as_before(cell: HubClient) -> None:
    """Its task, secrets, log, result, and the gateway's socket."""
    secrets = cell.state_dir / "secrets"
    secrets.mkdir(exist_ok=True)
    (secrets / "key").write_text("abc")
    cell.define_python(
        "worker",
        """
        print(open(os.environ["GATEPOST_SECRETS"] + "/key").read(), task["description"])
        open("/dev/stdout", "w").write("reopened")
        assert call("GET", "/api/hub/agents")[0] == 200
        assert report(event="task.progress", progress=0.5)[0] == 200
        json.dump({"n": 1}, open(os.environ["GATEPOST_RESULT_FILE"], "w"))
        """,
        secrets=["key"],
    )
    id = cell.create("worker")
    ended = cell.wait_for_end(id)
    assert (ended["status"], ended["result"]) == ("completed", {"n": 1}), cell.log(id)
    assert "abc do it" in cell.log(id) and "reopened" in cell.log(id)
    folder = cell.state_dir / "sessions" / ended["session_name"]
    assert list((folder / "secrets").iterdir()) == []
    assert not stat.S_IMODE(cell.state_dir.stat().st_mode) & 0o077


@pytest.mark.parametrize("depth", [300, 30_000, 1_000_000])
def test_the_token_of_a_session_dies_with_it_however_its_result_is_nested(
    cell: HubClient, depth: int
) -> None:
    cell.define_python(
        "nester",
        f"""
        print(open(os.environ["GATEPOST_TOKEN_FILE"]).read(), flush=True)
        open(os.environ["GATEPOST_RESULT_FILE"], "w").write("[" * {depth} + "]" * {depth})
        """,
    )
    id = cell.create("nester")
    ended = cell.wait_for_end(id)
    assert (ended["state"], ended["error_code"]) == ("failed", "invalid_request")
    with cell.http(cell.log(id).strip()) as http:
        for answer in (http.post("/api/hub/tokens/renew"), http.get("/api/hub/messages")):
            assert (answer.status_code, answer.json()["code"]) == (403, "revoked")
    assert id not in [each["task_id"] for each in cell.get("tokens")["tokens"]]


@needs_root
def test_a_gateway_that_runs_as_root_says_so(cell: HubClient) -> None:
    assert cell.gateway.get("/v1/status")["runs_as_root"] is True
    assert "the gateway runs as root" in cell.gateway.log.read_text()
    with httpx.Client(base_url=cell.gateway.url) as http:
        assert http.get("/v1/status").status_code == 401


def test_requests_that_a_token_began_do_nothing_once_it_is_dead(cell: HubClient) -> None:
    """A wait for mail, and a message and a task whose bodies come slowly."""
    script = "cat $GATEPOST_TOKEN_FILE; echo; exec sleep 1000"
    cell.define("holder", "sh", "-c", script, capabilities=["create_tasks"])
    cell.define("friend", "true")
    id = cell.create("holder")
    token = cell.wait_for_log(id, "\n").strip()
    message = {"recipient": "friend", "type": "late", "payload": 1}
    task = {"description": "late", "agent_name": "friend"}
    answers: list[httpx.Response] = []

    def wait_for_mail() -> None:
        with cell.http(token) as http:
            answers.append(http.get("/api/hub/messages", params={"wait_secs": 30}))

    waiting = threading.Thread(target=wait_for_mail)
    with (
        SlowRequest(cell.gateway, token, "/api/hub/messages", message) as sending,
        SlowRequest(cell.gateway, token, "/api/hub/tasks", task) as creating,
        cell.http() as http,
    ):
        waiting.start()
        # Nothing shows that the wait has begun; if it begins later, it is refused all the same.
        time.sleep(0.2)
        (known,) = [each for each in cell.get("tokens")["tokens"] if each["task_id"] == id]
        http.delete(f"/api/hub/tokens/{known['token_id']}").raise_for_status()
        body = {"recipient": "holder", "type": "news", "payload": "not for the dead"}
        http.post("/api/hub/messages", json=body).raise_for_status()
        for slow in (sending, creating):
            assert slow.finish() == (403, "revoked")
        waiting.join(60)
        assert (answers[0].status_code, answers[0].json()["code"]) == (403, "revoked")
        (kept,) = wait_until(lambda: [m for m in _peek(http, "holder") if m["state"] == "pending"])
        assert kept["attempt"] == 0
        assert _peek(http, "friend") == []
        listed = http.get("/api/hub/tasks", params={"agent": "friend"}).json()["tasks"]
    assert listed == []
    cell.cancel(id)


def _peek(http: httpx.Client, mailbox: str) -> Any:
    return http.get(f"/v1/mailboxes/{mailbox}").json()["messages"]
