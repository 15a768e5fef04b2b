"""`gatepost completion`: prints and installs shell completion scripts."""

import sys
from pathlib import Path
from typing import Literal

from gatepost.cli import output
from gatepost.cli.options import OUTPUT, Flag, Output
from gatepost.cli.problems import Problem

Shell = Literal["bash", "zsh", "fish"]


def completion(shell: Shell, /, *, install: Flag = False, options: Output = OUTPUT) -> None:
    """Print a shell's completion script.

    Parameters
    ----------
    shell
        The shell.
    install
        Install the script, and load it in the shell's startup file.
    """
    from gatepost.cli.app import app

    if install:
        _install(shell, options)
    elif options.json:
        script = app.generate_completion(shell=shell)
        output.show(options, {"shell": shell, "script": script}, lambda: None)
    else:
        sys.stdout.write(app.generate_completion(shell=shell))


def install_completion(*, options: Output = OUTPUT) -> None:
    """Install completion for the current shell."""
    from cyclopts.completion import detect_shell
    from cyclopts.completion.detect import ShellDetectionError

    try:
        _install(detect_shell(), options)
    except ShellDetectionError:
        raise Problem(
            "unknown_shell",
            "your shell cannot be detected: run `gatepost completion SHELL --install`",
        ) from None


def _install(shell: Literal["bash", "zsh", "fish", "powershell"], options: Output) -> None:
    from gatepost.cli.app import app

    file: Path = app.install_completion(shell=shell)
    document = {"shell": shell, "file": str(file)}
    text = f"completion for {shell} is in {file}; open a new shell to use it"
    output.show(options, document, lambda: output.say(text))
