"""`python -m gatepost.gateway [STATE_DIR]`: run one gateway in the foreground."""

import os
import sys

from gatepost.config import Settings, default_settings_path
from gatepost.errors import GatepostError
from gatepost.gateway import serve
from gatepost.gateway.monitoring import logs


def main(arguments: list[str]) -> None:
    env = dict(os.environ)
    if arguments:
        env["GATEPOST_HOME"] = arguments[0]
    file = default_settings_path(env)
    settings = Settings.load(file if file.exists() else None, env)
    logs.configure_logging(settings.log.level, settings.log.format)
    serve.run_gateway(settings)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except GatepostError as error:
        sys.exit(f"gatepost: {error.message}")
