"""A model that is no part of the zoo: a layer that a config names by file and class.

It is made and called as every layer here is: Class(config, inputs) with the section `model` and
`Inputs`, forward(ids, offsets, show_click, plan, dense) with logits (B, T) as its result.
"""

from __future__ import annotations

from typing import Any

from paddlebox import ops
from paddlebox.config.code import load_named
from paddlebox.config.custom_model import CustomConfig
from paddlebox.errors import ConfigError
from paddlebox.models.inputs import Inputs

paddle = ops.paddle


def custom_layer(config: CustomConfig, inputs: Inputs) -> Any:
    """Raises: ConfigError when `layer` names nothing, or no layer."""
    found = load_named(config.layer, "model.layer")
    if not (isinstance(found, type) and issubclass(found, paddle.nn.Layer)):
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        raise ConfigError(
            f"model.layer {config.layer!r}: expected a class of paddle.nn.Layer, found {kind}"
        )
    return found(config, inputs)
