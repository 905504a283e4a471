"""Requests: the parser of their bodies, the errors that a client gets, and the OpenAPI page of the
endpoints and of the fields that the current version reads."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from paddlebox.config import Config, Format, Slot, Slots, SlotType
from paddlebox.errors import DataError, HistoryMissing
from paddlebox.serving.users import MOST_NAME, UserRequest

_ONE = frozenset({str, int, float})
_TYPES = {dict: "an object", list: "an array", str: "a string", int: "an integer",
          float: "a number", bool: "a boolean", type(None): "null"}  # fmt: skip
_REQUEST = '{"instances": [{NAME: VALUE, …}, …]}'
_USER_REQUEST = '{"history": [{NAME: VALUE, …}, …], "candidates": [{NAME: VALUE, …}, …]}'
# The start of the feeder's error messages.
_PLACE = re.compile(
    r"(instance|history|candidate) (\d+)(?:: (?:no slot reads a )?(?:slot|field) "
    r"'((?:[^'\\]|\\.)*)')?"
)
_MEMBER = {"instance": "instances", "history": "history", "candidate": "candidates"}


class Refused(Exception):  # noqa: N818  # most are errors of the client, not of this package
    """A response with a status other than 200. code: one word for programs. message: a sentence for
    people. where: the part of the request, such as `instances[3].user`; "": the whole request."""

    def __init__(self, status: int, code: str, message: str, where: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.where = status, code, message, where

    def body(self) -> dict[str, dict[str, str]]:
        return {"error": {"code": self.code, "message": self.message, "where": self.where}}


def parse_request(body: bytes, max_instances: int) -> list[dict[str, Any]]:
    """The instances in a body `{"instances": [{name: value or [values]}]}`. Names are not checked.
    Raises: Refused."""
    request = _members(body, ("instances",), ("instances",), _REQUEST)
    return _instances(request, "instances", max_instances)


def parse_user_request(body: bytes, max_instances: int) -> UserRequest:
    """The request in a body `{"user", "after", "history", "candidates"}`, of which the first two
    may be absent. Names of fields are not checked. Raises: Refused, also for more than
    max_instances events or candidates."""
    names = ("user", "after", "history", "candidates")
    request = _members(body, names, names[2:], _USER_REQUEST)
    user, after = request.get("user", ""), request.get("after", 0)
    if type(user) not in (str, int):
        _wrong("user", "a string or an integer", user)
    if type(after) is not int or after < 0:
        _wrong("after", "a number of events, 0 or more", after)
    history, candidates = (_instances(request, name, max_instances) for name in names[2:])
    return UserRequest(history, candidates, str(user), after)


def _members(
    body: bytes, known: tuple[str, ...], needed: tuple[str, ...], form: str
) -> dict[str, Any]:
    # A pydantic model took 1.2 times as long for one instance of 39 fields, 1.5 times for 64 and
    # 2.8 times for 4096. It also reported one wrong value as up to six errors.
    try:
        request = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise Refused(400, "malformed_json", "the body is nested too deeply") from None
    except ValueError as error:
        why = f"the body is not JSON in UTF-8, found: {error}; expected {form}"
        raise Refused(400, "malformed_json", why) from None
    if type(request) is not dict:
        members = " and ".join(repr(name) for name in needed)
        _wrong("", f"an object with a member {members}, {form}", request)
    for name in request:
        if name not in known:
            expected = f"expected {' and '.join(map(repr, known))} and nothing else"
            raise Refused(422, "unknown_member", f"{expected}, found {_short(name)}", name[:40])
    for name in needed:
        if name not in request:
            why = f"expected a member {name!r}, found none: send {form}"
            raise Refused(422, "missing_member", why)
    return dict(request)


def _instances(request: dict[str, Any], member: str, max_instances: int) -> list[dict[str, Any]]:
    instances = request[member]
    if type(instances) is not list:
        _wrong(member, "an array of objects", instances)
    if len(instances) > max_instances:
        why = f"expected at most {max_instances} {member}, found {len(instances)}"
        raise Refused(422, "too_many_instances", f"{why}: send several requests", member)
    for number, fields in enumerate(instances):
        if type(fields) is not dict:
            _wrong(f"{member}[{number}]", "an object from slot to value", fields)
        for name, value in fields.items():
            if type(value) is list:
                for place, part in enumerate(value):
                    if type(part) not in _ONE:
                        where = f"{member}[{number}].{name[:40]}[{place}]"
                        _wrong(where, "a string or a number", part)
            elif value is not None and type(value) not in _ONE:
                where = f"{member}[{number}].{name[:40]}"
                _wrong(where, "a string, a number, an array of them, or null", value)
    return instances


def bad_field(error: DataError | UnicodeEncodeError) -> Refused:
    """The response for a feeder's error about an instance, with the place in the request."""
    if isinstance(error, HistoryMissing):
        return Refused(409, "history_missing", str(error), "after")
    if isinstance(error, UnicodeEncodeError):
        return Refused(422, "bad_field", "a string contains an unpaired surrogate")
    where = "user" if str(error).startswith("user:") else ""
    if place := _PLACE.match(str(error)):
        where = f"{_MEMBER[place[1]]}[{place[2]}]"
        where += f".{place[3]}" if place[3] is not None else ""
    return Refused(422, "bad_field", str(error), where)


def _wrong(where: str, expected: str, found: Any) -> NoReturn:
    what = f"{where or 'the body'}: expected {expected}, found {_TYPES[type(found)]}"
    raise Refused(422, "wrong_type", what, where)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def _integer(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def _string(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


_NULL = {"type": "null"}
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
        forms = _TEXT if slot.hash else _WEIGHTED if slot.weighted else _FEASIGN
        return {"anyOf": [*forms, {"type": "array", "items": {"anyOf": forms}}, _NULL]}
    vector = {"type": "array", "items": _FLOAT, "minItems": slot.dim, "maxItems": slot.dim}
    return {"anyOf": [vector, *[_FLOAT] * (slot.dim == 1), *[_NULL] * (slot.default is not None)]}


def _instance(config: Config, slots: Slots, kind: str) -> dict[str, Any]:
    """The JSON schema of an instance, of an event of a history, or of a candidate. kind: its name
    on the page."""
    criteo = config.data.format is Format.CRITEO_TSV
    fields: dict[str, list[dict[str, Any]]] = {}
    required = set()
    for slot in slots.slots:
        if slot.made or slot.type is SlotType.LABEL or slot in slots.beside:
            continue
        name = slot.column or slot.name
        fields.setdefault(name, []).append(_field(slot, criteo))
        if slot.type is SlotType.DENSE and slot.default is None and not criteo:
            required.add(name)
    own = {slots.tags.time: _TIME} if kind != "Instance" else {}
    if kind == "Event":
        own[slots.label.column or slots.label.name] = _FLOAT
    of_slots = {
        name: forms[0] if len(forms) == 1 else {"allOf": forms} for name, forms in fields.items()
    }
    return {**_object(**of_slots | own), "required": [*sorted(required), *own]}


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


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, **_content("application/json", schema)}


def _endpoint(answer: dict[str, Any], *refusals: int) -> dict[str, Any]:
    """An operation. answer: that of status 200. refusals: the other statuses."""
    errors = {str(status): _json(_REFUSALS[status], _ERROR_REFERENCE) for status in refusals}
    return {"responses": {"200": answer, **errors}}


_ERROR_REFERENCE = {"$ref": "#/components/schemas/Error"}
_VERSION = {"type": "integer", "minimum": 0}
_NAME = {"type": "string"}
_REFUSALS = {
    400: "The body is not JSON, or is incomplete.",
    408: "The body did not arrive in time.",
    409: "The first `after` events of the user are not kept: send the whole history.",
    413: "The body is too large.",
    415: "The body is not application/json, or is compressed.",
    422: "The body is JSON, but not a request, or a slot cannot read the value of a field.",
    500: "The server failed; its log says how.",
    503: "Too many requests are waiting, or the server is ending: try again after Retry-After.",
    504: "The prediction took too long.",
}


def page(config: Config, slots: Slots, max_instances: int, package_version: str) -> dict[str, Any]:
    """The page, in OpenAPI 3.1. max_instances: the most instances in a request."""
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
    predict = {
        "requestBody": {"required": True, **_content("application/json", request)},
        **_endpoint(_json("A prediction for each instance, in order.", answer), *statuses),
    }
    text = {"description": "text", **_content("text/plain", {"type": "string"})}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Predictions of {config.name}", "version": package_version},
        "paths": {
            "/predict": {"post": predict},
            "/healthz": {"get": _endpoint(_json("Ready.", health), 500, 503)},
            "/metrics": {"get": _endpoint(text, 500)},
            "/openapi.json": {"get": _endpoint(_json("This page.", {"type": "object"}), 500)},
        },
        "components": {
            "schemas": {
                **{kind: _instance(config, slots, kind) for kind in kinds.values()},
                "Error": _object(error=_object(code=_NAME, message=_NAME, where=_NAME)),
            }
        },
    }
