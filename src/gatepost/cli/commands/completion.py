"""`gatepost completion`: prints and installs shell completion scripts."""

import sys
from pathlib import Path
from typing import Literal

from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OUTPUT, Flag, OutputOptions
from gatepost.cli.problems import CommandProblem

ShellName = Literal["bash", "zsh", "fish"]


def print_completion(
    shell: ShellName, /, *, install: Flag = False, options: OutputOptions = DEFAULT_OUTPUT
) -> None:
    """Print or install a completion script.

    For example:

      gatepost completion bash --install
      source <(gatepost completion bash)

    Parameters
    ----------
    shell
        The shell.
    install
        Install the script, and load it in the shell's startup file.
    """
    from gatepost.cli.app import app

    if install:
        _install_script(shell, options)
    elif options.json:
        script = app.generate_completion(shell=shell)
        output.print_result(options, {"shell": shell, "script": script}, lambda: None)
    else:
        sys.stdout.write(app.generate_completion(shell=shell))


def install_for_current_shell(*, options: OutputOptions = DEFAULT_OUTPUT) -> None:
    """Install completion for the current shell."""
    from cyclopts.completion import detect_shell
    from cyclopts.completion.detect import ShellDetectionError

    try:
        _install_script(detect_shell(), options)
    except ShellDetectionError:
        raise CommandProblem(
            "unknown_shell",
            "your shell cannot be detected: run `gatepost completion SHELL --install`",
        ) from None


def _install_script(
    shell: Literal["bash", "zsh", "fish", "powershell"], options: OutputOptions
) -> None:
    from gatepost.cli.app import app

    file: Path = app.install_completion(shell=shell)
    document = {"shell": shell, "file": str(file)}
    text = f"completion for {shell} is in {file}; open a new shell to use it"
    output.print_result(options, document, lambda: output.print_line(text))
