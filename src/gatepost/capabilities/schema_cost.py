"""Bounds on the work of a JSON Schema, before it is used: a contract comes from any member.

A value is checked by every schema that applies to it, and a definition is checked again wherever
it is referred to. Thirty definitions that each refer twice to the next one apply a billion times.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from gatepost.errors import InvalidRequest

MAX_SCHEMAS = 2000
# An expression costs as much as so many schemas.
_PATTERN_COST = 20
# Their schemas apply to different parts of a value.
_SEPARATE = ("properties", "prefixItems")
_OTHER_REFERENCES = ("$dynamicRef", "$recursiveRef")
# A step takes about 10 ns. These take longer, as measured with jsonschema-rs.
_DECODE_STEPS = 10
_OPTION_STEPS = 15
_FRACTION_STEPS = 50
_UNIQUE_STEPS = 3
# Compiled expressions have one of these sizes at most, and take a step a character for every 256
# bytes of theirs.
EXPRESSION_BYTES = (1 << 10, 1 << 13, 1 << 16, 1 << 18, 1 << 20)
MAX_EXPRESSION_BYTES = 4 * 1024 * 1024
# The most memory that an expression uses to be faster.
_AUTOMATON_BYTES = 128 * 1024
_BYTES_PER_STEP = 256


class SchemaCost(NamedTuple):
    """The work of a schema.

    `schemas` counts those that apply to a value. `loops` counts the references among them that lead
    back to a schema that is being followed: with two of them, every level of a nested value doubles
    the work. A check takes up to `steps` for each part of a value, and `byte_steps` for each byte.
    """

    schemas: int = 0
    loops: int = 0
    steps: int = 0
    byte_steps: int = 0

    def count_steps(self, payload: bytes) -> int:
        """The most steps that a check of this JSON text can take."""
        parts = 1 + sum(payload.count(mark) for mark in (b",", b":", b"[", b"{"))
        return parts * (_DECODE_STEPS + self.steps) + len(payload) * self.byte_steps


def measure_cost(schema: Any, name: str) -> SchemaCost:
    """Measure a schema; InvalidRequest if it could be applied too often."""
    try:
        return _SchemaWalk(schema, name).measure(schema)
    except RecursionError:
        raise InvalidRequest(f"the {name} schema has too long chains of references") from None


class _SchemaWalk:
    """Follows every reference, and each definition once."""

    def __init__(self, root: Any, name: str) -> None:
        self._root = root
        self._name = name
        self._known: dict[str, SchemaCost] = {}
        self._followed: set[str] = {"#"}
        self._expression_bytes = 0

    def measure(self, schema: Any) -> SchemaCost:
        if isinstance(schema, list):
            return self._add([self.measure(each) for each in schema])
        if not isinstance(schema, dict):
            return SchemaCost(steps=1)
        parts = [self._measure_keyword(key, value) for key, value in schema.items()]
        return self._add([SchemaCost(schemas=1, steps=1), *parts])

    def _measure_keyword(self, key: str, value: Any) -> SchemaCost:
        if key in _OTHER_REFERENCES:
            raise InvalidRequest(f"the {self._name} schema has a {key}; use $ref")
        if key == "$ref" and isinstance(value, str):
            return self._follow(value)
        if key == "$defs":
            # Definitions apply where they are referred to.
            return SchemaCost()
        if key == "pattern":
            return self._measure_patterns([value])
        if key == "patternProperties" and isinstance(value, dict):
            return self._add([self.measure(value), self._measure_patterns(value)])
        if key in _SEPARATE and isinstance(value, dict | list):
            return self._measure_separate(value)
        if key == "enum" and isinstance(value, list) and _is_set(value):
            value = True
        return self._add([self.measure(value), SchemaCost(steps=_extra_steps(key, value))])

    def _measure_separate(self, schemas: dict[str, Any] | list[Any]) -> SchemaCost:
        each = schemas.values() if isinstance(schemas, dict) else schemas
        costs = [self.measure(part) for part in each]
        total = self._add([SchemaCost(schemas=cost.schemas) for cost in costs])
        _, loops, steps, byte_steps = map(max, zip(*costs, SchemaCost(), strict=True))
        return SchemaCost(total.schemas, loops, len(costs) + steps, byte_steps)

    def _measure_patterns(self, patterns: Collection[Any]) -> SchemaCost:
        sizes = [self._measure_expression(str(each)) for each in patterns]
        steps = sum(sizes) // _BYTES_PER_STEP
        return SchemaCost(schemas=len(sizes) * _PATTERN_COST, steps=steps, byte_steps=steps)

    def _measure_expression(self, pattern: str) -> int:
        size = _expression_bytes(pattern)
        if size is None:
            raise InvalidRequest(
                f"the {self._name} schema cannot be used: {pattern[:80]!r} is no expression, or one"
                " that is too large"
            )
        self._expression_bytes += size
        if self._expression_bytes > MAX_EXPRESSION_BYTES:
            raise InvalidRequest(f"the {self._name} schema has too many large expressions")
        return size

    def _follow(self, reference: str) -> SchemaCost:
        if reference in self._followed:
            return SchemaCost(schemas=1, loops=1, steps=1)
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

    def _add(self, parts: Sequence[SchemaCost]) -> SchemaCost:
        total = SchemaCost(*map(sum, zip(*parts, SchemaCost(), strict=True)))
        if total.schemas > MAX_SCHEMAS:
            raise InvalidRequest(
                f"the {self._name} schema applies more than {MAX_SCHEMAS} schemas to a value"
            )
        if total.loops > 1:
            raise InvalidRequest(
                f"the {self._name} schema refers to itself more than once for the same value"
            )
        return total


@lru_cache(maxsize=1000)
def _expression_bytes(pattern: str) -> int | None:
    """The size of a compiled expression; None if it cannot be compiled."""
    index = bisect_left(EXPRESSION_BYTES, True, key=partial(_fits_into, pattern))
    return EXPRESSION_BYTES[index] if index < len(EXPRESSION_BYTES) else None


def _fits_into(pattern: str, size: int) -> bool:
    try:
        compile_schema({"pattern": pattern}, size)
    except ValueError:
        return False
    return True


def compile_schema(schema: dict[str, Any] | bool, expression_bytes: int) -> Any:
    """Compile a schema whose expressions need no more than so many bytes; otherwise ValueError."""
    import jsonschema_rs

    # An expression that takes for ever must not: this engine takes linear time.
    engine = jsonschema_rs.RegexOptions(
        size_limit=expression_bytes, dfa_size_limit=_AUTOMATON_BYTES
    )
    try:
        return jsonschema_rs.Draft202012Validator(schema, offline=True, pattern_options=engine)
    except jsonschema_rs.ValidationError as error:
        raise ValueError(str(error)) from None


def _is_set(options: list[Any]) -> bool:
    """Whether the validator finds an option at once. It compares others with each in turn."""
    return {type(option) for option in options} in ({str}, {int})


def _extra_steps(key: str, value: Any) -> int:
    """The steps of a keyword beyond one for each of its parts."""
    if key == "enum":
        return _OPTION_STEPS * (len(value) if isinstance(value, list) else 1)
    extra = {"const": _OPTION_STEPS, "multipleOf": _FRACTION_STEPS, "uniqueItems": _UNIQUE_STEPS}
    return extra.get(key, 0)
