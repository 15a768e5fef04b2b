"""`gatepost up`: runs the gateway in the foreground."""

import os
import sys
import threading
import time
import tomllib
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from gatepost import __version__, config
from gatepost.cli.options import DEFAULT_OUTPUT, OutputOptions
from gatepost.cli.problems import CommandProblem, ExitCode
from gatepost.cli.settings import report_unusable_settings
from gatepost.errors import GatepostError
from gatepost.gateway_endpoint import ENDPOINT_FILE_NAME, GatewayEndpoint, read_endpoint

LogFormat = Literal["json", "text"]


def run_gateway(
    *,
    config_file: Annotated[Path | None, Parameter(name="--config")] = None,
    state_dir: Path | None = None,
    port: Annotated[int | None, Parameter(validator=Number(gte=0, lte=65_535))] = None,
    log_format: LogFormat | None = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Run the gateway in the foreground until Ctrl-C.

    Settings come from gatepost.toml in the state directory. GATEPOST_* variables
    override the file, and the options below override both.

    For example:

      gatepost up
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
    """
    watched = sys.stderr.isatty() and not options.json
    env = _build_environment(state_dir, port, "json" if options.json else log_format)
    settings = _load_settings(env, config_file, watched=watched)
    if watched:
        threading.Thread(target=_print_greeting, args=(settings, state_dir), daemon=True).start()
    _serve_gateway(settings)
    if watched:
        print("stopped", file=sys.stderr)
    return ExitCode.OK


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


def _serve_gateway(settings: config.Settings) -> None:
    from gatepost.gateway import serve
    from gatepost.gateway.monitoring import logs

    logs.configure_logging(settings.log.level, settings.log.format)
    try:
        serve.run_gateway(settings)
    except KeyboardInterrupt:
        pass
    except GatepostError as error:
        raise CommandProblem(error.code, error.message) from None
    except OSError as error:
        folder = settings.node.state_dir
        raise CommandProblem(
            "storage_failed", f"the gateway cannot run on {folder}: {error}"
        ) from None


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
