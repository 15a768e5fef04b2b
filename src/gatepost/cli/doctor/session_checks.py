"""Checks of what sessions need: definitions, policy, sandbox, limits, programs and engine."""

import importlib.util
import os
import shutil
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from gatepost.cli.doctor.finding import Finding, Findings
from gatepost.config import Settings
from gatepost.errors import GatepostError
from gatepost.tasks.agent_definition import AgentDefinition
from gatepost.tasks.registry import AgentRegistry
from gatepost.tasks.runtimes.bubblewrap import find_bubblewrap
from gatepost.tasks.runtimes.control_group import ControlGroup
from gatepost.tasks.runtimes.session_user import find_any_user
from gatepost.tasks.service.hub_files import read_definition_files

_SANDBOX_ADVICE = (
    "install bubblewrap (apt-get install bubblewrap), and let the kernel permit user namespaces"
    " (sysctl kernel.unprivileged_userns_clone=1)"
)

_ENGINE_SECS = 5.0


def check_sessions(settings: Settings, env: Mapping[str, str]) -> Findings:
    registry = AgentRegistry()
    folder = settings.named_file(settings.hub.agents_dir)
    if folder is not None:
        registry.load_files(read_definition_files(folder))
    for problem in registry.problems:
        yield Finding(
            "sessions",
            f"the definition of an agent cannot be used: {folder}/{problem}",
            "mend the file; the gateway reads it again at once",
        )
    yield from check_policy(settings.named_file(settings.hub.policy_file))
    agents = registry.agents.values()
    processes = [each for each in agents if each.runtime_name == "process"]
    if processes:
        yield from check_programs(processes, env)
        yield from check_sandbox(settings, processes, has_sandbox=_has_sandbox(settings))
        yield from check_limits(takes_limits=_takes_limits())
    if any(each.runtime_name == "docker" for each in agents):
        yield from check_engine(settings.hub.docker_host, env)


def check_policy(file: Path | None) -> Findings:
    if file is None or not file.exists():
        return
    try:
        from gatepost.tasks.policy import find_policy_problems

        problems = find_policy_problems(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        problems = [f"it cannot be read ({type(error).__name__})"]
    except GatepostError as error:
        problems = [error.message]
    for problem in problems:
        yield Finding(
            "sessions",
            f"the policy {file} is not used: {problem}",
            f"mend it; `gatepost policy check {file}` says when it is right",
        )


def check_programs(agents: Iterable[AgentDefinition], env: Mapping[str, str]) -> Findings:
    for agent in agents:
        program = agent.command[0]
        path = agent.environment.get("PATH", env.get("PATH", os.defpath))
        if "/" not in program and shutil.which(program, path=path) is None:
            yield Finding(
                "sessions",
                f"the command of the agent {agent.name} is not installed: {program}",
                f"install {program}, or write its whole path into the agent's definition",
            )


def check_sandbox(
    settings: Settings, agents: Iterable[AgentDefinition], *, has_sandbox: bool
) -> Findings:
    if has_sandbox:
        return
    hardened = [each.name for each in agents if each.hardened]
    if settings.hub.sandbox == "bubblewrap" or hardened:
        who = "hub.sandbox = bubblewrap asks for it" if not hardened else f"{hardened[0]} needs it"
        yield Finding("sessions", f"no sandbox works on this machine, and {who}", _SANDBOX_ADVICE)
    elif settings.hub.sandbox == "auto":
        yield Finding(
            "sessions",
            "no sandbox works on this machine: sessions can read what the gateway's user can",
            _SANDBOX_ADVICE,
            is_advice=True,
        )


def _has_sandbox(settings: Settings) -> bool:
    try:
        user = find_any_user(settings.hub.session_user)
    except GatepostError:
        return False
    return find_bubblewrap(user) is not None


def check_limits(*, takes_limits: bool) -> Findings:
    if not takes_limits:
        yield Finding(
            "sessions",
            "the kernel gives this user no control groups: limits of sessions hold for each of"
            " their processes, not for all together",
            "where that matters, let agents run in containers (`runtime`: `docker`), whose engine"
            " limits a session as a whole",
            is_advice=True,
        )


def _takes_limits() -> bool:
    group = ControlGroup(f"doctor-{os.getpid()}")
    try:
        group.create(processes=16, memory=64 * 1024 * 1024, cpus=None)
        return group.limits_processes and group.limits_memory
    finally:
        group.remove()


def check_engine(docker_host: str, env: Mapping[str, str]) -> Findings:
    if importlib.util.find_spec("docker") is None:
        yield Finding(
            "sessions",
            "an agent runs in a container, and the library for it is not installed",
            "pip install 'gatepost[docker]', then restart the gateway",
        )
        return
    address = docker_host or env.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if not _answers(address):
        yield Finding(
            "sessions",
            f"an agent runs in a container, and no engine answers at {address}",
            "start it (systemctl start docker), let this user use it, or set hub.docker_host",
        )


def _answers(address: str) -> bool:
    parts = urlsplit(address)
    is_unix = parts.scheme == "unix"
    try:
        with socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET) as engine:
            engine.settimeout(_ENGINE_SECS)
            engine.connect(parts.path if is_unix else (parts.hostname or "", parts.port or 2375))
            engine.sendall(b"GET /_ping HTTP/1.0\r\nHost: localhost\r\n\r\n")
            return engine.recv(16).startswith(b"HTTP/")
    except OSError:
        return False
