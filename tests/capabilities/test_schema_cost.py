"""A contract of a hostile member takes no longer to check than another."""

from typing import Any

import pytest

from gatepost.capabilities.schema_cost import measure_cost
from gatepost.errors import InvalidRequest

SELF = {"$ref": "#"}
JSON_POINTER = {"$defs": {"a/b": {"type": "string"}}, "items": {"$ref": "#/$defs/a~1b"}}


def doubling(levels: int) -> dict[str, Any]:
    """Every definition refers twice to the next one, and the last is a plain type."""
    definitions: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)
    }
    return {"$defs": definitions | {f"d{levels}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


CHAIN = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(1000)}
HOSTILE: dict[str, tuple[Any, str]] = {
    "definitions that double": (doubling(40), "more than 2000 schemas"),
    "a nested value that doubles": ({"items": {"allOf": [SELF, SELF]}}, "more than once"),
    "a property and every property": (
        {"properties": {"a": SELF}, "additionalProperties": SELF},
        "more than once",
    ),
    "a loop of two that doubles": (
        {
            "$defs": {
                "a": {"items": {"$ref": "#/$defs/b"}, "contains": {"$ref": "#/$defs/b"}},
                "b": {"items": {"$ref": "#/$defs/a"}},
            },
            "$ref": "#/$defs/a",
        },
        "more than once",
    ),
    "many expressions": ({"allOf": [{"pattern": f"(a|ab){n}"} for n in range(150)]}, "2000"),
    "large expressions": (
        {"properties": {f"p{n}": {"pattern": f"(a{{1,100}}){{1,{n}}}"} for n in range(20, 99)}},
        "too many large expressions",
    ),
    "an expression that is too large": ({"pattern": "[^a]{1,9999}"}, "too large"),
    "a long chain": ({"$defs": CHAIN, "$ref": "#/$defs/d0"}, "chains of references"),
    "a reference that moves": ({"$dynamicRef": "#x"}, r"use \$ref"),
    "a reference by name": ({"$defs": {"a": {"$anchor": "a"}}, "$ref": "#a"}, "by name"),
    "a reference to nothing": ({"$ref": "#/$defs/x"}, "does not have"),
    "a reference into a value": ({"const": 1, "$ref": "#/const/x"}, "does not have"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_schema_that_multiplies_its_work_is_refused(name: str) -> None:
    schema, reason = HOSTILE[name]
    with pytest.raises(InvalidRequest, match=reason):
        measure_cost(schema, "input")


@pytest.mark.parametrize(
    "schema",
    [
        True,
        doubling(3),
        JSON_POINTER,
        {"type": "object", "properties": {"next": SELF, "other": {"type": "array", "items": SELF}}},
        {"type": "array", "items": SELF},
        {"properties": {f"p{n}": {"type": "string", "pattern": "^a"} for n in range(80)}},
    ],
)
def test_useful_schemas_are_not(schema: Any) -> None:
    measure_cost(schema, "input")


@pytest.mark.parametrize(
    ("schema", "steps", "byte_steps"),
    [
        (True, 1, 0),
        ({"type": "integer"}, 2, 0),
        # Properties apply to different values, and all are looked up.
        ({"properties": {"a": {"type": "string"}, "b": {"pattern": "^b"}}}, 1 + 2 + 5, 4),
        ({"enum": [f"option {n}" for n in range(1000)]}, 1 + 1 + 15, 0),
        ({"enum": [None, 1, "x"]}, 1 + 3 + 3 * 15, 0),
        ({"allOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, 1 + 5 + 5, 4 + 4),
        ({"items": {"$ref": "#"}}, 3, 0),
    ],
)
def test_steps_are_counted_for_each_part_of_a_value(
    schema: Any, steps: int, byte_steps: int
) -> None:
    cost = measure_cost(schema, "input")
    assert (cost.steps, cost.byte_steps) == (steps, byte_steps)
    assert cost.count_steps(b'[1,{"a":2}]') == 5 * (10 + steps) + 11 * byte_steps
