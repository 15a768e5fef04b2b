"""A private Tor network on loopback: three directory authorities and three relays.

Everything is in one folder, and no port of it is reachable from another machine.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_AUTHORITIES, _RELAYS = 3, 3
_COMMON = """
TestingTorNetwork 1
AssumeReachable 1
PathsNeededToBuildCircuits 0.25
TestingDirAuthVoteExit *
TestingDirAuthVoteHSDir *
TestingDirAuthVoteGuard *
TestingV3AuthInitialVotingInterval 20
TestingV3AuthInitialVoteDelay 4
TestingV3AuthInitialDistDelay 4
V3AuthVotingInterval 20
V3AuthVoteDelay 4
V3AuthDistDelay 4
TestingMinExitFlagThreshold 0
ExitPolicy accept *:*
ExitRelay 1
ShutdownWaitLength 0
DisableDebuggerAttachment 0
"""


def missing_for_tor() -> str:
    """Why this machine cannot run a Tor network; empty if it can."""
    tools = ("tor", "tor-gencert")
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    return f"{', '.join(lacking)} not installed" if lacking else ""


@contextmanager
def private_tor_network(folder: Path) -> Iterator[Path]:
    """The file with the settings by which other Tors join the network."""
    nodes = [f"a{number}" for number in range(_AUTHORITIES)]
    nodes += [f"r{number}" for number in range(_RELAYS)]
    ports = {name: (_free_port(), _free_port()) for name in nodes}
    lines = [_make_authority(folder / name, *ports[name]) for name in nodes[:_AUTHORITIES]]
    client = folder / "client.torrc"
    client.write_text(
        _COMMON.replace("ExitRelay 1\n", "").replace("ExitPolicy accept *:*\n", "")
        + "\n".join(lines)
        + "\n"
    )
    processes = []
    try:
        for name in nodes:
            processes.append(_start_node(folder / name, name, *ports[name], lines))
        yield client
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _make_authority(home: Path, or_port: int, dir_port: int) -> str:
    """Make the keys of an authority, and return the line that names it."""
    keys = home / "keys"
    keys.mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    command = ["tor-gencert", "--create-identity-key", "-m", "12", "-a", f"127.0.0.1:{dir_port}",
               "--passphrase-fd", "0"]  # fmt: skip
    subprocess.run(command, cwd=keys, input=b"secret\n", check=True, capture_output=True)
    text = (keys / "authority_certificate").read_text()
    identity = next(line.split()[1] for line in text.splitlines() if line.startswith("fingerprint"))
    listed = subprocess.run(
        ["tor", "--list-fingerprint", "--DataDirectory", str(home), "--ORPort", "1", "--quiet",
         "--ignore-missing-torrc", "-f", "/nonexistent", "--Nickname", home.name,
         "--DirAuthority", f"x orport=1 v3ident={identity} 127.0.0.1:2 {'F' * 40}"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    fingerprint = listed.stdout.strip().splitlines()[-1].split(maxsplit=1)[1].replace(" ", "")
    return (
        f"DirAuthority {home.name} orport={or_port} no-v2 v3ident={identity}"
        f" 127.0.0.1:{dir_port} {fingerprint}"
    )


def _start_node(
    home: Path, name: str, or_port: int, dir_port: int, authorities: list[str]
) -> subprocess.Popen[bytes]:
    home.mkdir(mode=0o700, exist_ok=True)
    own = [
        f"DataDirectory {home}",
        f"Nickname {name}",
        "Address 127.0.0.1",
        f"ORPort 127.0.0.1:{or_port}",
        f"DirPort 127.0.0.1:{dir_port}",
        "SocksPort 0",
        f"Log notice file {home / 'tor.log'}",
        "ContactInfo nobody@example.org",
        # It ends with this process, even if that is killed.
        f"__OwningControllerProcess {os.getpid()}",
    ]
    if name.startswith("a"):
        own += ["AuthoritativeDirectory 1", "V3AuthoritativeDirectory 1"]
    torrc = home / "torrc"
    torrc.write_text(_COMMON + "\n".join([*own, *authorities]) + "\n")
    quiet = subprocess.DEVNULL
    return subprocess.Popen(["tor", "-f", str(torrc)], stdin=quiet, stdout=quiet, stderr=quiet)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
