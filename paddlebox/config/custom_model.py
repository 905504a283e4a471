"""Keys of `model` for a user's own layer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from paddlebox.config.models import ModelType, NetworkConfig
from paddlebox.config.section import ListOf, Text


class CustomConfig(NetworkConfig):
    """A layer that the user has written."""

    type: Literal[ModelType.CUSTOM] = Field(description="a model of the zoo: docs/models.md")
    layer: Text = Field(
        description="the layer's class, path/to/file.py:Class or module:Class; needs "
        "security.allow_commands"
    )
    settings: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="settings of your own, which the layer reads from `config.settings`",
    )
    in_order: ListOf[Text] = Field(
        default=(),
        description="sparse slots that the layer reads id by id, each with a max_length",
    )

    @property
    def sequences(self) -> tuple[str, ...]:
        return self.in_order
