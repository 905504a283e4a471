"""The small models of the zoo that train on the device, by name: sections `model`."""

from __future__ import annotations

from typing import Any

from tests.models.small import CASES, section
from tests.models.test_zoo_modes import MODELS as OF_SEQUENCES

#: In the first step all items are alike. With losses over the items of a batch, the gradients of
#: the tower of items are then rounding errors, which Adam would make as large as any other.
SMALL = ("in_batch", "sampled_softmax")
MODELS: dict[str, dict[str, Any]] = {
    **{f"{model} {settings}": section(model, settings) for model, settings in CASES},
    **{
        name: {"hidden": [16, 8], **own, "optimizer": "sgd" if own.get("loss") in SMALL else "adam"}
        for name, own in OF_SEQUENCES.items()
    },
    "ranges": section("deepfm", {"dense_ranges": [[-1.0, 0.0, 1.0], [0.0, 0.5], []]}),
    "priors": section("dnn", {"click_prior": ["s0", "s3"]}),
    "rank_attention": section("rank_attention", {"output_dim": 3, "enable_input_bp": True}),
    "dropout": section("dnn", {"dropout": 0.5}),
}
#: din and hstu_of_users have operators over rows without padding: Dice has its means over them.
FEW = ("ranges", "priors", "rank_attention", "dropout", "din", "hstu_of_users")
