"""The base class of all sections of a configuration, and types of their fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from paddlebox.config.check import described

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
KIB, MIB, GIB = _UNITS["KiB"], _UNITS["MiB"], _UNITS["GiB"]


def parse_bytes(value: Any) -> Any:
    """Parse a size: "64MiB" becomes 67108864. A value that is not text is returned as it is.
    Raises: ValueError."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*", value)
    if match is None or match[2] not in _UNITS:
        units = ", ".join(_UNITS)
        raise ValueError(
            f"expected bytes, as a number and one of {units}, found {value!r}{_meant(match)}"
        )
    whole, _, fraction = match[1].partition(".")
    scale = 10 ** len(fraction)
    count, rest = divmod(int(whole + fraction) * _UNITS[match[2]], scale)
    if rest:
        raise ValueError(f"{value!r} is not a whole number of bytes")
    return count


def _meant(match: re.Match[str] | None) -> str:
    """A hint about a number with another unit, such as GB."""
    letter = match[2][0].upper() if match else ""
    if match and letter in "KMGT" and match[2][1:].upper() in ("", "B", "IB"):
        return f"; did you mean {match[1]}{letter}iB?"
    return "; write for example 64MiB"


Bytes = Annotated[int, BeforeValidator(parse_bytes)]


def list_to_tuple(value: Any) -> Any:
    """A list as a tuple, because YAML and JSON have no tuples; other values as they are."""
    return tuple(value) if isinstance(value, list) else value


T = TypeVar("T")
ListOf = Annotated[tuple[T, ...], BeforeValidator(list_to_tuple)]
Text = Annotated[str, Field(min_length=1)]
Unit = Annotated[float, Field(ge=0, le=1)]
# Enums are read from their values; in strict mode pydantic would require enum members.
E = TypeVar("E", bound=StrEnum)
Choice = Annotated[E, Field(strict=False)]


class Section(BaseModel):
    """Base of all sections: frozen, without unknown keys, type conversion, inf or nan. Values that
    do not fit raise a ConfigError like that of a config file, also in `model_validate` and
    `model_validate_json`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def having(self, values: Mapping[str, Any]) -> Self:
        """The section with other values, by dotted key. They are not validated."""
        changed: dict[str, Any] = {}
        for key, value in values.items():
            name, _, rest = key.partition(".")
            own = changed.get(name, getattr(self, name))
            changed[name] = own.having({rest: value}) if rest else value
        return self.model_copy(update=changed)

    if not TYPE_CHECKING:  # type checkers know the fields

        def __init__(self, /, **fields: Any) -> None:
            with _described(type(self), fields):
                super().__init__(**fields)

        # So pydantic does not call it for a section inside a section: one error has whole paths.
        __init__.__pydantic_base_init__ = True

        @classmethod
        def model_validate(cls, obj: Any, **options: Any) -> Section:
            with _described(cls, obj):
                return super().model_validate(obj, **options)

        @classmethod
        def model_validate_json(cls, json_data: Any, **options: Any) -> Section:
            with _described(cls, json_data):
                return super().model_validate_json(json_data, **options)


@contextmanager
def _described(section: type[BaseModel], values: Any) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise described(section, values, error, section.__name__) from None
