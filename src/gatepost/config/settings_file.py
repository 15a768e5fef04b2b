"""The settings file of a state directory: its path, its template, and loading it."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from gatepost.config.loading import ENV_PREFIX, default_state_dir, section_types
from gatepost.config.settings import Settings
from gatepost.config.settings_schema import SCHEMA_FILE_NAME
from gatepost.config.toml_text import section_toml
from gatepost.errors import ConfigError

FILE_NAME = "gatepost.toml"

ChosenSettings = Mapping[str, Mapping[str, object]]


def default_settings_path(env: Mapping[str, str]) -> Path:
    """Return the path of the settings file that is used when none is named."""
    return default_state_dir(env) / FILE_NAME


def settings_file_of(env: Mapping[str, str], state_dir: Path | None = None) -> Path:
    """The settings file of a state directory, which may not exist."""
    return default_settings_path(env) if state_dir is None else state_dir.absolute() / FILE_NAME


def load_settings(env: Mapping[str, str], state_dir: Path | None = None) -> Settings:
    """Load the settings of a state directory: the given one, else the default one of `env`."""
    if state_dir is not None:
        home = str(state_dir.absolute())
        env = {**env, "GATEPOST_HOME": home, "GATEPOST_NODE__STATE_DIR": home}
    file = default_settings_path(env)
    try:
        exists = file.exists()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    return Settings.load(file if exists else None, env)


def default_toml(chosen: ChosenSettings | None = None) -> str:
    """Return a settings file with every setting, its description and its default, commented out.

    `chosen` has the settings, by section, that the file sets; ConfigError if they cannot be used.
    """
    chosen = chosen or {}
    try:
        msgspec.convert(chosen, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from None
    header = (
        f"#:schema ./{SCHEMA_FILE_NAME}\n"
        "# Settings of this Gatepost gateway. Remove the leading # to change one.\n"
        f"# An environment variable overrides this file: {ENV_PREFIX}MAILBOX__MAX_RETRIES=5\n"
        "# sets max_retries in section [mailbox].\n"
    )
    sections = (
        section_toml(name, section, chosen.get(name))
        for name, section in section_types(Settings).items()
    )
    return "\n".join([header, *sections])
