"""`python -m gatepost.gateway [STATE_DIR]`: run one gateway in the foreground.

With `--until-stdin-closes` after the directory it also ends when its standard input does. A program
that starts gateways keeps the other end open, so that its gateways end with it.
"""

import os
import signal
import sys
import threading

from gatepost.config import Settings, default_settings_path
from gatepost.errors import GatepostError
from gatepost.gateway import serve
from gatepost.gateway.monitoring import logs


def main(arguments: list[str]) -> None:
    env = dict(os.environ)
    if "--until-stdin-closes" in arguments:
        threading.Thread(target=_stop_with_stdin, daemon=True).start()
    if arguments:
        env["GATEPOST_HOME"] = arguments[0]
    file = default_settings_path(env)

    def load() -> Settings:
        return Settings.load(file if file.exists() else None, env)

    settings = load()
    log = settings.log
    logs.configure_logging(log.level, log.format, settings.named_file(log.file))
    serve.run_gateway(settings, load)


def _stop_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except GatepostError as error:
        sys.exit(f"gatepost: {error.message}")
