"""`gatepost up` and `gatepost down`: run the gateway, in the foreground or behind, and stop it."""

import os
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from gatepost import __version__, config
from gatepost.cli import output
from gatepost.cli.gateway_process import await_gateway, start_in_background, stop_gateway
from gatepost.cli.options import DEFAULT_OUTPUT, Flag, OutputOptions
from gatepost.cli.problems import CommandProblem, ExitCode, usage_problem
from gatepost.cli.settings import report_unusable_settings
from gatepost.connect.gateway_endpoint import ENDPOINT_FILE_NAME, GatewayEndpoint, read_endpoint
from gatepost.core.state_dir import StateDir
from gatepost.errors import ConfigError, GatepostError

_LOG_FILE = "gateway.log"
LogFormat = Literal["json", "text"]


def run_gateway(
    *,
    config_file: Annotated[Path | None, Parameter(name="--config")] = None,
    state_dir: Path | None = None,
    port: Annotated[int | None, Parameter(validator=Number(gte=0, lte=65_535))] = None,
    log_format: LogFormat | None = None,
    detach: Flag = False,
    wait: Flag = False,
    timeout: Annotated[float, Parameter(validator=Number(gt=0, lte=3600))] = 60.0,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Run the gateway until Ctrl-C, or in the background with --detach.

    Settings come from gatepost.toml in the state directory. GATEPOST_* variables
    override the file, and the options below override both.

    For example:

      gatepost up
      gatepost up --detach
      gatepost up --port 0 --state-dir /tmp/try
      GATEPOST_MAILBOX__MAX_RETRIES=5 gatepost up

    Parameters
    ----------
    config_file
        Settings file. Default: gatepost.toml in the state directory, if it exists.
    state_dir
        State directory of the gateway. Default: $GATEPOST_HOME, else ~/.gatepost.
    port
        Port to listen on; 0 picks a free one.
    log_format
        Format of log lines. Default: text on a terminal, else json.
    detach
        Start the gateway in the background and return once it answers. It logs to gateway.log
        in the state directory, unless log.file is set. `gatepost down` stops it.
    wait
        Start nothing: return once the gateway on the state directory answers.
    timeout
        Seconds to wait with --detach and --wait.
    """
    if detach and wait:
        raise usage_problem("--detach waits for the gateway that it starts: leave out --wait")
    watched = sys.stderr.isatty() and not (options.json or detach or wait)
    env = _build_environment(state_dir, port, "json" if options.json else log_format)
    settings = _load_settings(env, config_file, watched=watched)
    if wait:
        _print_endpoint(options, await_gateway(settings.node.state_dir, timeout))
        return ExitCode.OK
    if detach:
        endpoint = _start_detached(settings, config_file, env, timeout)
        _print_endpoint(options, endpoint)
        return ExitCode.OK
    if watched:
        threading.Thread(target=_print_greeting, args=(settings, state_dir), daemon=True).start()
    _serve_gateway(settings, partial(_load_settings, env, config_file, watched=watched))
    if watched:
        print("stopped", file=sys.stderr)
    return ExitCode.OK


def stop_running_gateway(
    *,
    state_dir: Path | None = None,
    timeout: Annotated[float, Parameter(validator=Number(gt=0, lte=3600))] = 60.0,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Stop the gateway that runs on the state directory, and wait for its end.

    For example:

      gatepost down

    Parameters
    ----------
    state_dir
        State directory of the gateway. Default: $GATEPOST_HOME, else ~/.gatepost.
    timeout
        Seconds to wait for its end.
    """
    env = _build_environment(state_dir, None, None)
    home = _load_settings(env, None, watched=False).node.state_dir
    pid = stop_gateway(home, timeout)
    document = {"pid": pid, "state_dir": str(home)}
    output.print_result(
        options, document, lambda: output.print_line(f"the gateway (process {pid}) has stopped")
    )


def _start_detached(
    settings: config.Settings, file: Path | None, env: dict[str, str], timeout: float
) -> GatewayEndpoint:
    home = settings.node.state_dir
    try:
        StateDir(home).create_folder()
    except OSError as error:
        raise CommandProblem("storage_failed", f"{home} cannot be used: {error.strerror}") from None
    log_file = {} if settings.log.file else {"GATEPOST_LOG__FILE": _LOG_FILE}
    arguments = [] if file is None else ["--config", str(file.absolute())]
    return start_in_background(["--json", *arguments], env | log_file, home, timeout)


def _print_endpoint(options: OutputOptions, endpoint: GatewayEndpoint) -> None:
    text = f"node {endpoint.node_id} answers at {endpoint.url} (process {endpoint.pid})"
    document = {"node_id": endpoint.node_id, "url": endpoint.url, "pid": endpoint.pid}
    output.print_result(options, document, lambda: output.print_line(text))


def _build_environment(
    state_dir: Path | None, port: int | None, log_format: LogFormat | None
) -> dict[str, str]:
    """The environment with the options added as variables, which win over the settings file."""
    home = None if state_dir is None else str(state_dir.absolute())
    overrides = {
        "GATEPOST_HOME": home,
        "GATEPOST_NODE__STATE_DIR": home,
        "GATEPOST_LISTEN__PORT": None if port is None else str(port),
        "GATEPOST_LOG__FORMAT": log_format,
    }
    return dict(os.environ) | {key: value for key, value in overrides.items() if value is not None}


def _load_settings(env: dict[str, str], file: Path | None, *, watched: bool) -> config.Settings:
    file = file or config.default_settings_path(env)
    with report_unusable_settings():
        settings = config.Settings.load(file if _must_exist(file, env) else None, env)
        if watched and "GATEPOST_LOG__FORMAT" not in env and not _sets_log_format(file):
            env = env | {"GATEPOST_LOG__FORMAT": "text"}
            settings = config.Settings.load(file if file.exists() else None, env)
    return settings


def _must_exist(file: Path, env: dict[str, str]) -> bool:
    """Whether to load the file: a file named with --config must exist, the default may not."""
    return file.exists() or file != config.default_settings_path(env)


def _sets_log_format(file: Path) -> bool:
    """Whether the settings file, which is known to be valid, sets a log format."""
    return file.exists() and "format" in tomllib.loads(file.read_text()).get("log", {})


def _serve_gateway(settings: config.Settings, load: Callable[[], config.Settings]) -> None:
    from gatepost.gateway import serve
    from gatepost.gateway.monitoring import logs

    try:
        log = settings.log
        logs.configure_logging(log.level, log.format, settings.named_file(log.file))
        serve.run_gateway(settings, partial(_reload_settings, load))
    except KeyboardInterrupt:
        pass
    except GatepostError as error:
        raise CommandProblem(error.code, error.message) from None
    except OSError as error:
        folder = settings.node.state_dir
        raise CommandProblem(
            "storage_failed", f"the gateway cannot run on {folder}: {error}"
        ) from None


def _reload_settings(load: Callable[[], config.Settings]) -> config.Settings:
    """Read the settings as the start did; the gateway knows no problem of a command."""
    try:
        return load()
    except CommandProblem as problem:
        raise ConfigError(problem.message) from None


def _print_greeting(settings: config.Settings, chosen: Path | None) -> None:
    """Once the gateway listens, print its address and the first commands to try."""
    began, home = time.time(), settings.node.state_dir
    while (endpoint := _read_own_endpoint(home, began)) is None:
        time.sleep(0.02)
    where = "" if chosen is None else f" --state-dir {chosen}"
    lines = (
        f"Gatepost {__version__}, node {endpoint.node_id}; Ctrl-C stops it",
        f"  address  {endpoint.url}",
        f"  state    {home}",
        f"  try      gatepost agent add bob{where}",
        f"           gatepost send bob hello{where}",
        f"           gatepost inbox bob --take{where}",
    )
    print("\n".join(lines), file=sys.stderr, flush=True)


def _read_own_endpoint(home: Path, began: float) -> GatewayEndpoint | None:
    """The endpoint that this process announced; None while only an older one exists."""
    try:
        endpoint = read_endpoint(home)
        written_at = (home / ENDPOINT_FILE_NAME).stat().st_mtime
    except (OSError, GatepostError):
        return None
    return endpoint if endpoint.pid == os.getpid() and written_at >= began - 1 else None
