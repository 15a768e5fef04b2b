"""A gateway process with a hub, and a client of its API."""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import httpx

from gatepost.testing import GatewayProcess
from tests.waiting import wait_until

# The interpreter itself: its link in `.venv` is hidden from sandboxes if the checkout is in /tmp.
PYTHON = str(Path(sys.executable).resolve())

# A session that asks the gateway over its Unix socket, which works without a network.
REPORTER = """
import http.client, json, os, socket, sys, time

class Hub(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(os.environ["GATEPOST_SOCKET"])

def call(method, path, body=None, token=None):
    hub = Hub("hub")
    token = token or open(os.environ["GATEPOST_TOKEN_FILE"]).read()
    headers = {"authorization": "Bearer " + token, "content-type": "application/json"}
    hub.request(method, path, json.dumps(body) if body is not None else None, headers)
    answer = hub.getresponse()
    return answer.status, json.loads(answer.read() or b"null")

def report(**payload):
    body = {"recipient": "hub", "type": "report", "payload": payload}
    return call("POST", "/api/hub/messages", body)

task = json.load(open(os.environ["GATEPOST_TASK_FILE"]))
"""


class HubClient:
    """Sessions run without a sandbox, which has its own tests, unless a test asks for one."""

    def __init__(self, state_dir: Path, **settings: object) -> None:
        self.state_dir = state_dir
        (state_dir / "agents").mkdir(parents=True)
        state_dir.chmod(0o700)
        given: dict[str, object] = {
            "hub__sandbox": "none",
            "hub__stop_grace_secs": 0.2,
            "mailbox__base_backoff_secs": 0.05,
        }
        given |= settings
        self.gateway = GatewayProcess(state_dir, **given)

    def http(self, token: str | None = None) -> httpx.Client:
        headers = {"authorization": f"Bearer {token or self.gateway.token}"}
        # Plain HTTP needs no certificates, and loading them takes longer than most requests.
        return httpx.Client(
            base_url=self.gateway.url, headers=headers, timeout=60, verify=False, trust_env=False
        )

    def get(self, path: str, **query: Any) -> Any:
        with self.http() as http:
            return http.get(f"/api/hub/{path}", params=query).json()

    def define(self, name: str, *command: str, **fields: Any) -> None:
        """Define an agent and wait until the hub runs it."""
        file = self.state_dir / "agents" / f"{name}.json"
        file.with_suffix(".tmp").write_text(
            json.dumps({"name": name, "command": command, **fields})
        )
        file.with_suffix(".tmp").rename(file)
        wait_until(lambda: self._defined(name) == list(command))

    def define_python(self, name: str, code: str, **fields: Any) -> None:
        script = REPORTER + textwrap.dedent(code)
        self.define(name, PYTHON, "-u", "-c", script, **fields)

    def _defined(self, name: str) -> Any:
        agents = self.get("agents")["agents"]
        return next((agent["command"] for agent in agents if agent["name"] == name), None)

    def post_task(self, agent: str, **fields: Any) -> httpx.Response:
        body = {"description": "do it", "agent_name": agent, **fields}
        with self.http() as http:
            return http.post("/api/hub/tasks", json=body)

    def create(self, agent: str, **fields: Any) -> str:
        answer = self.post_task(agent, **fields)
        assert answer.status_code == 201, answer.text
        id: str = answer.json()["id"]
        return id

    def task(self, id: str) -> Any:
        return self.get(f"tasks/{id}")

    def wait_for_end(self, id: str) -> Any:
        def ended() -> Any:
            task = self.get(f"tasks/{id}", wait_secs=30)
            return task if task["status"] in ("completed", "failed", "cancelled") else None

        return wait_until(ended, failure=lambda: str(self.task(id)))

    def wait_for_session_end(self, id: str) -> Any:
        return wait_until(lambda: (task := self.task(id))["session_state"] == "recycled" and task)

    def log(self, id: str) -> str:
        text: str = self.get(f"tasks/{id}/log")["text"]
        return text

    def wait_for_log(self, id: str, text: str) -> str:
        return wait_until(lambda: log if text in (log := self.log(id)) else "")

    def cancel(self, id: str) -> httpx.Response:
        with self.http() as http:
            return http.post(f"/api/hub/tasks/{id}/cancel", json={"reason": "enough"})
