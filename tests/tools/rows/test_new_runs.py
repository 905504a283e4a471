"""A new run from an export, and from a DeepFM of PyTorch, which then trains on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from paddlebox.api.run import open_run
from paddlebox.config import load_config
from paddlebox.errors import ConfigError, StoreError
from paddlebox.store.run_config import record_of
from paddlebox.tools.rows.receive import into_new
from paddlebox.tools.rows.sources import open_rows
from paddlebox.tools.upkeep.cli import store_main
from paddlebox.training.run import train
from tests.conftest import PATIENCE_S
from tests.support.configs import write_config, write_slots
from tests.support.processes import start_tool, tool
from tests.tools.rows import deepfm_torch
from tests.tools.rows.deepfm_torch import DIM, HIDDEN, IDS, SLOTS

pytestmark = pytest.mark.slow


def write_run(folder: Path, files: list[str], rate: float = 0.05, **sections: Any) -> Path:
    """A config for the data of deepfm_torch, with the network of its model. rate: of the rows."""
    write_slots(folder, click="label", x="dense", **dict.fromkeys(SLOTS, "sparse"))
    table: dict[str, Any] = {"embedx_dim": DIM, "embedx_threshold": 0.0}
    table |= {part: {"learning_rate": rate, "initial_g2sum": 1.0} for part in ("embed", "embedx")}
    data = {"train_files": files, "batch_size": 128, "files_per_pass": 1, "key_space": "per_slot"}
    model = {"type": "deepfm", "hidden": [HIDDEN], "use_cvm": False, "dense_scale": "none"}
    optimizer = {"type": "adam", "learning_rate": 0.005, "averaging": 0.0}
    sections = {"table": table, "data": data, "model": model, "optimizer": optimizer, **sections}
    return write_config(folder, **sections)


def store(*arguments: object) -> int:
    return store_main([str(argument) for argument in arguments])


def digest_in(run: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert store("digest", run) == 0
    return capsys.readouterr().out.splitlines()[1:]


def test_a_new_run_has_the_digest_of_the_exported_one_and_trains_on_as_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / f"{number}.csv") for number in range(2)]
    for number, file in enumerate(files):
        deepfm_torch.write_data(Path(file), 2000, number)
    first = write_run(tmp_path, files[:1])
    train(first, tmp_path / "run")
    for part_format in ("parquet", "safetensors", "npz", "text"):
        to, new = tmp_path / part_format, tmp_path / f"new-{part_format}"
        assert (
            store("export", tmp_path / "run", "--to", to, "--format", part_format, "--state") == 0
        )
        assert store("import", new, to, "-c", first) == 0
        assert digest_in(new, capsys) == digest_in(tmp_path / "run", capsys)
    with pytest.raises(StoreError, match="holds a run already"):
        into_new(load_config(first), tmp_path / "run", open_rows(str(to)))
    second = write_run(tmp_path, files[1:])
    train(second, tmp_path / "new-text")
    train(second, tmp_path / "warm", source=str(tmp_path / "run"))
    assert digest_in(tmp_path / "new-text", capsys) == digest_in(tmp_path / "warm", capsys)


def test_a_new_run_keeps_the_imported_rows_and_the_inputs_of_their_network(tmp_path: Path) -> None:
    for number in range(2):
        deepfm_torch.write_data(tmp_path / f"{number}.csv", 2000, number)
    write_slots(tmp_path, click="label", x="dense", **dict.fromkeys(SLOTS, "sparse"))

    def write(file: str, values: Any = "auto", **model: Any) -> Path:
        data = {"train_files": [str(tmp_path / file)], "exact_values": values}
        model = {"type": "deepfm", "hidden": [HIDDEN], **model}
        return write_config(tmp_path, table={"embedx_dim": DIM}, data=data, model=model)

    train(write("0.csv", {"x": [0.0]}), tmp_path / "run")
    assert store("export", tmp_path / "run", "--to", tmp_path / "out", "--state") == 0
    assert store("import", tmp_path / "new", tmp_path / "out", "-c", write("1.csv")) == 0
    first, new = (open_run(tmp_path / name).config for name in ("run", "new"))
    assert (first.trainer.epochs, first.trainer.reset_rows) == (2, True)
    assert (new.trainer.epochs, new.trainer.reset_rows) == (1, False)  # new rows would erase these
    assert first.model.edges
    assert new.model == first.model
    assert new.data.exact_values == {"x": (0.0,)}

    other = write("1.csv", dense_scale=[[0.5, 2.0]])
    with pytest.raises(ConfigError, match=r"dense parameters need model\.dense_scale \[\[0\.5001"):
        into_new(load_config(other), tmp_path / "other", open_rows(str(tmp_path / "out")))
    none = write("1.csv", {})
    with pytest.raises(ConfigError, match=r"need data\.exact_values \{.x.: \[0\.0\]\}, found \{\}"):
        into_new(load_config(none), tmp_path / "other", open_rows(str(tmp_path / "out")))


@pytest.mark.parametrize("tables", ["torch", "fbgemm"])
def test_a_deepfm_of_pytorch_predicts_the_same_and_trains_on(tmp_path: Path, tables: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make bench-setup")
    fbgemm = tables == "fbgemm"
    if fbgemm:
        pytest.importorskip("fbgemm_gpu", reason="FBGEMM is not installed: make bench-setup")
    data = [deepfm_torch.write_data(tmp_path / f"{n}.csv", 10_000, n) for n in range(4)]
    model = deepfm_torch.make_model(fbgemm=fbgemm)
    deepfm_torch.fit(model, *data[0])
    deepfm_torch.fit(model, *data[1])
    torch.save(model.state_dict(), tmp_path / "model.pt")
    rows: list[dict[str, Any]] = []
    for at, slot in enumerate(SLOTS):
        columns = {"embed_w": f"w.{at}.weight", "embedx_w": f"v.{at}.weight"}
        if fbgemm:
            columns = {"embed_w": "weights[:, 0]", "embedx_w": f"weights[:, 1:{1 + DIM}]"}
        rows.append({"file": "model.pt", "slot": slot, "columns": columns})
        if fbgemm:
            rows[-1]["fbgemm"] = {"prefix": "tables.", "table": at}
    layers = {"linear_0": "mlp.0", "linear_1": "mlp.2", "linear_2": "linear"}
    dense: dict[str, Any] = {}
    for own, theirs in layers.items():
        dense[f"{own}.w_0"] = {"array": f"{theirs}.weight", "transpose": True}
        dense[f"{own}.b_0"] = f"{theirs}.bias"
    mapping = {"rows": rows, "dense": {"file": "model.pt", "parameters": dense}}
    (tmp_path / "mapping.yaml").write_text(yaml.safe_dump(mapping))
    # With the dense rate of the peer. The rows of FBGEMM have made larger steps than those of Adam.
    optimizer = {"type": "adam", "learning_rate": 0.01, "averaging": 0.0}
    rate = 0.12 if fbgemm else 0.05
    config = write_run(tmp_path, [str(tmp_path / "2.csv")], rate, optimizer=optimizer)
    assert store("import", tmp_path / "run", tmp_path / "mapping.yaml", "-c", config) == 0

    ids, x, labels = data[3]
    frame = pd.DataFrame({"x": x[:, 0], **{slot: ids[:, at] for at, slot in enumerate(SLOTS)}})
    run = open_run(tmp_path / "run")
    expected, ours = deepfm_torch.predict(model, ids, x), run.predict(frame)
    assert len(ours) == 10_000
    assert np.abs(ours - expected).max() < 1e-6

    deepfm_torch.fit(model, *data[2])
    train(config, tmp_path / "run")
    trained = auc(labels, open_run(tmp_path / "run").predict(frame))
    assert trained >= auc(labels, deepfm_torch.predict(model, ids, x))
    assert sum(IDS) == 624


def test_several_tables_are_imported_as_one_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deepfm_torch.write_data(tmp_path / "0.csv", 2000, 0)
    of_table = {"embedx_dim": 4, "embedx_threshold": 0.0}
    more: dict[str, Any] = {
        "extra_tables": {"wide": of_table},
        "model": {"type": "dnn", "hidden": [8]},
    }
    config = write_run(tmp_path, [str(tmp_path / "0.csv")], **more)
    sparse: dict[str, Any] = {**dict.fromkeys(SLOTS, "sparse"), "hour": {"table": "wide"}}
    write_slots(tmp_path, click="label", x="dense", **sparse)
    train(config, tmp_path / "run")
    to = tmp_path / "out"
    assert store("export", tmp_path / "run", "--to", to, "--state", "--format", "safetensors") == 0
    assert (to / "tables/wide/rows/part-00000.safetensors").is_file()
    assert store("import", tmp_path / "new", to, "-c", config) == 0
    assert digest_in(tmp_path / "new", capsys) == digest_in(tmp_path / "run", capsys)
    before = tables_of(tmp_path / "new")
    assert store("import", tmp_path / "new", to) == 0
    assert tables_of(tmp_path / "new") == {name: number + 1 for name, number in before.items()}
    assert digest_in(tmp_path / "new", capsys) == digest_in(tmp_path / "run", capsys)


def tables_of(run: Path) -> dict[str, int]:
    """The versions of all tables in the newest commit."""
    record = record_of(run)
    assert record is not None
    return {"": record.version, **record.tables}


def test_a_killed_export_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    deepfm_torch.write_data(tmp_path / "0.csv", 2000, 0)
    train(write_run(tmp_path, [str(tmp_path / "0.csv")]), tmp_path / "run")
    arguments = (tmp_path / "run", "--part-rows", 2, "--to")
    assert tool("store", "export", *arguments, tmp_path / "whole").returncode == 0
    killed = tmp_path / "killed"
    for parts in (5, 25):  # of more than 200, so that it is not done before it is killed
        process = start_tool("store", "export", *arguments, killed)
        deadline = time.monotonic() + PATIENCE_S
        while len(list(killed.glob("rows/*.parquet"))) < parts:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.wait()
        assert not (killed / "export.json").exists()
    assert tool("store", "export", *arguments, killed).returncode == 0
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").glob("*/*.parquet")}
    assert len(whole) > 200
    assert {path.name: path.read_bytes() for path in killed.glob("*/*.parquet")} == whole


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(labels, scores))
