"""Settings of the hub: the agents it runs, their sessions, tasks and policy."""

from typing import Annotated, Literal

from msgspec import Meta

from gatepost.config.section import SettingsSection

_TEN_YEARS_SECS = 10 * 365 * 86_400


class HubSettings(SettingsSection, frozen=True, kw_only=True):
    """Tasks, and the agents that this gateway starts for them."""

    agents_dir: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=4096,
            description="Folder with one JSON file per agent, in the state directory or with its"
            " whole path. It is read again when a file changes.",
        ),
    ] = "agents"
    policy_file: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=4096,
            description="File with rules in Cedar, in the state directory or with its whole path."
            " Without it, the built-in rules apply.",
        ),
    ] = "policy.cedar"
    max_sessions: Annotated[
        int, Meta(ge=1, le=10_000, description="Sessions that run at the same time.")
    ] = 8
    max_queued: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Tasks that wait for a session; more are refused.",
        ),
    ] = 1000
    token_ttl_secs: Annotated[
        float,
        Meta(gt=0, le=_TEN_YEARS_SECS, description="How long the token of a session lasts."),
    ] = 3600.0
    stop_grace_secs: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Time between asking a session to end and ending it.",
        ),
    ] = 10.0
    sandbox: Annotated[
        Literal["auto", "bubblewrap", "none"],
        Meta(
            description="Sandbox of process sessions: bubblewrap where it works (auto), always, or"
            " none. Hardened agents need it in any case.",
        ),
    ] = "auto"
    session_user: Annotated[
        str,
        Meta(
            max_length=256,
            description="User of all sessions, if the gateway runs as root. Default: a user for"
            " each session that no account has.",
        ),
    ] = ""
    docker_host: Annotated[
        str,
        Meta(
            max_length=512,
            description="Address of the container engine, such as unix:///run/docker.sock."
            " Default: from DOCKER_HOST, else Docker's own.",
        ),
    ] = ""
    log_bytes: Annotated[
        int,
        Meta(
            ge=4096,
            le=1024 * 1024 * 1024,
            description="Newest bytes of output that are kept of each session.",
        ),
    ] = 1024 * 1024
    keep_tasks_secs: Annotated[
        float,
        Meta(gt=0, le=_TEN_YEARS_SECS, description="How long to keep tasks that have ended."),
    ] = 30 * 86_400.0
    abandon_secs: Annotated[
        float,
        Meta(
            gt=0,
            le=_TEN_YEARS_SECS,
            description="Silence of another gateway after which a task it executes has failed.",
        ),
    ] = 7 * 86_400.0
    agent_silence_secs: Annotated[
        float,
        Meta(
            gt=0,
            le=_TEN_YEARS_SECS,
            description="Silence of an agent that runs by itself after which its task has failed.",
        ),
    ] = 60.0
    message_retention: Annotated[
        int,
        Meta(ge=0, le=1_000_000, description="Entries that the hub's message log keeps."),
    ] = 100
