"""Values that fit the schemas of the OpenAPI page, and values that may not."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft202012Validator, validate

_KNOWN = {"$ref", "allOf", "anyOf", "type", "const", "properties", "required", "items", "minItems",
          "maxItems", "additionalProperties", "minimum", "maximum", "maxLength",
          "pattern"}  # fmt: skip


def resolved(schema: Any, page: Any) -> Any:
    assert set(schema) <= _KNOWN, schema
    if "$ref" not in schema:
        return schema
    found = page
    for part in schema["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return found


def check(value: Any, schema: Any, page: Any) -> None:
    """Raises: jsonschema.ValidationError for the value, SchemaError for the page."""
    # References of a schema start at the page.
    validate(value, {**schema, "components": page["components"]}, Draft202012Validator)


def fitting(schema: Any, page: Any) -> st.SearchStrategy[Any]:
    """Values that fit the schema."""
    schema = resolved(schema, page)
    if "allOf" in schema:  # references lie elsewhere on the page
        every = Draft202012Validator({"allOf": schema["allOf"]})
        return st.one_of([fitting(one, page) for one in schema["allOf"]]).filter(every.is_valid)
    if "anyOf" in schema:
        return st.one_of([fitting(one, page) for one in schema["anyOf"]])
    bounds = {"min_value": schema.get("minimum"), "max_value": schema.get("maximum")}
    kind = schema["type"]
    if kind == "object":
        members = {name: fitting(one, page) for name, one in schema["properties"].items()}
        required = {name: members.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(required, optional=members)
    if kind == "array":
        low, high = schema.get("minItems", 0), schema.get("maxItems", 6)
        return st.lists(fitting(schema["items"], page), min_size=low, max_size=min(high, 6))
    if kind == "string":
        return st.from_regex(schema["pattern"].replace("$", r"\Z")) if "pattern" in schema else (
            st.text(max_size=20)
        )  # fmt: skip
    if kind == "null":
        return st.none()
    if kind == "integer":
        return st.integers(**bounds)
    return st.floats(**bounds, allow_nan=False, allow_infinity=False)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["\ud800", "a\nb", "\x1f", '"', '"x', "\0", "inf", "-1", "1e9999", "٣"])
    | st.sampled_from([2**64, -(2**63) - 1, 3.5e38, 10**400]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)  # fmt: skip


@st.composite
def bent(draw: Any, schema: Any, page: Any) -> Any:
    """A value that fits, of which one part became anything, went, or got a companion."""
    value = draw(fitting(schema, page))
    holders: list[Any] = [[value]]
    for holder in holders:
        for member in list(holder.values() if isinstance(holder, dict) else holder):
            if isinstance(member, (dict, list)):
                holders.append(member)
    top, holder = holders[0], draw(st.sampled_from(holders))
    if isinstance(holder, dict):
        names = st.text(max_size=8) | st.sampled_from([*holder, "instances"])
        holder[draw(names)] = draw(ANYTHING)
        if len(holder) > 1 and draw(st.booleans()):
            del holder[draw(st.sampled_from(sorted(holder)))]
    elif holder:
        holder[draw(st.integers(0, len(holder) - 1))] = draw(ANYTHING)
    else:
        holder.append(draw(ANYTHING))
    return top[0]
