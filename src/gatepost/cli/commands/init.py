"""`gatepost init`: writes a commented settings file, and a certificate if others may connect."""

import os
import re
import socket
from pathlib import Path

from gatepost import config
from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OUTPUT, Flag, OutputOptions
from gatepost.cli.problems import CommandProblem, usage_problem
from gatepost.clock import SystemClock
from gatepost.config.settings_schema import SCHEMA_FILE_NAME, encode_schema
from gatepost.core.state_dir import StateDir, read_or_create
from gatepost.errors import ConfigError
from gatepost.files import write_file_atomically
from gatepost.tls import create_certificate, create_key, own_certificate_pin

_HOST_PATTERN = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?")
# Of a network for examples: asking for the route there sends nothing.
_ANY_REMOTE_ADDRESS = ("192.0.2.1", 9)


def write_settings_file(
    *,
    state_dir: Path | None = None,
    node_id: str | None = None,
    public: Flag = False,
    host: str | None = None,
    force: Flag = False,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Write a settings file that explains every setting.

    With `--public`, other machines reach the gateway over TLS. The command makes a
    certificate; invites name it, so machines that join need no other file.

    For example:

      gatepost init
      gatepost init --state-dir /srv/gatepost --node-id lab-1
      gatepost init --public --host vps.example:7433

    Parameters
    ----------
    state_dir
        State directory of the gateway. Default: $GATEPOST_HOME, else ~/.gatepost.
    node_id
        The gateway's name. Default: the host name.
    public
        Listen for other machines, with TLS and a certificate of this gateway's own.
    host
        Name or address, and perhaps the port, at which other machines reach this one. Default:
        the address of this machine in its network.
    force
        Replace an existing settings file. The key of the certificate stays as it is.
    """
    if host is not None and not public:
        raise usage_problem("--host is for a gateway that others reach: add --public")
    home = (
        config.default_settings_path(os.environ).parent
        if state_dir is None
        else state_dir.absolute()
    )
    file = home / config.FILE_NAME
    name, port = _split_host(host) if host else (_own_address() if public else "", None)
    url = _public_url(name, port) if public else None
    text = _settings_text(node_id, url, port)
    if _exists(file) and not force:
        raise CommandProblem(
            "conflict", f"{file} exists already: edit it, or replace it with --force"
        )
    _write_files(home, file, text, name if public else None)
    pin = own_certificate_pin(StateDir(home).tls_cert) if public else None
    document = {"config": str(file), "state_dir": str(home), "public_url": url, "tls_pin": pin}
    output.print_result(
        options, document, lambda: _print_next_step(file, url, pin, up_command(state_dir))
    )


def up_command(state_dir: Path | None) -> str:
    return "gatepost up" if state_dir is None else f"gatepost up --state-dir {state_dir}"


def _split_host(text: str) -> tuple[str, int | None]:
    found = _HOST_PATTERN.fullmatch(text)
    if found is None or (found[2] is not None and not 0 < int(found[2]) <= 65_535):
        raise usage_problem(f"{text!r} is not a host; write HOST or HOST:PORT")
    return found[1].strip("[]"), None if found[2] is None else int(found[2])


def _own_address() -> str:
    """The address by which this machine reaches others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANY_REMOTE_ADDRESS)
        except OSError:
            raise usage_problem(
                "this machine has no route to others, so its address is unknown:"
                " name it with --host HOST"
            ) from None
        return str(probe.getsockname()[0])


def _public_url(name: str, port: int | None) -> str:
    shown = f"[{name}]" if ":" in name else name
    return f"https://{shown}:{port or config.ListenSettings().port}"


def _settings_text(node_id: str | None, url: str | None, port: int | None) -> str:
    chosen: dict[str, dict[str, object]] = {}
    if node_id is not None:
        chosen["node"] = {"id": node_id}
    if url is not None:
        chosen["listen"] = {
            "host": "::" if "[" in url else "0.0.0.0",
            **({} if port is None else {"port": port}),
            "allow_public": True,
            "tls_cert": "tls.crt",
            "tls_key": "tls.key",
        }
        chosen["room"] = {"public_url": url}
    try:
        return config.default_toml(chosen)
    except ConfigError as error:
        raise usage_problem(f"these settings cannot be used: {error.message}") from None


def _exists(file: Path) -> bool:
    try:
        return file.exists()
    except OSError as error:
        raise _unwritable_problem(file, error) from None


def _write_files(home: Path, file: Path, text: str, public_host: str | None) -> None:
    try:
        state = StateDir(home)
        state.create_folder()
        if public_host is not None:
            key = read_or_create(state.tls_key, create_key())
            certificate = create_certificate(key, public_host, SystemClock().now())
            write_file_atomically(state.tls_cert, certificate)
        write_file_atomically(home / SCHEMA_FILE_NAME, encode_schema())
        write_file_atomically(file, text.encode())
    except OSError as error:
        raise _unwritable_problem(file, error) from None


def _unwritable_problem(file: Path, error: OSError) -> CommandProblem:
    return CommandProblem("storage_failed", f"{file} cannot be written: {error.strerror}")


def _print_next_step(file: Path, url: str | None, pin: str | None, start: str) -> None:
    output.print_line(f"wrote {file}")
    if url is not None:
        output.print_line(f"other machines reach this gateway at {url}; `--host` names another")
        output.print_line(f"the pin of its key is {pin}")
    output.print_line(f"next: check it, then start the gateway with `{start}`")
