"""Containers of a real gateway, when the container, the gateway or both are killed.

Where no engine can run, the reason is printed.
"""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.tasks.runtimes.docker_engine import IMAGE, reason_against, running_engine
from tests.tasks.service.hub_client import HubClient
from tests.tasks.service.test_session_manager import live_tokens
from tests.waiting import wait_until

# The SDK leaves the sockets of refused connections and of streams to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.skipif(reason_against() is not None, reason=str(reason_against())),
]
FOREVER = "echo up; while :; do sleep 0.1; done"
UNTIL_TOLD = "echo up; while [ ! -e go ]; do sleep 0.05; done; echo 7 > $GATEPOST_RESULT_FILE"


class ContainerHub(HubClient):
    """A gateway whose agents run in containers of an engine of its own."""

    engine: str

    def define_container(self, name: str, script: str) -> None:
        self.define(name, "/bin/sh", "-c", script, image=IMAGE)

    def containers(self, id: str) -> list[Any]:
        import docker

        client = docker.DockerClient(base_url=self.engine)
        try:
            label = f"gatepost.session={self.task(id)['session_name']}"
            found: list[Any] = client.containers.list(all=True, filters={"label": label})
            return found
        finally:
            client.close()

    def kill_container(self, id: str) -> None:
        import docker

        client = docker.DockerClient(base_url=self.engine)
        try:
            (found,) = self.containers(id)
            client.containers.get(found.id).kill("SIGKILL")
        finally:
            client.close()

    def assert_ended_once(self, id: str, state: str) -> Any:
        """One terminal state, a dead token, and no container."""
        task = self.wait_for_end(id)
        assert task["state"] == state, task
        self.wait_for_session_end(id)
        assert live_tokens(self, id) == []
        wait_until(lambda: self.containers(id) == [])
        assert self.task(id)["state"] == state
        return task


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerHub]:
    with running_engine() as address:
        hub = ContainerHub(tmp_path_factory.mktemp("containers") / "g", hub__docker_host=address)
        hub.engine = address
        with hub.gateway:
            yield hub
    gc.collect()


def test_a_killed_container_fails_its_task(hub: ContainerHub) -> None:
    hub.define_container("victim", FOREVER)
    id = hub.create("victim")
    hub.wait_for_log(id, "up")
    hub.kill_container(id)
    assert hub.assert_ended_once(id, "failed")["error_code"] == "executor_lost"


def test_a_container_goes_on_while_its_gateway_is_killed_and_started_again(
    hub: ContainerHub,
) -> None:
    hub.define_container("patient", f"cd $HOME; {UNTIL_TOLD}")
    id = hub.create("patient")
    hub.wait_for_log(id, "up")
    name = hub.task(id)["session_name"]
    wait_until(lambda: hub.task(id)["state"] == "running")
    hub.gateway.kill9()
    hub.gateway.start()
    assert hub.task(id)["state"] == "running"
    (hub.state_dir / "sessions" / name / "work" / "go").touch()
    assert hub.assert_ended_once(id, "completed")["result"] == 7


def test_when_gateway_and_container_are_killed_the_task_fails_at_the_restart(
    hub: ContainerHub,
) -> None:
    hub.define_container("victim", FOREVER)
    id = hub.create("victim")
    hub.wait_for_log(id, "up")
    wait_until(lambda: hub.task(id)["state"] == "running")
    (container,) = hub.containers(id)
    hub.gateway.kill9()
    import docker

    client = docker.DockerClient(base_url=hub.engine)
    client.containers.get(container.id).kill("SIGKILL")
    client.close()
    hub.gateway.start()
    assert hub.assert_ended_once(id, "failed")["error_code"] == "executor_lost"
