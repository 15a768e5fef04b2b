"""The registry: definitions of agents from JSON files. A broken file affects only its agent."""

import re
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from gatepost.tasks.agent_definition import AgentDefinition

MAX_FILE_BYTES = 64 * 1024
MAX_FILES = 1000

# The content of a file, or the reason why it cannot be read.
FileContent = bytes | OSError

_decoder = msgspec.json.Decoder(AgentDefinition)
_BYTE_IN_ERROR = re.compile(r"\(byte (\d+)\)")
_PATH_IN_ERROR = re.compile(r"- at `(\$[^`]*)`")
_END_IN_ERROR = "Input data was truncated"
_UNKNOWN_FIELD_IN_ERROR = re.compile(r"unknown field `([^`]+)`")


class RegistryProblem(Struct, frozen=True):
    """A file that cannot be used. `line` is 0 if the problem concerns no particular line."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.line}: {self.reason}"
            if self.line
            else f"{self.file}: {self.reason}"
        )


class AgentRegistry:
    """The definitions in effect, by name, and the problems of files that are not.

    An agent whose file breaks keeps its last good definition until the file is mended or removed.
    """

    def __init__(self) -> None:
        self._good: dict[str, AgentDefinition] = {}
        self.agents: dict[str, AgentDefinition] = {}
        self.problems: list[RegistryProblem] = []

    def load_files(self, files: Mapping[str, FileContent]) -> None:
        """Replace all definitions by those of these files: name of the file → its content."""
        problems: list[RegistryProblem] = []
        good: dict[str, AgentDefinition] = {}
        for file in sorted(files)[:MAX_FILES]:
            try:
                good[file] = parse_definition(files[file])
            except ValueError as error:
                problems.append(RegistryProblem(file, find_line(files[file], error), str(error)))
                if file in self._good:
                    good[file] = self._good[file]
        if len(files) > MAX_FILES:
            more = f"only the first {MAX_FILES} files are read"
            problems.append(RegistryProblem(sorted(files)[MAX_FILES], 0, more))
        self._good = good
        self.agents, duplicates = _index_by_name(good)
        self.problems = problems + duplicates


def parse_definition(content: FileContent) -> AgentDefinition:
    """Decode one file; the ValueError names the problem."""
    if isinstance(content, OSError):
        raise ValueError(f"it cannot be read: {content.strerror}")
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"the file has more than {MAX_FILE_BYTES} bytes")
    return _decoder.decode(content)


def find_line(content: FileContent, error: ValueError) -> int:
    """The line of an error in a file, from 1; 0 if it concerns no particular line."""
    if isinstance(content, OSError):
        return 0
    if _END_IN_ERROR in str(error):
        return len(content.splitlines())
    if (byte := _BYTE_IN_ERROR.search(str(error))) is not None:
        return content.count(b"\n", 0, int(byte[1])) + 1
    keys: list[str] = []
    if (path := _PATH_IN_ERROR.search(str(error))) is not None:
        keys = re.findall(r"\.(\w+)", path[1])
    if (unknown := _UNKNOWN_FIELD_IN_ERROR.search(str(error))) is not None:
        keys.append(unknown[1])
    position = 0
    for key in keys:
        found = re.compile(rb'"%s"\s*:' % re.escape(key.encode())).search(content, position)
        if found is None:
            return 0
        position = found.start()
    return content.count(b"\n", 0, position) + 1 if keys else 0


def _index_by_name(
    definitions: Mapping[str, AgentDefinition],
) -> tuple[dict[str, AgentDefinition], list[RegistryProblem]]:
    files: dict[str, str] = {}
    problems = []
    for file, definition in definitions.items():
        if (first := files.setdefault(definition.name, file)) != file:
            reason = f"{first} defines the agent {definition.name!r} already"
            problems.append(RegistryProblem(file, 0, reason))
    return {name: definitions[file] for name, file in files.items()}, problems
