"""A model outside the zoo: a layer that the config names by file and class.

It has the interface of the other models: Class(config, inputs) gets the section `model` and
`Inputs`, and forward(ids, offsets, show_click, plan, dense) returns logits (B, T).
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
    """Create the layer that `config.layer` names.

    Raises: ConfigError if the name cannot be loaded, or is not a `paddle.nn.Layer`.
    """
    found = load_named(config.layer, "model.layer")
    if not (isinstance(found, type) and issubclass(found, paddle.nn.Layer)):
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        raise ConfigError(
            f"model.layer {config.layer!r}: expected a class of paddle.nn.Layer, found {kind}"
        )
    return found(config, inputs)
