"""Requests: the parser of their bodies, and the errors that a client gets."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from paddlebox.errors import DataError, HistoryMissing
from paddlebox.serving.users import UserRequest

USUAL_K = 20  # results of a search
_ONE = frozenset({str, int, float})
_TYPES = {dict: "an object", list: "an array", str: "a string", int: "an integer",
          float: "a number", bool: "a boolean", type(None): "null"}  # fmt: skip
_REQUEST = '{"instances": [{NAME: VALUE, …}, …]}'
_USER_REQUEST = '{"history": [{NAME: VALUE, …}, …], "candidates": [{NAME: VALUE, …}, …]}'
_SEARCH_REQUEST = '{"instances": [{NAME: VALUE, …}, …], "k": 20}'
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


def parse_search_request(body: bytes, most: int) -> tuple[list[dict[str, Any]], int]:
    """The instances and the number of results in a body `{"instances", "k"}`, of which k may be
    absent. Raises: Refused, also for more than `most` instances or results."""
    request = _members(body, ("instances", "k"), ("instances",), _SEARCH_REQUEST)
    k = request.get("k", USUAL_K)
    if type(k) is not int or not 1 <= k <= most:
        _wrong("k", f"a number of results, 1 to {most}", k)
    return _instances(request, "instances", most), k


def parse_json(body: bytes, form: str) -> Any:
    """The JSON in a body. form: what it should be, for the error. Raises: Refused."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise Refused(400, "malformed_json", "the body is nested too deeply") from None
    except ValueError as error:
        why = f"the body is not JSON in UTF-8, found: {error}; expected {form}"
        raise Refused(400, "malformed_json", why) from None


def _members(
    body: bytes, known: tuple[str, ...], needed: tuple[str, ...], form: str
) -> dict[str, Any]:
    # A pydantic model took 1.2 times as long for one instance of 39 fields, 1.5 times for 64 and
    # 2.8 times for 4096. It also reported one wrong value as up to six errors.
    request = parse_json(body, form)
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
