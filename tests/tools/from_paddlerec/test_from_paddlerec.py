"""`paddlebox from-paddlerec`: what becomes of configs, of the forms of files, and of bad input."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddlebox.config import Config, Slots, load_config, load_slots
from tests.conftest import tool
from tests.support.marks import long

DNN = """runner:
  train_data_dir: "data"
  train_reader_path: "criteo_reader" # importlib format
  use_gpu: False
  train_batch_size: 2
  epochs: 3
  print_interval: 2
  test_data_dir: "data"
hyper_parameters:
  optimizer:
    class: Adam
    learning_rate: 0.001
  sparse_inputs_slots: 4
  sparse_feature_number: 1000001
  sparse_feature_dim: 9
  dense_input_dim: 2
  fc_sizes: [16, 8]
  something_new: 7
"""


def slot_value(draw: random.Random) -> str:
    dense = " ".join(f"dense_feature:{draw.random():.3f}" for _ in range(2))
    sparse = " ".join(f"{slot}:{draw.randrange(1, 9)}" for slot in (1, 2, 3))
    return f"click:{draw.randrange(2)} {dense} {sparse}"


def value_slot(draw: random.Random) -> str:
    tokens = [f"{draw.getrandbits(64)}:{slot}" for slot in (2, 3, 3, 5)]
    return " ".join([f"{draw.randrange(2)}:1", *tokens])


def din(draw: random.Random) -> str:
    count = draw.randrange(1, 5)
    items = [" ".join(str(draw.randrange(1, 90)) for _ in range(count)) for _ in range(2)]
    return (
        f"{items[0]};{items[1]};{draw.randrange(1, 90)};{draw.randrange(1, 9)};{draw.randrange(2)}"
    )


def bst(draw: random.Random) -> str:
    count = draw.randrange(1, 5)
    lists = " ".join(
        f"{name}:{draw.randrange(1, 60)}"
        for name in ("history", "cate", "position")
        for _ in range(count)
    )
    target = f"target:{draw.randrange(1, 60)} target_cate:5 target_position:0"
    return f"userid:{draw.randrange(1, 9)} {lists} {target} label:{draw.randrange(2)}"


def esmm(draw: random.Random) -> str:
    slots = ",".join(f"{slot}:{draw.randrange(1, 60)}" for slot in (101, 205, 205, "109_14"))
    return f"{draw.randrange(99)},{draw.randrange(2)},{draw.randrange(2)},{slots}"


def census(draw: random.Random) -> str:
    return ",".join([*(str(draw.randrange(2)) for _ in range(2)), "0.25", "1", "0", "0.0"])


FORMS: dict[str, tuple[Callable[[random.Random], str], str]] = {
    "dnn": (slot_value, "criteo_reader"),
    "slot_dnn": (value_slot, "reader"),
    "din": (din, "dinReader"),
    "bst": (bst, "bst_reader"),
    "esmm": (esmm, "esmm_reader"),
    "mmoe": (census, "census_reader"),
}


def write(folder: Path, config: str, line: Callable[[random.Random], str] = slot_value) -> Path:
    """PaddleRec's folder of a model."""
    (folder / "data").mkdir(parents=True)
    draw = random.Random(1)
    (folder / "data" / "part-0").write_text("".join(f"{line(draw)}\n" for _ in range(40)))
    (folder / "data" / "_SUCCESS").write_text("")
    (folder / "config.yaml").write_text(config)
    return folder / "config.yaml"


def convert(config: Path, out: Path, *more: Any) -> tuple[Config, Slots, str]:
    done = tool("from-paddlerec", config, "--out", out, *more)
    assert done.returncode == 0, done.stderr
    slots = load_slots(out / "slots.yaml")
    return load_config(out / "config.yaml"), slots, (out / "conversion.txt").read_text()


def refused(config: Path, out: Path, *more: Any) -> str:
    """The one error."""
    done = tool("from-paddlerec", config, "--out", out, *more)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (out / "config.yaml").exists()
    return done.stderr


def test_every_key_is_reported_with_its_line_and_what_it_became(tmp_path: Path) -> None:
    config, slots, said = convert(write(tmp_path / "dnn", DNN), tmp_path / "out")
    lines = {line.split(":")[0].split()[1]: line for line in said.splitlines() if "runner." in line}
    assert len([line for line in said.splitlines() if " → " in line or "✗" in line]) == 15
    assert lines["runner.epochs"].strip() == "6  runner.epochs: 3  → trainer.epochs: 3"
    assert "✗ not carried over: training uses the CPU" in lines["runner.use_gpu"]
    assert "hyper_parameters.something_new: 7  ✗ not carried over: model.type" in said
    assert config.data.batch_size == 2
    assert config.trainer.epochs == 3
    assert config.table.embedx_dim == 8  # and embed_w: nine floats for the network, as there
    assert config.table.embed.rule == config.table.embedx.rule == "adam"
    assert config.model.model_dump()["hidden"] == (16, 8)
    assert [slot.name for slot in slots.sparse] == ["1", "2", "3"]
    assert slots.dense_width == 2


@pytest.mark.slow  # a process that imports Paddle for each
@pytest.mark.parametrize("model", [m if m in ("dnn", "din") else long(m) for m in FORMS])
def test_the_files_of_a_known_reader_are_trained_on(tmp_path: Path, model: str) -> None:
    line, reader = FORMS[model]
    text = f"""runner: {{train_data_dir: data, train_reader_path: {reader}, train_batch_size: 8, \
epochs: 2}}
hyper_parameters: {{optimizer: {{class: SGD, learning_rate: 0.01}}}}
"""
    out = tmp_path / "out"
    config, _, _ = convert(write(tmp_path / model, text, line), out)
    assert config.data.max_bad_line_ratio < 1 / 40  # so no line was malformed
    run = ("-c", out / "config.yaml", "--run-dir", tmp_path / "run")
    done = tool("train", *run, "-o", "model.hidden=[8]")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(one)["samples"] for one in lines] == [40, 40]
    assert json.loads(lines[0])["bad_lines"] == 0


def test_ids_of_several_tables_there_are_several_rows_here(tmp_path: Path) -> None:
    """An item and a category of one number are two things."""
    out = tmp_path / "out"
    text = "runner: {train_data_dir: data}\nhyper_parameters: {act: sigmoid}\n"
    config, slots, _ = convert(write(tmp_path / "din", text, din), out)
    assert config.data.key_space == "per_slot"
    assert [slot.shares for slot in slots.sparse] == ["item", "cate", None, None]
    assert not config.security.allow_commands  # no command rewrites the files
    assert config.model.sequences == ("history", "history_cate")
    assert slots.positions(config.model.sequences) == (4, 4, 1, 1)


def test_an_accessor_of_the_parameter_server_is_carried(tmp_path: Path) -> None:
    text = """runner: {train_data_dir: data}
hyper_parameters: {optimizer: {class: Adam, learning_rate: 0.001}}
table_parameters:
  embedding:
    shard_num: 10
    accessor:
      embedx_threshold: 5
      embed_sgd_param:
        name: "SparseAdaGradSGDRule"
        adagrad: {learning_rate: 0.07, initial_range: 0.0001, weight_bounds: [-5.0, 5.0]}
        adam: {learning_rate: 0.5}
      ctr_accessor_param: {click_coeff: 2, delete_threshold: 0.5, ssd_unseenday_threshold: 1}
"""
    config, _, said = convert(write(tmp_path / "slot_dnn", text, value_slot), tmp_path / "out")
    table = config.table
    assert (table.embedx_threshold, table.life.delete_threshold) == (5, 0.5)
    assert (table.embed.rule, table.embed.learning_rate) == ("adagrad", 0.07)
    assert "weight_bounds: [-5.0, 5.0]  ✗ not carried over: weights stay within -10 and 10" in said
    assert table.embedx.rule == "adagrad"  # the default: the optimizer is the dense part's
    assert "adam.learning_rate: 0.5  ✗ not carried over: for another rule than the one" in said


def test_full_matrices_of_dcn_v2_stay_full_in_any_order_of_keys(tmp_path: Path) -> None:
    text = """runner: {train_data_dir: data}
hyper_parameters: {use_low_rank_mixture: False, low_rank: 32, num_experts: 4, cross_num: 2}
"""
    config, _, _ = convert(write(tmp_path / "dcn_v2", text), tmp_path / "out")
    model = config.model.model_dump()
    assert (model["low_rank"], model["experts"], model["layers"]) == (0, 1, 2)


READER = """
import numpy as np
class RecDataset:
    def __init__(self, file_list, config):
        self.lines = [line for path in file_list for line in open(path)]
        self.base = config["hyper_parameters.base"]
    def __iter__(self):
        for line in self.lines:
            label, ids, value = line.strip().split("|")
            yield [np.array([int(i) + self.base for i in ids.split()]),
                   np.array([float(value)] * 2, "float32"), np.array(int(label))]
"""


def own_reader(tmp_path: Path) -> Path:
    text = """runner: {train_data_dir: data, train_reader_path: my_reader, train_batch_size: 8}
hyper_parameters: {base: 100}
"""
    config = write(tmp_path / "dnn", text, lambda draw: f"{draw.randrange(2)}|7 8|0.5")
    (tmp_path / "dnn" / "my_reader.py").write_text(READER)
    return config


def test_the_code_of_a_reader_runs_only_where_commands_may(tmp_path: Path) -> None:
    says = refused(own_reader(tmp_path), tmp_path / "out")
    assert "my_reader.py can run as a parser plugin" in says
    assert "--allow-commands" in says


@pytest.mark.slow
def test_a_custom_reader_runs_as_a_parser_plugin(tmp_path: Path) -> None:
    out = tmp_path / "out"
    config, slots, _ = convert(own_reader(tmp_path), out, "--allow-commands", "--label", "2")
    assert config.data.parser == f"{out}/parser.py:parse"
    assert [(slot.name, slot.type.value, slot.dim) for slot in slots.slots] == [
        ("column_0", "sparse", 1), ("column_1", "dense", 2), ("label", "label", 1)
    ]  # fmt: skip
    run = tmp_path / "run"
    done = tool("train", "-c", out / "config.yaml", "--run-dir", run, "-o", "model.hidden=[8]")
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "metrics.jsonl").read_text())["samples"] == 40
    found = tool("store", "lookup", run, "107")
    assert "show" in found.stdout, found.stdout + found.stderr


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("workspace: x\nrunner:\n  - name: a\n", "PaddleRec 1 (workspace)"),
        ("runner: {train_data_dir: data}\n", "has no section 'hyper_parameters'"),
        ("hyper_parameters: {a: 1}\n", "has no section 'runner'"),
        ("runner: {epochs: 1}\nhyper_parameters: {a: 1}\n", "has no runner.train_data_dir"),
        ("runner: {train_data_dir: no}\nhyper_parameters: {a: 1}\n", "no such file"),
        ("name: x\nmodel: {type: dnn}\ntrainer: {epochs: 1}\n", "already a config of this project"),
        (DNN.replace("fc_sizes: [16, 8]", "fc_sizes: [a]"), "model.hidden"),
        (DNN.replace("epochs: 3", "epochs: 0"), "trainer.epochs"),
        ("runner: [\n", "config.yaml:"),
    ],
)
def test_a_config_that_cannot_be_carried_is_one_error(
    tmp_path: Path, config: str, says: str
) -> None:
    assert says in refused(write(tmp_path / "dnn", config), tmp_path / "out")


def test_a_model_that_the_zoo_lacks_is_one_error(tmp_path: Path) -> None:
    config = write(tmp_path / "deepfmm", DNN)
    says = refused(config, tmp_path / "out")
    assert "'deepfmm', is not a model of PaddleRec that the zoo has; did you mean 'deepfm'" in says
    assert "paddlebox new-model" in says
    convert(config, tmp_path / "out", "--model", "deepfm")


@pytest.mark.parametrize(
    ("model", "line", "says"),
    [
        ("din", slot_value, "model din reads histories, but the data has none"),
        ("dnn", esmm, "the data has 2 labels, click, conversion, but model dnn has one output"),
        ("dnn", lambda _: "a:1 b:2", "no label click or label: name it with --label"),
        ("dnn", lambda _: "what is this", "the format of its lines is not known"),
    ],
)
def test_data_that_does_not_fit_the_model_is_one_error(
    tmp_path: Path, model: str, line: Callable[[random.Random], str], says: str
) -> None:
    text = "runner: {train_data_dir: data}\nhyper_parameters: {a: 1}\n"
    assert says in refused(write(tmp_path / model, text, line), tmp_path / "out")


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    config, out = write(tmp_path / "dnn", DNN), tmp_path / "out"
    convert(config, out)
    done = tool("from-paddlerec", config, "--out", out)
    assert done.returncode == 2
    assert "exists already; choose another --out" in done.stderr


@pytest.mark.slow
def test_paddlerecs_own_samples_are_read_without_a_malformed_line(
    real_data: Path, tmp_path: Path
) -> None:
    folders = {"dnn": "criteo_slot_dnn", "slot_dnn": "slot_dnn", "din": "din", "bst": "bst"}
    for model, folder in {**folders, "esmm": "esmm"}.items():
        data = real_data / "paddlerec_slots" / folder
        text = f"runner: {{train_data_dir: '{data}'}}\nhyper_parameters: {{fc_sizes: [8]}}\n"
        (tmp_path / model).mkdir()
        (tmp_path / model / "config.yaml").write_text(text)
        out = tmp_path / f"{model}-out"
        convert(tmp_path / model / "config.yaml", out)
        run = ("-c", out / "config.yaml", "--run-dir", tmp_path / f"{model}-run")
        done = tool("train", *run, "-o", "data.max_bad_line_ratio=0.0")
        assert done.returncode == 0, f"{model}: {done.stderr}"
