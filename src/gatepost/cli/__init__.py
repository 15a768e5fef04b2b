"""The command line: `gatepost`.

Exit codes:

0   done, and what was waited for was reached
1   failed, or not reached (a refused message, a turn that ended badly, a timeout)
2   the command was used wrongly, or the settings cannot be used
3   no gateway answers
130 interrupted

Results go to standard output, everything else to standard error. With `--json` the result is one
JSON document, and an error is `{"code": …, "message": …}`.
"""

import sys

__all__ = ["main"]


def main() -> None:
    from gatepost.cli.run import run

    sys.exit(run(sys.argv[1:]))
