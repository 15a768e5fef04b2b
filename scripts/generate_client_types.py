"""Writes the types of the TypeScript client from the OpenAPI document. With --check, compares.

The types are the operations of agents and their answers, between two marks in `gatepost.ts`. The
JavaScript beside it is made by `scripts/typescript`.
"""

import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from gatepost.gateway.openapi import component_schemas
from gatepost.wire.operations import AnyAnswer, Deliver, Operation, Subscribe, Unsubscribe

CLIENT = Path(__file__).parent.parent / "clients" / "typescript" / "gatepost.ts"
BEGIN = "// -- types of the wire, from the OpenAPI document: scripts/docs writes them\n"
END = "// -- end of the types of the wire\n"

# Nothing is pushed over HTTP.
_PUSHED = {Subscribe, Unsubscribe, Deliver}
_OPERATIONS = [each.__name__ for each in get_args(Operation) if each not in _PUSHED]
_ANSWERS = [each.__name__ for each in get_args(AnyAnswer) if each not in _PUSHED]
_MORE = ("Failure", "Status", "StoredBlob", "AgentTokens")
_REFERENCE = "#/components/schemas/"
_SIMPLE_TYPES = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}


def render_types() -> str:
    schemas = component_schemas()
    roots = [*_OPERATIONS, *_ANSWERS, *_MORE]
    parts = [_render_type(name, schemas[name]) for name in _reachable(schemas, roots)]
    parts.append(_render_union("Operation", _OPERATIONS))
    parts.append(_render_union("Answer", _ANSWERS))
    return "\n".join(parts)


def _reachable(schemas: dict[str, Any], roots: Iterable[str]) -> list[str]:
    """The names of these schemas and of all that they refer to, in that order."""
    found: dict[str, None] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop(0)
        if name not in found:
            found[name] = None
            waiting[:0] = [each for each in _references(schemas[name]) if each not in found]
    return list(found)


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(target := schema.get("$ref"), str):
            yield target.removeprefix(_REFERENCE)
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _render_type(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    lines = [*_render_comment(schema.get("description", "")), f"export interface {name} {{"]
    for field, kind in schema["properties"].items():
        mark = "" if field in required else "?"
        lines.append(f"  {field}{mark}: {_type_of(kind)};")
    return "\n".join([*lines, "}", ""])


def _render_comment(text: str) -> list[str]:
    if not text:
        return []
    first, *rest = inspect.cleandoc(text).splitlines()
    if not rest:
        return [f"/** {first} */"]
    return [f"/** {first}", *(f" * {line}".rstrip() for line in rest), " */"]


def _render_union(name: str, members: Iterable[str]) -> str:
    return "\n".join([f"export type {name} =", *(f"  | {each}" for each in members)]) + ";\n"


def _type_of(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REFERENCE)
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_type_of(each) for each in schema["anyOf"])
    kind = schema.get("type")
    if kind == "array":
        item = _type_of(schema["items"])
        return f"({item})[]" if " | " in item else f"{item}[]"
    if kind == "object":
        return f"Record<string, {_type_of(schema.get('additionalProperties', {}))}>"
    # Without a type it is any JSON value: a payload.
    return _SIMPLE_TYPES.get(str(kind), "unknown")


def insert_types(text: str) -> str:
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{CLIENT} lacks the marks around its generated types")
    return f"{head}{begin}\n{render_types()}\n{end}{tail}"


def main() -> int:
    text = CLIENT.read_text()
    wanted = insert_types(text)
    if "--check" in sys.argv[1:]:
        if wanted != text:
            print(f"the types in {CLIENT} are stale: run scripts/docs", file=sys.stderr)
        return int(wanted != text)
    if wanted != text:
        CLIENT.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
