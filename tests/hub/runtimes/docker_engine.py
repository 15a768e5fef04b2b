"""A container engine of the tests' own, if one can run here."""

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


def reason_against() -> str | None:
    """Why no engine can run here; None if one can be tried."""
    if os.getuid() != 0:
        return "an engine needs root"
    if shutil.which("dockerd") is None:
        return "dockerd is not installed"
    if not any(Path(each).exists() for each in _BUSYBOX):
        return "there is no busybox to make an image of"
    return None


@contextmanager
def running_engine() -> Iterator[str]:
    """Start an engine without networks; yields its address. It ends with the test."""
    # The path of a socket is short: pytest's own folders are too deep.
    with tempfile.TemporaryDirectory(prefix="gpd", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        address = f"unix://{folder}/docker.sock"
        command = [
            "dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec",
            "-H", address, "--pidfile", f"{folder}/pid", "--storage-driver=vfs",
            "--bridge=none", "--iptables=false", "--ip6tables=false",
        ]  # fmt: skip
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until((folder / "docker.sock").exists, 60)
            import_image(address)
            yield address
        finally:
            process.terminate()
            process.wait(30)


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
