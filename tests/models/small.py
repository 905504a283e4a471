"""Tiny settings of each model, and models that are given their pooled slots."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from paddlebox.config import AnyModelConfig

# What a model is told beside `hidden`, so small that the numpy references can loop.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "lr": [{}],
    "fm": [{}],
    "dnn": [{"use_cvm": True}, {"use_cvm": False}],
    "wide_deep": [{"use_cvm": True}],
    "deepfm": [{"use_cvm": True}, {"use_cvm": False}],
    "dcn": [{"layers": 2}],
    "dcn_v2": [
        {"low_rank": 2},
        {"low_rank": 2, "experts": 3, "layers": 2},
        {"low_rank": 0},
    ],
    "xdeepfm": [{"cin": [3, 2]}],
    "autoint": [{"heads": 2, "head_dim": 3}],
    "fibinet": [{"bilinear": "all"}, {"bilinear": "each", "use_cvm": False}],
    "dlrm": [{"bottom": [4]}, {"bottom": [], "use_cvm": False}],
    "gatenet": [{"gate": "vector"}, {"gate": "bit"}],
    "masknet": [{"layers": 2, "output_dim": 3}],
    "finalmlp": [{"heads": 2, "gate_hidden": 3}, {"heads": 1, "gate_hidden": 0}],
}
CASES = [(model, settings) for model, many in SETTINGS.items() for settings in many]


def section(model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What stands under `model:` in a config."""
    hidden = {} if model in ("lr", "fm") else {"hidden": [6, 4]}
    return {"type": model, **hidden, **settings}


def config_of(model: str, settings: dict[str, Any]) -> Any:
    return TypeAdapter(AnyModelConfig).validate_python(section(model, settings))
