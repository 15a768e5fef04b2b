"""Where each setting in effect comes from: its default, the settings file, or a variable."""

from collections.abc import Mapping
from pathlib import Path
from typing import get_type_hints

from msgspec import Struct

from gatepost.config.loading import env_variables, read_file, section_types
from gatepost.config.settings import Settings
from gatepost.config.settings_file import load_settings, settings_file_of

DEFAULT_ORIGIN = "default"


class SettingOrigin(Struct, frozen=True):
    """A setting in effect. `origin` is `default`, the path of the file, or a variable's name."""

    name: str
    value: object
    origin: str
    description: str


def list_setting_origins(
    env: Mapping[str, str], state_dir: Path | None = None
) -> list[SettingOrigin]:
    """All settings in effect, in the order of the settings file; ConfigError if there are none."""
    settings = load_settings(env, state_dir)
    sections = section_types(Settings)
    file = settings_file_of(env, state_dir)
    written = read_file(file, sections) if file.exists() else {}
    variables = env_variables(env, sections)
    found = []
    for section, kind in sections.items():
        hints = get_type_hints(kind, include_extras=True)
        for key in kind.__struct_fields__:
            origin = DEFAULT_ORIGIN
            if key in written.get(section, {}):
                origin = str(file)
            if (section, key) in variables:
                origin = variables[section, key]
            (meta,) = hints[key].__metadata__
            value = getattr(getattr(settings, section), key)
            found.append(SettingOrigin(f"{section}.{key}", value, origin, meta.description))
    return found
