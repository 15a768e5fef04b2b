"""Edits of clients' configuration files: adding our entries, showing the difference, undoing it.

Before a file is changed, its text is saved in the gateway's state directory. If the file has not
changed since, uninstalling puts that text back; otherwise it takes out our entries only.
"""

import difflib
import hashlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gatepost.errors import ConfigError
from gatepost.files import write_file_atomically
from gatepost.mcp.clients.client_entries import SERVER_NAME, ConfigEntry, ServerCommand

_HEADER = rf"\[mcp_servers\.{SERVER_NAME}[\].]"
# Our table and its parts, up to the next table that is not ours.
_TOML_TABLE = re.compile(rf"\n?^{_HEADER}.*?(?=^\[(?!{_HEADER[2:]})|\Z)", re.M | re.S)


class FileEdit(Struct, frozen=True):
    """A file's text before and after; None if it does not exist then."""

    file: Path
    before: str | None
    after: str | None

    def describe(self) -> str:
        """The difference, as `diff -u` shows it."""
        old, new = (self.before or "").splitlines(True), (self.after or "").splitlines(True)
        lines = difflib.unified_diff(old, new, str(self.file), str(self.file))
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)

    def write(self) -> None:
        if self.after is None:
            self.file.unlink(missing_ok=True)
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        mode = self.file.stat().st_mode & 0o777 if self.file.exists() else 0o600
        write_file_atomically(self.file.resolve(), self.after.encode(), mode)


class _Installed(Struct):
    """What was changed in one file."""

    file: str
    before: str | None
    after_digest: str


def plan_install(entries: list[ConfigEntry], command: ServerCommand) -> list[FileEdit]:
    """The edits that add these entries, in place of earlier ones of ours."""
    edits = []
    for entry in entries:
        before = _read(entry.file)
        cleaned = _remove(entry, before, command)
        edits.append(FileEdit(entry.file, before, _add(entry, cleaned or "")))
    return [edit for edit in edits if edit.before != edit.after]


def plan_uninstall(
    entries: list[ConfigEntry], command: ServerCommand, record: Path
) -> list[FileEdit]:
    """The edits that take our entries out again."""
    kept = {each.file: each for each in _read_record(record)}
    edits = []
    for entry in entries:
        before = _read(entry.file)
        known = kept.get(str(entry.file))
        if known is not None and before is not None and _digest(before) == known.after_digest:
            edits.append(FileEdit(entry.file, before, known.before))
        else:
            edits.append(FileEdit(entry.file, before, _remove(entry, before, command)))
    return [edit for edit in edits if edit.before != edit.after]


def keep_record(record: Path, edits: list[FileEdit]) -> None:
    """Save the previous text of the files, unless the text before the first install is saved."""
    kept = {each.file: each for each in _read_record(record)}
    for edit in edits:
        name, digest = str(edit.file), _digest(edit.after or "")
        earlier = kept.get(name)
        unchanged = earlier is not None and _digest(edit.before or "") == earlier.after_digest
        before = earlier.before if earlier is not None and unchanged else edit.before
        kept[name] = _Installed(name, before, digest)
    record.parent.mkdir(mode=0o700, exist_ok=True)
    write_file_atomically(record, msgspec.json.encode([*kept.values()]))


def _read_record(record: Path) -> list[_Installed]:
    try:
        return msgspec.json.decode(record.read_bytes(), type=list[_Installed])
    except FileNotFoundError:
        return []
    except msgspec.MsgspecError:
        return []


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


# -- one file


def _add(entry: ConfigEntry, text: str) -> str:
    if entry.form == "toml":
        return _add_toml(entry, text)
    document = _parse_json(entry, text)
    if entry.table is not None:
        _open_table(entry, document, entry.table)[SERVER_NAME] = entry.server
    if entry.hooks:
        hooks = _open_table(entry, document, "hooks")
        for event, groups in entry.hooks.items():
            hooks[event] = [*hooks.get(event, []), *groups]
    return _write_json(document, text)


def _remove(entry: ConfigEntry, text: str | None, command: ServerCommand) -> str | None:
    """The text without our entries, and without a table that they leave empty."""
    if text is None:
        return None
    if entry.form == "toml":
        return _TOML_TABLE.sub("", text)
    document = _parse_json(entry, text)
    before = json.dumps(document)
    if entry.table is not None and isinstance(table := document.get(entry.table), dict):
        table.pop(SERVER_NAME, None)
        if not table:
            del document[entry.table]
    if entry.hooks and isinstance(hooks := document.get("hooks"), dict):
        _remove_hooks(hooks, command)
        if not hooks:
            del document["hooks"]
    return text if json.dumps(document) == before else _write_json(document, text)


def _remove_hooks(hooks: dict[str, Any], command: ServerCommand) -> None:
    for event, groups in list(hooks.items()):
        if not isinstance(groups, list):
            continue
        kept = []
        for group in groups:
            ours = [h for h in group.get("hooks", []) if command.is_hook(h.get("command"))]
            rest = [h for h in group.get("hooks", []) if h not in ours]
            if rest or not ours:
                kept.append({**group, "hooks": rest} if ours else group)
        hooks[event] = kept
        if not kept:
            del hooks[event]


def _open_table(entry: ConfigEntry, document: dict[str, Any], name: str) -> dict[str, Any]:
    table = document.setdefault(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{entry.file}: `{name}` is not an object; nothing was changed")
    return table


def _parse_json(entry: ConfigEntry, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise ConfigError(
            f"{entry.file} is not plain JSON ({error}); nothing was changed. `--print` shows what"
            " to add by hand"
        ) from None
    if not isinstance(document, dict):
        raise ConfigError(f"{entry.file} is not a JSON object; nothing was changed")
    return document


def _write_json(document: dict[str, Any], like: str) -> str:
    """The document, indented as the text before was."""
    found = re.search(r"^([ \t]+)\S", like, re.M)
    indent: str | int = found.group(1) if found else 2
    return json.dumps(document, indent=indent, ensure_ascii=False) + "\n"


def _add_toml(entry: ConfigEntry, text: str) -> str:
    lines = [f"[{entry.table}.{SERVER_NAME}]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in (entry.server or {}).items()]
    start = f"{text.rstrip()}\n\n" if text.strip() else ""
    whole = start + "\n".join(lines) + "\n"
    try:
        tomllib.loads(whole)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{entry.file} cannot be changed ({error}); nothing was changed. `--print` shows what"
            " to add by hand"
        ) from None
    return whole
