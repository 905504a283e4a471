"""Learning rates of slots: a factor on those of the rules."""

from __future__ import annotations

import numpy as np
import pytest

from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.config import Config, load_slots
from paddlebox.errors import ConfigError
from paddlebox.store.table import sorted_unique_keys
from paddlebox.train.opening import open_table as open_configured

SLOTS = """
slots:
  - {name: click, type: label}
  - {name: user, type: sparse}
  - {name: item, type: sparse}
"""


def test_a_row_moves_by_the_rate_of_its_slot(open_table):
    paddle.disable_static()
    feasigns = np.arange(1, 4, dtype=np.uint64)
    keys = sorted_unique_keys(feasigns)
    moved = []
    for rates in ((), (1.0, 0.5, 2.0)):
        table = open_table({"name": f"rates{len(rates)}"}, slot_rates=rates)
        table.begin(table.stage(keys, np.arange(3, dtype=np.uint16)))
        ids = paddle.to_tensor(feasigns.view(np.int64)[:, None])
        ops.pull_box_sparse(ids, 7, anchor=ops.create_anchor()).sum().backward()
        table.end()
        table.commit()
        _, rows = table.read_all()
        slots = rows.view(np.uint32)[:, 0] & 0xFFFF
        moved.append(rows[np.argsort(slots), 6])  # embed_w
        table.close()
    np.testing.assert_allclose(moved[1], moved[0] * [1.0, 0.5, 2.0], rtol=1e-6)


def test_a_rate_of_an_unknown_slot_names_the_nearest(tmp_path):
    (tmp_path / "slots.yaml").write_text(SLOTS)
    config = Config.model_validate(
        {
            "name": "x",
            "data": {
                "slots": str(tmp_path / "slots.yaml"),
                "train_files": ["a"],
                "format": "multislot",
            },
            "model": {"type": "deepfm"},
            "table": {"slot_learning_rates": {"usr": 0.5}},
        },
        strict=False,
    )
    slots = load_slots(config.data.slots)
    with pytest.raises(ConfigError, match=r"no sparse slot .usr. in .*did you mean .user."):
        open_configured(config, tmp_path / "store", slots=slots)
