"""What every section of a configuration is, and the types that its fields share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def list_to_tuple(value: Any) -> Any:
    """YAML and JSON have no tuples."""
    return tuple(value) if isinstance(value, list) else value


T = TypeVar("T")
ListOf = Annotated[tuple[T, ...], BeforeValidator(list_to_tuple)]
Text = Annotated[str, Field(min_length=1)]
Unit = Annotated[float, Field(ge=0, le=1)]
# Enums are read from their value; strict mode would ask for the Python object.
E = TypeVar("E", bound=StrEnum)
Choice = Annotated[E, Field(strict=False)]


class Section(BaseModel):
    """Base of all sections: frozen, nothing unknown, no silent conversion, no inf or nan."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
