"""The small models of the zoo that train on the device, by name: sections `model`."""

from __future__ import annotations

from typing import Any

from tests.models.small import CASES, section
from tests.models.test_zoo_modes import MODELS

POOLED = {f"{model} {settings}": section(model, settings) for model, settings in CASES}
#: In the first step all items are alike. With losses over the items of a batch, the gradients of
#: the tower of items are then rounding errors, which Adam would make as large as any other.
SMALL = ("in_batch", "sampled_softmax")
SEQUENCES: dict[str, dict[str, Any]] = {
    name: {"hidden": [16, 8], **model, "optimizer": "sgd" if model.get("loss") in SMALL else "adam"}
    for name, model in MODELS.items()
}
FEW = {
    "dnn": section("dnn", {}),
    "deepfm": section("deepfm", {"dense_ranges": [[-1.0, 0.0, 1.0], [0.0, 0.5], []]}),
    "priors": section("dnn", {"click_prior": ["s0", "s3"]}),
    "rank_attention": section("rank_attention", {"output_dim": 3, "enable_input_bp": True}),
    # With operators over rows without padding: Dice has its means over them.
    "din": {"hidden": [4], **MODELS["din"]},
    "hstu_of_users": {"hidden": [4], **MODELS["hstu_of_users"]},
    # Of one hidden layer, because Paddle's operators draw a seed for each.
    "dropout": {**section("dnn", {"dropout": 0.5}), "hidden": [6]},
}
