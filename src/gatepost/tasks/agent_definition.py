"""The definition of an agent that the hub runs, as `agents/<name>.json` holds it."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gatepost.events import AgentId
from gatepost.events.reserved_names import is_reserved_name
from gatepost.wire.operations import ExecutorSkills

RuntimeName = Literal["process", "docker"]

_VARIABLE = r"\A[A-Za-z_][A-Za-z0-9_]{0,127}\Z"
_MIB = 1024 * 1024

Argument = Annotated[str, Meta(max_length=4096, pattern=r"\A[^\x00]*\Z")]
VariableName = Annotated[str, Meta(pattern=_VARIABLE, max_length=128)]
VariableValue = Annotated[str, Meta(max_length=4096, pattern=r"\A[^\x00]*\Z")]
SecretName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z", max_length=64)]
CapabilityName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")]


class SessionLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on one session. A session beyond `seconds` is ended."""

    memory_mb: Annotated[int, Meta(ge=16, le=1024 * 1024)] = 2048
    processes: Annotated[int, Meta(ge=1, le=65_536)] = 256
    open_files: Annotated[int, Meta(ge=16, le=1_000_000)] = 1024
    file_mb: Annotated[int, Meta(ge=1, le=1024 * 1024)] = 1024
    cpus: Annotated[float, Meta(gt=0, le=1024)] | None = None
    cpu_seconds: Annotated[int, Meta(ge=1, le=10 * 365 * 86_400)] | None = None
    seconds: Annotated[float, Meta(gt=0, le=30 * 86_400)] = 86_400.0

    @property
    def memory_bytes(self) -> int:
        return self.memory_mb * _MIB


class AgentDefinition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent that the hub runs. Without `command`, its container runs the image's own.

    `environment` is passed as it is, `pass_environment` names variables of the gateway. `secrets`
    names files of the hub's `secrets` folder, which the session gets as files too. A hardened agent
    has no network unless it asks for it.
    """

    name: AgentId
    description: Annotated[str, Meta(max_length=4096)] = ""
    image: Annotated[str, Meta(max_length=512)] = ""
    command: Annotated[tuple[Argument, ...], Meta(max_length=256)] = ()
    capabilities: Annotated[tuple[CapabilityName, ...], Meta(max_length=256)] = ()
    hardened: bool = False
    runtime: RuntimeName | None = None
    environment: Annotated[dict[VariableName, VariableValue], Meta(max_length=128)] = {}
    pass_environment: Annotated[tuple[VariableName, ...], Meta(max_length=128)] = ()
    secrets: Annotated[tuple[SecretName, ...], Meta(max_length=64)] = ()
    network: bool | None = None
    executor_skills: ExecutorSkills | None = None
    eta_seconds: Annotated[int, Meta(ge=1, le=10 * 365 * 86_400)] | None = None
    limits: SessionLimits = SessionLimits()

    def __post_init__(self) -> None:
        if is_reserved_name(self.name):
            raise ValueError(f"no agent can have the name {self.name!r}: it is reserved")
        if not self.command and not self.image:
            raise ValueError("an agent needs a `command`, or an `image`")
        if self.runtime == "process" and not self.command:
            raise ValueError("the runtime `process` needs a `command`")
        if self.runtime == "docker" and not self.image:
            raise ValueError("the runtime `docker` needs an `image`")

    @property
    def runtime_name(self) -> RuntimeName:
        """The runtime that the definition names, or the one that it implies."""
        return self.runtime or ("docker" if self.image else "process")

    @property
    def has_network(self) -> bool:
        return not self.hardened if self.network is None else self.network
