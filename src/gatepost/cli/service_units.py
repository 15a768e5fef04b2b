"""Texts of service definitions: units of systemd, for a user or the system, and launchd's plist.

The unit of the system runs the gateway as a user of its own that may write nothing but the state
directory. Sandboxes of agents are namespaces with a /proc of their own, which some of the locks
forbid: `with_agents` leaves those out.
"""

import plistlib
import shlex
from pathlib import Path

from msgspec import Struct

SERVICE_NAME = "gatepost"
LAUNCHD_LABEL = "dev.gatepost.gateway"

_HEAD = """\
# Written by `gatepost service install`; it replaces this file, so change settings by a drop-in:
# systemctl {manager}edit gatepost
[Unit]
Description=Gatepost gateway
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=60
StartLimitBurst=10

[Service]
Type=exec
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=1
# More than node.stop_secs, after which the gateway ends itself.
TimeoutStopSec=30
UMask=0077
LimitNOFILE=65536
TasksMax=8192
Environment=GATEPOST_HOME={home}
"""

_SYSTEM_USER = """\
User={user}
Group={user}
"""
_STATE = """\
ReadWritePaths={home}
"""

# Nothing of these keeps a gateway or the sandbox of a session from its work.
_LOCKS = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
"""

_SYSTEM_LOCKS = """\
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
RemoveIPC=yes
CapabilityBoundingSet=
AmbientCapabilities=
"""

# A sandbox mounts a /proc, which the kernel refuses while parts of the outer one are hidden.
_LOCKS_AGAINST_SANDBOXES = """\
ProtectKernelTunables=yes
ProtectProc=invisible
RestrictNamespaces=yes
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
"""

_FOOT = """\

[Install]
WantedBy={target}
"""


class ServicePlan(Struct, frozen=True):
    """How the gateway is started, and as whom. Without a `user` it is that of the manager."""

    program: str
    state_dir: Path
    user: str | None = None
    with_agents: bool = False

    def system_unit(self) -> str:
        locks = _LOCKS + _SYSTEM_LOCKS
        if not self.with_agents:
            locks += _LOCKS_AGAINST_SANDBOXES
        return (
            self._head("")
            + _SYSTEM_USER.format(user=self.user or SERVICE_NAME)
            + _STATE.format(home=_escape(self.state_dir))
            + locks
            + _FOOT.format(target="multi-user.target")
        )

    def user_unit(self) -> str:
        return self._head("--user ") + _LOCKS + _FOOT.format(target="default.target")

    def launchd_plist(self) -> bytes:
        log = str(self.state_dir / "gateway.log")
        return plistlib.dumps(
            {
                "Label": LAUNCHD_LABEL,
                "ProgramArguments": [self.program, "up"],
                "EnvironmentVariables": {"GATEPOST_HOME": str(self.state_dir)},
                "RunAtLoad": True,
                "KeepAlive": {"SuccessfulExit": False},
                "ProcessType": "Background",
                "SoftResourceLimits": {"NumberOfFiles": 65536},
                "StandardErrorPath": log,
                "Umask": 0o077,
            }
        )

    def _head(self, manager: str) -> str:
        command = f"{_escape(self.program)} up"
        return _HEAD.format(manager=manager, command=command, home=_escape(self.state_dir))


def _escape(path: object) -> str:
    """A path in a unit: `%` begins a specifier there, and blanks end a word."""
    text = str(path).replace("%", "%%")
    return text if shlex.quote(text) == text or " " not in text else f'"{text}"'
