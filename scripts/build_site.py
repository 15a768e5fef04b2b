"""Assembles the sources of the documentation site: pages of docs/, and a reference from the code.

`python -m scripts.build_site FOLDER` writes FOLDER/src and FOLDER/zensical.toml.
"""

import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from gatepost import __version__, client, errors
from gatepost.cli.app import app, use_docstring_help
from gatepost.cli.command_table import COMMANDS, FAMILIES
from gatepost.config import Settings
from gatepost.config.loading import section_types
from gatepost.config.toml_text import toml_value
from gatepost.gateway.settings_reload import RELOADED

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

# The order of the site; other pages of docs/ come last.
Navigation = Mapping[str, tuple[str, ...]]
NAVIGATION: Navigation = {
    "Start": ("index", "tutorial", "glossary"),
    "How to": (
        *("howto/two-machines", "howto/laptop", "howto/service", "howto/containers"),
        *("howto/diagnose", "howto/backup", "agents", "mcp", "a2a", "operations", "dashboard"),
        *("terminal", "bootstrap", "transports", "migration"),
    ),
    "Explanation": (
        *("architecture", "pipes", "room", "mesh", "hub", "pipeline", "pipeline_reckoning"),
        *("proofs", "security", "differences"),
    ),
    "Reference": (
        *("protocol", "reference/settings", "reference/errors"),
        *("reference/client",),
    ),
    "Project": ("changelog", "contributing", "releasing"),
}
_TOP_PAGES = {"index": "README.md", "changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md"}
# Files of the repository that are no pages of the site are named, not linked.
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def main(folder: Path) -> None:
    source = folder / "src"
    shutil.rmtree(source, ignore_errors=True)
    for name in ("reference", "howto"):
        (source / name).mkdir(parents=True)
    pages = {name: _read_page(name) for name in _document_names()}
    commands = make_command_reference()
    pages |= {
        **commands,
        "reference/settings": make_settings_reference(),
        "reference/errors": make_error_reference(),
        "reference/client": make_client_reference(),
    }
    navigation = dict(NAVIGATION) | {"Commands": tuple(commands)}
    listed = [name for names in navigation.values() for name in names]
    if missing := sorted(set(pages) - set(listed)):
        navigation["More"] = tuple(missing)
        listed += missing
    for name in listed:
        (source / f"{name}.md").write_text(pages[name], encoding="utf-8")
    (source / "llms.txt").write_text(make_llms_text(pages, navigation), encoding="utf-8")
    (folder / "zensical.toml").write_text(make_configuration(pages, navigation), encoding="utf-8")


def _document_names() -> list[str]:
    pages = sorted([*DOCS.glob("*.md"), *DOCS.glob("howto/*.md")])
    return [*_TOP_PAGES, *(str(page.relative_to(DOCS).with_suffix("")) for page in pages)]


def _read_page(name: str) -> str:
    file = ROOT / _TOP_PAGES[name] if name in _TOP_PAGES else DOCS / f"{name}.md"
    text = file.read_text(encoding="utf-8")
    return _LINK.sub(lambda found: _place_link(file, found[1], found[2]), text)


def _place_link(file: Path, text: str, target: str) -> str:
    """A link as it is on the site; links to files that are not on it become their names."""
    if "://" in target or target.startswith("#"):
        return f"[{text}]({target})"
    path, hash, anchor = target.partition("#")
    found = (file.parent / path).resolve()
    top = {str(ROOT / each): name for name, each in _TOP_PAGES.items()}
    if str(found) in top:
        up = "../" * (len(file.relative_to(ROOT).parts) - 2)
        return f"[{text}]({up}{top[str(found)]}.md{hash}{anchor})"
    if found.is_relative_to(DOCS) and found.suffix == ".md":
        place = os.path.relpath(found, DOCS if file.parent == ROOT else file.parent)
        return f"[{text}]({place}{hash}{anchor})"
    return text if text.startswith("`") else f"`{text}`"


# -- pages from the code


def make_command_reference() -> dict[str, str]:
    """A page for each family of commands, and one for the others of each group."""
    pages: dict[str, list[str]] = {}
    for entry in COMMANDS:
        if entry.name.startswith("--"):
            continue
        family, _, _ = entry.name.rpartition(" ")
        topic, title = family or entry.group.lower().replace(" ", "-"), f"Commands: {entry.group}"
        start = [f"# {title}", "", "The help of each command, as `--help` prints it.", ""]
        if family:
            start = [f"# gatepost {family}", "", FAMILIES[family].partition("\n")[0], ""]
        parts = pages.setdefault(f"reference/commands-{topic}", start)
        parts += [f"## gatepost {entry.name}", "", "```text", _help_text(entry.name).rstrip()]
        parts += ["```", ""]
    return {name: "\n".join(parts) for name, parts in pages.items()}


def _help_text(command: str) -> str:
    from io import StringIO

    from rich.console import Console

    tokens = [*command.split(), "--help"]
    use_docstring_help(tokens)
    written = StringIO()
    app(tokens, console=Console(file=written, width=96, no_color=True), exit_on_error=False,
        result_action="return_value")  # fmt: skip
    return written.getvalue()


def make_settings_reference() -> str:
    parts = ["# Settings", "", "`gatepost.toml` in the state directory. `GATEPOST_SECTION__KEY`"]
    parts += [
        "sets any of them, and wins over the file. ↻: `gatepost config reload` takes it over.",
        "",
    ]
    for name, section in section_types(Settings).items():
        parts += [
            f"## {name}",
            "",
            section.__doc__ or "",
            "",
            "| setting | default | |",
            "|---|---|---|",
        ]
        hints, defaults = get_type_hints(section, include_extras=True), section()
        for key in section.__struct_fields__:
            (meta,) = hints[key].__metadata__
            mark = " ↻" if key in RELOADED.get(name, ()) else ""
            value = toml_value(getattr(defaults, key))
            limits = _describe_limits(meta)
            parts.append(f"| `{key}`{mark} | `{value}` | {meta.description}{limits} |")
        parts.append("")
    return "\n".join(parts)


def _describe_limits(meta: msgspec.Meta) -> str:
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    found = [
        f"{word} {value:g}"
        for key, word in words.items()
        if (value := getattr(meta, key)) is not None
    ]
    return f" ({', '.join(found)})" if found else ""


def make_error_reference() -> str:
    parts = [
        "# Errors",
        "",
        "Each error has a code that stays, an HTTP status, and a sentence.",
        "",
    ]
    parts += ["| code | status | |", "|---|---|---|"]
    seen = set()
    for kind in sorted(_error_types(errors.GatepostError), key=lambda each: str(each.code)):
        if kind.code not in seen:
            seen.add(kind.code)
            doc = " ".join((kind.__doc__ or "").split()).replace("|", "\\|")
            parts.append(f"| `{kind.code}` | {kind.status} | {doc} |")
    return "\n".join([*parts, ""])


def _error_types(base: type[errors.GatepostError]) -> Iterator[type[errors.GatepostError]]:
    yield base
    for each in base.__subclasses__():
        yield from _error_types(each)


def make_client_reference() -> str:
    """Everything in `gatepost.client`, with the signature and docstring of each public method."""
    parts = ["# Python client", "", "`import gatepost.client` needs no other part of Gatepost.", ""]
    for name in sorted(client.__all__):
        value = getattr(client, name)
        parts += [f"## {name}", "", inspect.getdoc(value) or "", ""]
        if inspect.isclass(value) and not issubclass(value, Exception):
            for method, function in inspect.getmembers(value, inspect.isfunction):
                if not method.startswith("_") and function.__doc__:
                    signature = _signature(function)
                    parts += [
                        f"### {name}.{method}",
                        "",
                        "```python",
                        f"{method}{signature}",
                        "```",
                    ]
                    parts += ["", inspect.getdoc(function) or "", ""]
    return "\n".join(parts)


def _signature(function: Any) -> str:
    text = str(inspect.signature(function))
    return text.replace("self, ", "").replace("(self)", "()").replace("typing.", "")


def make_llms_text(pages: Mapping[str, str], navigation: Navigation) -> str:
    """A list of all pages for programs that read, with the first sentence of each."""
    parts = [
        "# Gatepost",
        "",
        "> A durable message fabric on which agents hand each other messages and",
        "> tasks without losing one.",
        "",
    ]
    for title, names in navigation.items():
        parts += [f"## {title}", ""]
        parts += [
            f"- [{_title(pages[name])}]({name}.md): {_first_sentence(pages[name])}"
            for name in names
        ]
        parts.append("")
    return "\n".join(parts)


def _title(page: str) -> str:
    return page.partition("\n")[0].removeprefix("# ")


def _first_sentence(page: str) -> str:
    paragraphs = [each for each in page.split("\n\n")[1:] if each and each[0] not in "#|`<-!"]
    text = " ".join(_LINK.sub(lambda found: found[1], paragraphs[0]).split()) if paragraphs else ""
    return re.split(r"(?<=\.)\s", text)[0]


def make_configuration(pages: Mapping[str, str], navigation: Navigation) -> str:
    nav = [
        {title: [{_title(pages[name]): f"{name}.md"} for name in names]}
        for title, names in navigation.items()
    ]
    entries = ",\n  ".join(_toml_entry(each) for each in nav)
    return f"""\
[project]
site_name = "Gatepost {__version__}"
site_description = "A durable message fabric for agents"
docs_dir = "src"
site_dir = "html"
use_directory_urls = false
nav = [
  {entries},
]

[project.theme]
font = false
features = ["navigation.sections", "content.code.copy", "search.highlight"]

[project.markdown_extensions.toc]
permalink = true

[project.markdown_extensions.tables]

[project.markdown_extensions.pymdownx.superfences]
"""


def _toml_entry(section: dict[str, list[dict[str, str]]]) -> str:
    ((title, pages),) = section.items()
    inner = ", ".join(
        f"{{ {json.dumps(k)} = {json.dumps(v)} }}" for p in pages for k, v in p.items()
    )
    return f"{{ {json.dumps(title)} = [{inner}] }}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
