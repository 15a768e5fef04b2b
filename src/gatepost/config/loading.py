"""Loading of a settings tree from a TOML file and GATEPOST_* environment variables.

The environment overrides the file, and the file overrides the defaults of the fields.
`GATEPOST_MAILBOX__MAX_RETRIES=5` sets `max_retries` in section `[mailbox]`.
Every mistake raises a ConfigError that names the key and its source.
"""

import difflib
import re
import threading
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

import msgspec

from gatepost.errors import ConfigError

ENV_PREFIX = "GATEPOST_"
# msgspec inspects a type when it is first used, and crashes if two threads do that at once.
_CONVERTING = threading.Lock()

SettingsTree = dict[str, dict[str, Any]]
# The sections of a settings tree by name: each a Struct with one field per setting.
SectionTypes = Mapping[str, type[msgspec.Struct]]
Root = TypeVar("Root", bound=msgspec.Struct)


def load_tree(root: type[Root], path: Path | None, env: Mapping[str, str]) -> Root:
    """Load a tree from the file (None: no file) and the environment, or raise ConfigError."""
    sections = section_types(root)
    file = {} if path is None else read_file(path, sections)
    base = Path.cwd() if path is None else path.absolute().parent
    tree = _merge_trees(_env_defaults(env), file, _read_env(env, sections))
    try:
        with _CONVERTING:
            return msgspec.convert(tree, root, dec_hook=_path_reader(base, env))
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path or 'settings'}: {_describe_error(error)}") from None


def section_types(root: type[msgspec.Struct]) -> SectionTypes:
    return get_type_hints(root)


def default_state_dir(env: Mapping[str, str]) -> Path:
    """Return $GATEPOST_HOME, else ~/.gatepost."""
    return _path_reader(Path.cwd(), env)(Path, env.get(ENV_PREFIX + "HOME") or "~/.gatepost")


def read_file(path: Path, sections: SectionTypes) -> SettingsTree:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: `gatepost init` writes one") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    _refuse_unknown_keys(tree, str(path), sections)
    return tree


def _env_defaults(env: Mapping[str, str]) -> SettingsTree:
    return {"node": {"state_dir": str(default_state_dir(env))}}


def _read_env(env: Mapping[str, str], sections: SectionTypes) -> SettingsTree:
    """Build a tree from GATEPOST_SECTION__KEY variables; each value already has its type."""
    tree: SettingsTree = {}
    for variable in sorted(env):
        if (setting := _setting_of_variable(variable, sections)) is not None:
            section, key = setting
            hint = get_type_hints(sections[section], include_extras=True)[key]
            tree.setdefault(section, {})[key] = _parse_variable(variable, env, hint)
    return tree


def env_variables(env: Mapping[str, str], sections: SectionTypes) -> dict[tuple[str, str], str]:
    """(section, key) → the variable that sets it."""
    found = {}
    for variable in sorted(env):
        if (setting := _setting_of_variable(variable, sections)) is not None:
            found[setting] = variable
    return found


def _setting_of_variable(variable: str, sections: SectionTypes) -> tuple[str, str] | None:
    """Return the section and key that a variable sets; None if it is not a setting."""
    if not variable.startswith(ENV_PREFIX):
        return None
    name = variable.removeprefix(ENV_PREFIX).lower()
    section, nested, key = name.partition("__")
    if not nested:
        _refuse_single_underscore(variable, name, sections)
        return None
    _refuse_unknown_keys({section: {key: None}}, variable, sections)
    return section, key


def _refuse_single_underscore(variable: str, name: str, sections: SectionTypes) -> None:
    for section, struct in sections.items():
        key = name.removeprefix(section + "_")
        if key != name and key in struct.__struct_fields__:
            meant = f"{ENV_PREFIX}{section}__{key}".upper()
            raise ConfigError(f"{variable} sets nothing: write {meant}, with two underscores")


def _parse_variable(variable: str, env: Mapping[str, str], hint: Any) -> object:
    reader = _path_reader(Path.cwd(), env)
    # A tuple is written as values separated by spaces.
    value = env[variable].split() if get_origin(hint.__origin__) is tuple else env[variable]
    try:
        return msgspec.convert(value, hint, strict=False, dec_hook=reader)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{variable}={env[variable]}: {_describe_error(error)}") from None


def _path_reader(base: Path, env: Mapping[str, str]) -> Callable[[type, Any], Path]:
    """Return a decoder for paths: `~` is the home folder, other paths are relative to `base`."""
    home = env.get("HOME") or str(Path.home())

    def read_path(kind: type, value: Any) -> Path:
        if kind is not Path or not isinstance(value, str | Path) or not str(value):
            raise ValueError("Expected a path")
        return base / re.sub(r"^~(?=/|\Z)", lambda _: home, str(value))

    return read_path


def _merge_trees(*trees: SettingsTree) -> SettingsTree:
    """Merge the trees key by key; later trees win."""
    result: SettingsTree = {}
    for tree in trees:
        for name, section in tree.items():
            result[name] = result.get(name, {}) | section
    return result


def _describe_error(error: msgspec.ValidationError) -> str:
    """Return msgspec's message with the key first: `mailbox.max_retries: expected ...`."""
    problem, _, path = str(error).partition(" - at `$.")
    problem = problem[0].lower() + problem[1:]
    return f"{path.rstrip('`')}: {problem}" if path else problem


def _refuse_unknown_keys(tree: Mapping[str, Any], source: str, sections: SectionTypes) -> None:
    for name, content in tree.items():
        _refuse_unknown_name(name, tuple(sections), source, "section")
        if not isinstance(content, dict):
            raise ConfigError(f"{source}: {name} is a section, write [{name}] on a line of its own")
        for key in content:
            _refuse_unknown_name(key, sections[name].__struct_fields__, source, f"[{name}] setting")


def _refuse_unknown_name(name: str, valid: tuple[str, ...], source: str, what: str) -> None:
    if name in valid:
        return
    nearest = difflib.get_close_matches(name, valid, n=1, cutoff=0)[0]
    raise ConfigError(
        f"{source}: unknown {what} {name!r}, did you mean {nearest!r}? Known: {', '.join(valid)}"
    )
