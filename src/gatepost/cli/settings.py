"""Loads the settings of a state directory; unusable settings end the command with exit code 2."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gatepost import config
from gatepost.cli.problems import CommandProblem, ExitCode
from gatepost.errors import ConfigError


def load_settings(state_dir: Path | None = None) -> config.Settings:
    """The settings of `state_dir`, else those of the default state directory."""
    with report_unusable_settings():
        return config.load_settings(os.environ, state_dir)


@contextmanager
def report_unusable_settings() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise CommandProblem(error.code, error.message, ExitCode.USAGE) from None
