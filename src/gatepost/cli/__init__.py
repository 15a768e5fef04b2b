"""The command line: `gatepost`.

Exit codes:

0   done, including the state that `--wait` asks for
1   failed (a refused message, a failed turn, a timeout)
2   wrong usage, or unusable settings
3   no gateway answers
130 interrupted

Results go to standard output, everything else to standard error. With `--json` the result is one
JSON document, and an error is `{"code": …, "message": …}`.
"""

import sys

__all__ = ["main"]


def main() -> None:
    # MCP clients start these again and again, and wait for them.
    from gatepost.mcp.clients.command import is_light, run_light

    if is_light(sys.argv[1:]):
        sys.exit(run_light(sys.argv[1:]))
    from gatepost.cli.runner import run_command

    sys.exit(run_command(sys.argv[1:]))
