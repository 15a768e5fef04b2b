"""Bounds on the work of a JSON Schema, before it is used: a contract comes from any member.

A value is checked by every schema that applies to it, and a definition is checked again wherever
it is referred to. Thirty definitions that each refer twice to the next one apply a billion times.
"""

from typing import Any
from urllib.parse import unquote

from gatepost.errors import InvalidRequest

MAX_SCHEMAS = 2000
# An expression costs as much as so many schemas.
_PATTERN_COST = 20
# Their schemas apply to different parts of a value.
_SEPARATE = ("properties", "prefixItems")
_OTHER_REFERENCES = ("$dynamicRef", "$recursiveRef")

# How many schemas apply to a value, and how many references among them lead back to a schema that
# is being followed: with two of them, every level of a nested value doubles the work.
Cost = tuple[int, int]


def check_cost(schema: Any, name: str) -> None:
    """Raise InvalidRequest if a schema could be applied too often."""
    try:
        _SchemaWalk(schema, name).measure(schema)
    except RecursionError:
        raise InvalidRequest(f"the {name} schema has too long chains of references") from None


class _SchemaWalk:
    """Follows every reference, and each definition once."""

    def __init__(self, root: Any, name: str) -> None:
        self._root = root
        self._name = name
        self._known: dict[str, Cost] = {}
        self._followed: set[str] = {"#"}

    def measure(self, schema: Any) -> Cost:
        if isinstance(schema, list):
            return self._add([self.measure(each) for each in schema])
        if not isinstance(schema, dict):
            return 0, 0
        parts = [self._measure_keyword(key, value) for key, value in schema.items()]
        return self._add([(1, 0), *parts])

    def _measure_keyword(self, key: str, value: Any) -> Cost:
        if key in _OTHER_REFERENCES:
            raise InvalidRequest(f"the {self._name} schema has a {key}; use $ref")
        if key == "$ref" and isinstance(value, str):
            return self._follow(value)
        if key == "$defs":
            # Definitions apply where they are referred to.
            return 0, 0
        if key == "pattern":
            return _PATTERN_COST, 0
        if key == "patternProperties" and isinstance(value, dict):
            return self._add([self.measure(value), (_PATTERN_COST * len(value), 0)])
        if key in _SEPARATE and isinstance(value, dict | list):
            each = value.values() if isinstance(value, dict) else value
            costs = [self.measure(part) for part in each]
            size, _ = self._add([(size, 0) for size, _ in costs])
            return size, max((back for _, back in costs), default=0)
        return self.measure(value)

    def _follow(self, reference: str) -> Cost:
        if reference in self._followed:
            return 1, 1
        if reference not in self._known:
            self._followed.add(reference)
            self._known[reference] = self.measure(self._resolve(reference))
            self._followed.discard(reference)
        return self._known[reference]

    def _resolve(self, reference: str) -> Any:
        found = self._root
        if reference != "#" and not reference.startswith("#/"):
            raise InvalidRequest(f"the {self._name} schema refers by name; use #/$defs/...")
        for part in unquote(reference).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(name)] if isinstance(found, list) else found[name]
            except (LookupError, TypeError, ValueError):
                raise InvalidRequest(
                    f"the {self._name} schema refers to {reference[:80]!r}, which it does not have"
                ) from None
        return found

    def _add(self, parts: list[Cost]) -> Cost:
        size, back = sum(size for size, _ in parts), sum(back for _, back in parts)
        if size > MAX_SCHEMAS:
            raise InvalidRequest(
                f"the {self._name} schema applies more than {MAX_SCHEMAS} schemas to a value"
            )
        if back > 1:
            raise InvalidRequest(
                f"the {self._name} schema refers to itself more than once for the same value"
            )
        return size, back
