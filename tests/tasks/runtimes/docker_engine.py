"""A container engine of the tests' own, Docker or Podman, if it can run here."""

import gc
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import wait_until

IMAGE = "gatepost-test"
_BUSYBOX = ("/bin/busybox", "/usr/bin/busybox")
_APPLETS = ("sh", "sleep", "cat", "echo", "touch", "env", "cp", "yes", "wc", "ls", "head", "id")


# The programs of the engines; the Docker SDK drives both.
ENGINES = {"docker": "dockerd", "podman": "podman"}
_PODMAN_STORAGE = """
[storage]
driver = "vfs"
runroot = "{folder}/run"
graphroot = "{folder}/data"
"""
# The default limits of Podman are higher than a container may have that holds the tests.
_PODMAN_SETTINGS = """
[containers]
netns = "none"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def reason_against(engine: str = "docker") -> str | None:
    """Why an engine cannot run here; None if it can be tried."""
    if os.getuid() != 0:
        return "an engine needs root"
    if shutil.which(ENGINES[engine]) is None:
        return f"{ENGINES[engine]} is not installed"
    if not any(Path(each).exists() for each in _BUSYBOX):
        return "there is no busybox to make an image of"
    return None


@contextmanager
def running_engine(engine: str = "docker") -> Iterator[str]:
    """Start an engine without networks; yields its address. It ends with the test."""
    # The path of a socket is short: pytest's own folders are too deep.
    with tempfile.TemporaryDirectory(prefix="gpd", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        address = f"unix://{folder}/docker.sock"
        start = _start_docker if engine == "docker" else _start_podman
        process = start(folder, address)
        try:
            wait_until((folder / "docker.sock").exists, 60)
            import_image(address)
            yield address
        finally:
            process.terminate()
            process.wait(30)
            # The SDK leaves sockets to the garbage collector, which would blame a later test.
            gc.collect()


def _start_docker(folder: Path, address: str) -> "subprocess.Popen[bytes]":
    command = [
        "dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec",
        "-H", address, "--pidfile", f"{folder}/pid", "--storage-driver=vfs",
        "--bridge=none", "--iptables=false", "--ip6tables=false",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _start_podman(folder: Path, address: str) -> "subprocess.Popen[bytes]":
    storage, settings = folder / "storage.conf", folder / "containers.conf"
    storage.write_text(_PODMAN_STORAGE.format(folder=folder))
    settings.write_text(_PODMAN_SETTINGS)
    files = {"CONTAINERS_STORAGE_CONF": str(storage), "CONTAINERS_CONF": str(settings)}
    command = ["podman", "system", "service", "--time=0", address]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | files)


def find_engine_problem(address: str) -> str:
    """Why a running engine starts no containers with limits here; empty if it does."""
    import docker
    from docker.types import Ulimit

    client = docker.DockerClient(base_url=address)
    limit = Ulimit(name="nofile", soft=256, hard=256)
    options = {"network_mode": "none", "init": True, "ulimits": [limit], "remove": True}
    try:
        client.containers.run(IMAGE, ["/bin/echo"], **options)
    except docker.errors.APIError as error:
        return f"the engine starts no containers with limits here: {error.explanation}"
    finally:
        client.close()
    return ""


def import_image(address: str) -> None:
    import docker

    busybox = next(Path(each) for each in _BUSYBOX if Path(each).exists())
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for folder in ("bin", "tmp", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        tar.add(busybox, "bin/busybox")
        for applet in _APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    client = docker.DockerClient(base_url=address)
    try:
        client.api.import_image_from_data(data.getvalue(), repository=IMAGE, tag="latest")
    finally:
        client.close()
