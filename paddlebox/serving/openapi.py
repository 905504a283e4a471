"""The OpenAPI page: the endpoints, and the fields that the current version reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from paddlebox.config import Config, Format, Slot, Slots, SlotType
from paddlebox.data.expressions import ReadColumn, slots_of_expressions
from paddlebox.serving.request import USUAL_K
from paddlebox.serving.users import MOST_NAME


def _integer(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def _string(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


_NULL = {"type": "null"}
_ONE = [{"type": "string"}, {"type": "number"}]
_ANY_FIELD = {"anyOf": [*_ONE, {"type": "array", "items": {"anyOf": _ONE}}, _NULL]}
_FLOAT = {"type": "number", "minimum": -3.4e38, "maximum": 3.4e38}
_TIME = _integer(0, (1 << 63) - 1)
_FEASIGN = [_integer(0, (1 << 64) - 1), _string("^[0-9]{1,19}$")]
# An id, or an id with its weight. Of a hashed slot, any text may be.
_WEIGHTED = [
    _FEASIGN[0],
    _string(r"^[0-9]{1,19}(:\+?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?)?$"),
]
_TEXT = [_string("^[^\\u0000\\n\\r\\u001e\\u001f]*$"), {"type": "number"}]
# For criteo_tsv. A token may not be sent as an integer: its decimal digits would be read as
# hexadecimal ones.
_CRITEO_INTEGER = _integer(-(1 << 63), (1 << 63) - 1)
_CRITEO_TOKEN = _string("^[0-9a-f]{0,16}$")


def _field(slot: Slot, criteo: bool) -> dict[str, Any]:
    if criteo:
        integer = (slot.column or slot.name)[0] == "I"
        return {"anyOf": [_CRITEO_INTEGER if integer else _CRITEO_TOKEN, _NULL]}
    if slot.type is SlotType.SPARSE:
        if isinstance(slot, ReadColumn) and slot.excluded:
            one = _string(f"^[^\\u0000\\n\\r\\u001e\\u001f{re.escape(slot.excluded)}]*$")
            return {"anyOf": [*([one, *_TEXT[1:]] if slot.hash else _FEASIGN), _NULL]}
        forms = _TEXT if slot.hash else _WEIGHTED if slot.weighted else _FEASIGN
        return {"anyOf": [*forms, {"type": "array", "items": {"anyOf": forms}}, _NULL]}
    if isinstance(slot, ReadColumn):
        return {"anyOf": [_FLOAT, _NULL]}
    vector = {"type": "array", "items": _FLOAT, "minItems": slot.dim, "maxItems": slot.dim}
    return {"anyOf": [vector, *[_FLOAT] * (slot.dim == 1), *[_NULL] * (slot.default is not None)]}


def fields_of(slots: Slots) -> dict[str, list[Slot]]:
    """The fields of an instance: name -> the slots that read it, at least one."""
    fields: dict[str, list[Slot]] = {}
    for slot in slots.slots:
        if slot.read and slot.type is not SlotType.LABEL and slot not in slots.beside:
            fields.setdefault(slot.column or slot.name, []).append(slot)
    for slot in slots_of_expressions(slots):
        fields.setdefault(slot.column or slot.name, []).append(slot)
    return fields


def example(config: Config, slots: Slots) -> dict[str, Any]:
    """An instance with a value in each field."""
    criteo = config.data.format is Format.CRITEO_TSV
    return {name: _example(readers, criteo) for name, readers in fields_of(slots).items()}


def _example(readers: Sequence[Slot], criteo: bool) -> Any:
    first, size = readers[0], max(slot.dim for slot in readers)
    if criteo:
        return 3 if (first.column or first.name)[0] == "I" else "68fd1e64"
    value: Any = 17  # which any slot can read
    if len(readers) == 1 and first.type is SlotType.DENSE:
        value = 0.5
    elif len(readers) == 1 and (first.hash or first.weighted):
        value = first.default or "red" if first.hash else "17"
        value = f"{value}:0.5" if first.weighted else value
    return value if size == 1 else [value] * size


def _instance(config: Config, slots: Slots, kind: str, unknown: bool) -> dict[str, Any]:
    """The JSON schema of an instance, of an event of a history, or of a candidate. kind: its name
    on the page."""
    criteo = config.data.format is Format.CRITEO_TSV
    of_slots = {}
    required = set()
    for name, readers in fields_of(slots).items():
        forms = [_field(slot, criteo) for slot in readers]
        of_slots[name] = forms[0] if len(forms) == 1 else {"allOf": forms}
        if not criteo and any(s.type is SlotType.DENSE and s.default is None for s in readers):
            required.add(name)
    own = {slots.tags.time: _TIME} if kind != "Instance" else {}
    if kind == "Event":
        own[slots.label.column or slots.label.name] = _FLOAT
    return {
        **_object(**of_slots | own),
        "required": [*sorted(required), *own],
        "additionalProperties": _ANY_FIELD if unknown else False,
    }


def _prediction(slots: Slots) -> dict[str, Any]:
    probability = {"type": "number", "minimum": 0, "maximum": 1}
    one = len(slots.tasks) == 1
    return probability if one else _object(**dict.fromkeys(slots.tasks, probability))


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _content(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {kind: {"schema": schema}}}


def json_answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, **_content("application/json", schema)}


def request_body(schema: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema, "example": example}}
    return {"required": True, "content": content}


def endpoint(
    answer: dict[str, Any], *refusals: int, error: dict[str, Any] | None = None
) -> dict[str, Any]:
    """An operation. answer: that of status 200. refusals: the other statuses."""
    errors = {
        str(status): json_answer(REFUSALS[status], error or _ERROR_REFERENCE) for status in refusals
    }
    return {"responses": {"200": answer, **errors}}


_ERROR_REFERENCE = {"$ref": "#/components/schemas/Error"}
_VERSION = {"type": "integer", "minimum": 0}
_NAME = {"type": "string"}
REFUSALS = {
    400: "The body is not JSON, or is incomplete.",
    404: "Another model or version is served.",
    408: "The body did not arrive in time.",
    409: "The first `after` events of the user are not kept: send the whole history.",
    413: "The body is too large.",
    415: "The body is not application/json, or is compressed.",
    422: "The body is JSON, but not a request, or a slot cannot read the value of a field.",
    500: "The server failed; its log says how.",
    503: "Too many requests are waiting, the server is ending, or there are no vectors of the "
    "served version: try again after Retry-After.",
    504: "The prediction took too long.",
}


def _of_users(config: Config, slots: Slots) -> list[str]:
    """The fields that the user's tower reads."""
    own = getattr(config.model, "user", ())
    fields = fields_of(slots)
    return [name for name, readers in fields.items() if any(slot.name in own for slot in readers)]


def _user(config: Config, slots: Slots, unknown: bool) -> dict[str, Any]:
    """The JSON schema of an instance of /search, which needs no field of the item's tower."""
    schema = _instance(config, slots, "Instance", unknown)
    read = _of_users(config, slots)
    return {**schema, "required": [name for name in schema["required"] if name in read]}


def _search(config: Config, slots: Slots, most: int) -> dict[str, Any]:
    """The operation of /search. most: instances and results of a request."""
    instances = {"type": "array", "maxItems": most}
    request = _object(
        instances={**instances, "items": {"$ref": "#/components/schemas/User"}},
        k=_integer(1, most) | {"default": USUAL_K},
    )
    request["required"] = ["instances"]
    of_item = _object(item={"type": ["integer", "string"]}, score={"type": "number"})
    results = {"type": "array", "items": {"type": "array", "items": of_item}}
    answer = _object(results=results, version=_VERSION, model=_NAME)
    about = "The items with the largest inner products with each user's vector, best first."
    given, read = example(config, slots), _of_users(config, slots)
    user = {name: value for name, value in given.items() if name in read}
    return {
        "requestBody": request_body(request, {"instances": [user], "k": 5}),
        **endpoint(json_answer(about, answer), 400, 408, 413, 415, 422, 500, 503, 504),
    }


def page(
    config: Config,
    slots: Slots,
    max_instances: int,
    package_version: str,
    unknown: bool,
    searches: bool = False,
) -> dict[str, Any]:
    """The page, in OpenAPI 3.1. max_instances: the most instances in a request. unknown: whether
    fields that no slot reads are ignored. searches: whether there is /search."""
    users = config.model.reads_sequences
    kinds = {"history": "Event", "candidates": "Candidate"} if users else {"instances": "Instance"}
    request = _object(
        **{
            member: {
                "type": "array",
                "maxItems": max_instances,
                "items": {"$ref": f"#/components/schemas/{kind}"},
            }
            for member, kind in kinds.items()
        }
    )
    if users:
        request["properties"] |= {
            "user": {"anyOf": [{"type": "string", "maxLength": MOST_NAME}, {"type": "integer"}]},
            "after": {"type": "integer", "minimum": 0},
        }
    answer = _object(
        predictions={"type": "array", "items": _prediction(slots)}, version=_VERSION, model=_NAME
    )
    health = _object(
        status={"type": "string", "enum": ["ready", "stale"]}, version=_VERSION, model=_NAME
    )
    health["properties"]["reason"] = _NAME  # of a stale one
    statuses = (400, 408, *([409] if users else []), 413, 415, 422, 500, 503, 504)
    given = example(config, slots)
    body: dict[str, Any] = {"instances": [given]}
    if users:
        label, time = slots.label.column or slots.label.name, slots.tags.time
        body = {"history": [{**given, time: 1, label: 1}], "candidates": [{**given, time: 2}]}
    predict = {
        "requestBody": request_body(request, body),
        **endpoint(json_answer("A prediction for each instance, in order.", answer), *statuses),
    }
    text = {"type": "string"}
    metrics = {
        "description": "Counters, in Prometheus' text format.",
        **_content("text/plain", text),
    }
    docs = {"description": "A page to try requests in.", **_content("text/html", text)}
    own = json_answer("This interface, in OpenAPI 3.1.", {"type": "object"})
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Predictions of {config.name}", "version": package_version},
        "paths": {
            "/predict": {"post": predict},
            **({"/search": {"post": _search(config, slots, max_instances)}} if searches else {}),
            "/healthz": {"get": endpoint(json_answer("Ready.", health), 500, 503)},
            "/metrics": {"get": endpoint(metrics, 500)},
            "/openapi.json": {"get": endpoint(own, 500)},
            "/docs": {"get": endpoint(docs, 500)},
        },
        "components": {
            "schemas": {
                **{kind: _instance(config, slots, kind, unknown) for kind in kinds.values()},
                **({"User": _user(config, slots, unknown)} if searches else {}),
                "Error": _object(error=_object(code=_NAME, message=_NAME, where=_NAME)),
            }
        },
    }
