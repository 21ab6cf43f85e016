"""Schemas of hostile servers cannot keep the check of arguments busy, or make it download."""

import pytest

from kvchat.chat.turn.tool_calls import validation_error
from kvchat.tools.tool import Tool, checkable_schema

DOUBLING = {
    "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(40)}
    | {"d40": {"type": "object"}},
    "$ref": "#/$defs/d0",
}


def error(schema: dict[str, object], arguments: dict[str, object]) -> str:
    return validation_error(Tool("s", "t", "", schema), arguments)


def test_ordinary_schemas_are_checked() -> None:
    schema = {
        "type": "object",
        "properties": {"pattern": {"type": "string"}, "when": {"$ref": "#/$defs/day"}},
        "$defs": {"day": {"enum": [{"pattern": 1}, "today"]}},
        "required": ["pattern"],
        "additionalProperties": False,
    }
    assert checkable_schema(schema) == schema
    assert error(schema, {"pattern": "x", "when": "today"}) == ""
    assert error(schema, {"pattern": "x", "when": {"pattern": 1}}) == ""
    for wrong in ({}, {"pattern": 5}, {"pattern": "x", "when": "never"}, {"pattern": "x", "other": 1}):
        assert error(schema, wrong)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string", "pattern": "(a+)+$"}}},
        {"patternProperties": {"(a+)+$": {}}, "additionalProperties": False},
        {"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "(a+)+$"}}},
        {"propertyNames": {"pattern": "(a+)+$"}},
        {"properties": {"a": {"$ref": "http://127.0.0.1:1/schema"}}},
        {"properties": {"a": {"$id": "http://127.0.0.1:1/", "$ref": "schema"}}},
        DOUBLING,
        {"$ref": "#"},
    ],
)
@pytest.mark.timeout(100)
def test_hostile_schemas_are_not_followed(schema: dict[str, object]) -> None:
    evil = "a" * 50 + "!"
    assert error(schema, {"a": evil, evil: 1}) == ""
