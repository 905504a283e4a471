"""The base class of all sections of a configuration, and types of their fields."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


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
    """Base of all sections: frozen, without unknown keys, type conversion, inf or nan."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
