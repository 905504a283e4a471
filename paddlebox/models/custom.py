"""A model outside the zoo: a layer that the config names by file and class.

It has the interface of the other models: Class(config, inputs) gets the section `model` and
`Inputs`, and forward(ids, offsets, show_click, plan, dense) returns logits (B, T). With
`model.delayed_task`, T counts the output for it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddlebox import ops
from paddlebox.config.code import calling, check_callable, load_named
from paddlebox.config.models import CustomConfig
from paddlebox.errors import ConfigError
from paddlebox.models.inputs import Inputs

paddle = ops.paddle


def custom_layer(config: CustomConfig, inputs: Inputs) -> Any:
    """Create the layer that `config.layer` names.

    Raises: ConfigError if the name cannot be loaded, is not a `paddle.nn.Layer`, or raises an
        error.
    """
    what = f"model.layer {config.layer!r}"
    found = load_named(config.layer, "model.layer")
    if not (isinstance(found, type) and issubclass(found, paddle.nn.Layer)):
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        raise ConfigError(f"{what}: expected a class of paddle.nn.Layer, found {kind}")
    check_callable(found, f"{what}: __init__", "config", "inputs")
    with calling(f"{what}: __init__"):
        return found(config, inputs)


def custom_logits(config: CustomConfig, model: Any, inputs: Sequence[Any], label: Any) -> Any:
    """The logits (B, T) of the layer.

    Args:
        inputs: the arguments of its forward.
        label: (B, T) or, with `delayed_task`, (B, T - 1).

    Raises: ConfigError if it raises an error, or returns anything else.
    """
    what = f"model.layer {config.layer!r}: forward"
    with calling(what):
        logits = model(*inputs)
    rows, columns = label.shape[0], label.shape[1] + bool(config.delayed)
    found = described(logits)
    if found not in {f"({rows}, {columns}) float32", f"(-1, {columns}) float32"}:
        raise ConfigError(
            f"{what}: expected logits of shape (B, {columns}), a float32 column for each label, "
            f"found {found}; (-1 is B)"
        )
    return logits


def described(value: Any) -> str:
    """The shape and type of a tensor, such as "(-1, 2) float32"; of anything else its class."""
    if value is None or not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return "None" if value is None else type(value).__name__
    shape = ", ".join(map(str, value.shape)) + ("," if len(value.shape) == 1 else "")
    dtype = str(value.dtype).rpartition(".")[2].lower()
    return f"({shape}) {dtype}"
