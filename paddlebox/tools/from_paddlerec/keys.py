"""What becomes of each key of PaddleRec's config.

Those that mean the same are in tables; what needs thought is a function. A key that is in neither
is said to be not carried: nothing is dropped without a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paddlebox.config import ModelType
from paddlebox.tools.from_paddlerec.data import Reading
from paddlebox.tools.from_paddlerec.source import MODELS, Key, Source

_RUN = "runner."
_HYPER = "hyper_parameters."

# PaddleRec's key: the key here, with the same value.
_SAME = {
    "runner.train_batch_size": "data.batch_size",
    "runner.epochs": "trainer.epochs",
    "runner.print_interval": "trainer.log_every_batches",
    "runner.seed": "seed",
    "hyper_parameters.optimizer.learning_rate": "optimizer.learning_rate",
    "hyper_parameters.optimizer.learning_rate_base_lr": "optimizer.learning_rate",
}
# Why a key is not carried, and what does its work.
_SAID = {
    "runner.infer_batch_size": "tools/evaluate.py takes data.batch_size",
    "runner.infer_load_path": "tools/evaluate.py takes RUN_DIR, and judges its newest commit",
    "runner.infer_start_epoch": "tools/evaluate.py judges the newest commit",
    "runner.infer_end_epoch": "tools/evaluate.py judges the newest commit",
    "runner.infer_reader_path": "test files are read as training files are",
    "runner.model_save_path": "--run-dir names the folder; every pass is committed there",
    "runner.model_init_path": "PaddleRec's files are not read; --init-from takes a run of this "
    "project",
    "runner.warmup_model_path": "PaddleRec's files are not read; --init-from takes a run of this "
    "project",
    "runner.use_gpu": "training is on the CPU unless hbm.place says gpu (docs/gpu.md)",
    "runner.use_xpu": "training is on the CPU unless hbm.place says gpu (docs/gpu.md)",
    "runner.use_npu": "training is on the CPU unless hbm.place says gpu (docs/gpu.md)",
    "runner.use_auc": "the AUC is always measured",
    "runner.use_visual": "tools/report.py shows a run; trainer.visualdl writes scalars",
    "runner.use_fleet": "several processes: python -m paddle.distributed.launch (docs/ranks.md)",
    "runner.fleet_mode": "there is no parameter server; ranks train in step (docs/ranks.md)",
    "runner.sync_mode": "ranks train in step; ranks.sparse_sync: async does not wait "
    "(docs/ranks.md)",
    "runner.geo_step": "ranks train in step; ranks.sparse_sync: async does not wait "
    "(docs/ranks.md)",
    "runner.thread_num": "threads are tuned by what waits: data.threads, trainer.dense_threads",
    "runner.num_workers": "threads are tuned by what waits: data.threads",
    "runner.reader_type": "there is one kind of dataset, by passes: data.files_per_pass",
    "runner.split_file_list": "ranks share the files of a pass out by themselves",
    "runner.use_inference": "tools/export.py makes a file for the predictor (docs/serving.md)",
    "runner.need_dump": "tools/evaluate.py --dump writes predictions",
    "runner.dump_fields": "tools/evaluate.py --dump-slots names columns",
    "runner.need_train_dump": "tools/evaluate.py --dump writes predictions",
    "hyper_parameters.sparse_feature_number": "rows are made when a feasign is first seen",
    "hyper_parameters.feature_size": "rows are made when a feasign is first seen",
    "hyper_parameters.vocab_size": "rows are made when a feasign is first seen",
    "hyper_parameters.item_count": "rows are made when a feasign is first seen",
    "hyper_parameters.cat_count": "rows are made when a feasign is first seen",
    "hyper_parameters.user_count": "rows are made when a feasign is first seen",
    "hyper_parameters.position_count": "rows are made when a feasign is first seen",
    "hyper_parameters.cat_emb_size": "all rows of a table have one width, table.embedx_dim",
    "hyper_parameters.position_emb_size": "all rows of a table have one width, table.embedx_dim",
    "hyper_parameters.distributed_embedding": "rows are always shared out over the ranks",
    "hyper_parameters.is_sparse": "rows are always updated one by one",
    "hyper_parameters.use_DataLoader": "the feeder takes its place",
    "hyper_parameters.optimizer.strategy": "there is no parameter server; ranks train in step",
    "hyper_parameters.gate_num": "a gate for each label of slots.yaml",
    "hyper_parameters.task_num": "a task for each label of slots.yaml",
    "hyper_parameters.num_field": "slots.yaml names the slots",
    "hyper_parameters.max_len": "max_length of a slot in slots.yaml cuts it",
}
_SAID_LIKE = (
    (r"runner\.save_inference_.*", "tools/export.py makes a file for the predictor"),
    (r".*clip_by_norm", "gradients are not clipped by their norm"),
    (r".*(reg|l2)(_.*)?", "rows have no L2 penalty but FTRL's; optimizer.weight_decay is the dense "
     "part's"),
    (r"table_parameters\..*\.(table_class|shard_num|accessor_class|enable_sparse_table_cache|"
     r"sparse_table_cache_.*)", "the store has tiers and shards of its own"),
    (r"table_parameters\..*ssd_unseenday_threshold", "what lies on SSD follows from "
     "mem.budget_bytes"),
)  # fmt: skip
# By model: PaddleRec's hyper parameter, and the key of `model`.
_HIDDEN = {"fc_sizes": "hidden"}
_TOWERS = {"tower_size": "tower", "expert_size": "hidden", "bottom_size": "hidden"}
_OF_MODEL = {
    "dcn": _HIDDEN | {"cross_num": "cross_layers"},
    "dcn_v2": _HIDDEN
    | {"cross_num": "cross_layers", "low_rank": "low_rank", "num_experts": "cross_experts"},
    "xdeepfm": _HIDDEN | {"layer_sizes_cin": "cin", "layer_sizes_dnn": "hidden"},
    "gatenet": _HIDDEN | {"use_hidden_gate": "hidden_gates"},
    "din": _HIDDEN | {"act": "activation"},
    "bst": _HIDDEN
    | {"n_encoder_layers": "blocks", "n_head": "heads", "d_key": "head_dim",
       "dropout_rate": "dropout"},
    "mmoe": _TOWERS | {"expert_num": "mixed_experts"},
    "ple": _TOWERS
    | {"exp_per_task": "task_experts", "shared_num": "shared_experts", "level_number": "levels"},
    "share_bottom": _TOWERS,
    "esmm": _HIDDEN | {"ctr_fc_sizes": "hidden"},
    "fm": {},
    "logistic_regression": {},
}  # fmt: skip
# Models whose network reads all of a row, embed_w too: of PaddleRec's width that is the first.
_WHOLE_ROW = {
    *("dnn", "dcn", "dcn_v2", "gatenet", "din", "dien", "bst"),
    *("shared_bottom", "mmoe", "ple", "esmm", "aitm"),
}
_OPTIMIZERS = {"adam": "adam", "sgd": "sgd", "adagrad": "adagrad"}
_RULE_OF_OPTIMIZER = {"adam": "adam", "sgd": "naive", "adagrad": "std_adagrad"}
_RULES = {
    "SparseNaiveSGDRule": ("naive", "naive"),
    "SparseAdaGradSGDRule": ("adagrad", "adagrad"),
    "StdAdaGradSGDRule": ("std_adagrad", "adagrad"),
    "SparseAdamSGDRule": ("adam", "adam"),
    "SparseSharedAdamSGDRule": ("shared_adam", "adam"),
}
# Of PaddleRec's own models: they do no more than the form of their files says.
_READERS = {
    *("criteo_reader", "queuedataset_reader", "inmemory_reader", "reader"),
    *("dinReader", "din_reader", "bst_reader", "esmm_reader", "census_reader"),
}
_LIFE = (
    *("base_threshold", "delta_threshold", "delta_keep_days", "show_click_decay_rate"),
    *("delete_threshold", "delete_after_unseen_days"),
)


@dataclass(frozen=True)
class Said:
    key: Key
    became: str  # "data.batch_size: 2", or empty
    why: str = ""

    def __str__(self) -> str:
        what = f"{self.became}{' ' if self.became and self.why else ''}"
        why = f"({self.why})" if self.became and self.why else self.why
        carried = "→" if self.became else "✗ not carried:"
        return f"{self.key.line:4}  {self.key.name}: {self.key.value}  {carried} {what}{why}"


@dataclass
class Conversion:
    """A config that grows key by key."""

    source: Source
    reading: Reading
    train: str  # the folder of the training files, as it is to stand in the config
    test: str  # the same, or empty
    config: dict[str, Any] = field(default_factory=dict)
    said: list[Said] = field(default_factory=list)

    @property
    def type(self) -> str:
        return MODELS[self.source.model]

    def put(self, path: str, value: Any) -> str:
        *above, last = path.split(".")
        section = self.config
        for name in above:
            section = section.setdefault(name, {})
        section[last] = value
        return f"{path}: {_shown(value)}"

    def get(self, path: str) -> Any:
        found: Any = self.config
        for name in path.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        return found


def convert(source: Source, reading: Reading, name: str, train: str, test: str) -> Conversion:
    """The config, without the path of slots.yaml, and a line for each key."""
    made = Conversion(source, reading, train, test)
    made.put("name", name)
    made.put("table.embedx_dim", 8)
    made.put("table.embedx_threshold", 0.0)
    made.put("table.embedx.initial_range", 0.03)
    made.put("data.format", reading.format)
    made.put("data.key_space", reading.key_space)
    made.put("data.train_files", [train])
    if test:
        made.put("data.test_files", [test])
    for path, value in (("pipe_command", reading.pipe_command), ("parser", reading.parser)):
        if value:
            made.put(f"data.{path}", value)
            made.put("security.allow_commands", True)
    made.put("model.type", made.type)
    if made.type not in (ModelType.LR, ModelType.FM):
        made.put("model.use_cvm", source.model == "slot_dnn")
    if made.type in (ModelType.DIN, ModelType.DIEN, ModelType.BST):
        made.put("model.history", dict(reading.history))
    for key in source.keys:
        made.said.append(_said(made, key))
    return made


def _said(made: Conversion, key: Key) -> Said:
    name = key.name
    if name in _SAME:
        return Said(key, made.put(_SAME[name], key.value))
    for pattern, function in _FUNCTIONS:
        if match := re.fullmatch(pattern, name):
            return function(made, key, match)
    short = name.removeprefix(_HYPER)
    of_model = _OF_MODEL.get(made.source.model, _HIDDEN)
    mixed = made.source.get(f"{_HYPER}use_low_rank_mixture", True)
    if made.source.model == "dcn_v2" and short in ("low_rank", "num_experts") and not mixed:
        return Said(key, "", "of the low-rank mixture, which use_low_rank_mixture switches off")
    if name.startswith(_HYPER) and short in of_model:
        value = key.value
        if of_model[short] in ("hidden", "tower") and not isinstance(value, list):
            value = [value]
        return Said(key, made.put(f"model.{of_model[short]}", value))
    why = _SAID.get(name) or next(
        (why for pattern, why in _SAID_LIKE if re.fullmatch(pattern, name)), ""
    )
    if not why and name.startswith(_HYPER):
        why = f"nothing here that model.type {made.type} could be told; docs/config.md has its keys"
    return Said(key, "", why or "not known to this tool; docs/config.md has all keys")


def _rules_of_rows(source: Source) -> bool:
    """Whether the config says itself how rows learn."""
    of_tables = any(re.search(r"_sgd_param\.name$", key.name) for key in source.keys)
    return of_tables or source.model == "slot_dnn"


def _folder(made: Conversion, key: Key, match: re.Match[str]) -> Said:
    if match[1] == "train":
        return Said(key, f"data.train_files: [{made.train}]")
    if made.test:
        return Said(key, f"data.test_files: [{made.test}]")
    return Said(key, "", "no such folder; name it with --test-data, or set data.test_files")


def _reader(made: Conversion, key: Key, _: re.Match[str]) -> Said:
    reading = made.reading
    if reading.parser:
        return Said(key, f"data.parser: {reading.parser}, and slots.yaml", reading.what)
    what = reading.what
    if str(key.value).removesuffix(".py") not in _READERS:
        what += "; what else this reader does is left out: --reader runs it as it is"
    return Said(key, f"data.format: {reading.format}, and slots.yaml", what)


def _pipe(made: Conversion, key: Key, _: re.Match[str]) -> Said:
    done = f"{made.reading.what}, which are read without it"
    return Said(key, "", f"runs a reader for every line; {done}")


def _optimizer(made: Conversion, key: Key, _: re.Match[str]) -> Said:
    kind = _OPTIMIZERS.get(str(key.value).lower())
    if kind is None:
        return Said(key, "", f"there are {', '.join(_OPTIMIZERS)}; adam, the default, takes its "
                    "place")  # fmt: skip
    became = made.put("optimizer.type", kind)
    if _rules_of_rows(made.source):
        return Said(key, became, "of the dense part; rows have rules of their own")
    rate = made.source.get(f"{_HYPER}optimizer.learning_rate") or made.source.get(
        f"{_HYPER}optimizer.learning_rate_base_lr"
    )
    for part in ("embed", "embedx"):
        made.put(f"table.{part}.rule", _RULE_OF_OPTIMIZER[kind])
        if rate is not None:
            made.put(f"table.{part}.learning_rate", rate)
    rule = _RULE_OF_OPTIMIZER[kind]
    became += f", table.embed.rule and table.embedx.rule: {rule}, with its learning_rate"
    return Said(key, became, "PaddleRec's embeddings learn by the same optimizer")


def _width(made: Conversion, key: Key, _: re.Match[str]) -> Said:
    if not isinstance(key.value, int) or key.value < 1:
        return Said(key, "", "expected a width, 1 or more; table.embedx_dim 8 takes its place")
    if made.type in _WHOLE_ROW and key.value > 1:
        became = made.put("table.embedx_dim", key.value - 1)
        return Said(key, became, "and embed_w, which a row has beside embedx")
    return Said(key, made.put("table.embedx_dim", key.value))


def _dense_width(made: Conversion, key: Key, _: re.Match[str]) -> Said:
    found = made.reading.dense_width
    if key.value != found:
        return Said(key, f"{found} floats in slots.yaml", f"the data has them, not {key.value}")
    return Said(key, f"{found} floats in slots.yaml")


def _slots(made: Conversion, key: Key, _: re.Match[str]) -> Said:
    found = len(made.reading.sparse)
    became = f"{found} sparse slots in slots.yaml"
    if key.value in (found, found + 1):  # PaddleRec counts the label, or does not
        return Said(key, became)
    return Said(key, became, "as the data has them: add there what else is to be read")


def _low_rank(made: Conversion, key: Key, _: re.Match[str]) -> Said:
    if made.source.model != "dcn_v2":
        return Said(key, "", f"model.type {made.type} has no such thing")
    if key.value:
        return Said(key, "model.low_rank above 0")
    return Said(key, made.put("model.low_rank", 0), "full matrices")


def _accessor(made: Conversion, key: Key, match: re.Match[str]) -> Said:
    name = match[1]
    if name in ("nonclk_coeff", "click_coeff", "embedx_threshold"):
        return Said(key, made.put(f"table.{name}", key.value))
    if name == "embedx_dim":
        return Said(key, made.put("table.embedx_dim", key.value))
    return Said(key, made.put(f"table.life.{name}", key.value))


def _rule(made: Conversion, key: Key, match: re.Match[str]) -> Said:
    part, name = match[1], match[2]
    rule, block = _RULES.get(
        made.source.get(key.name[: match.end(1)] + "_sgd_param.name", ""), ("", "")
    )
    if name == "name":
        if not rule:
            return Said(key, "", f"there are {', '.join(_RULES)}; adagrad takes its place")
        return Said(key, made.put(f"table.{part}.rule", rule))
    used, _, value = name.partition(".")
    if used != block:
        return Said(key, "", f"of a rule that is not the one that {part}_sgd_param.name chooses")
    if value == "weight_bounds" and isinstance(key.value, list) and len(key.value) == 2:
        low = made.put(f"table.{part}.min_bound", key.value[0])
        return Said(key, f"{low}, " + made.put(f"table.{part}.max_bound", key.value[1]))
    if part == "embed" and value == "initial_range" and rule in ("adagrad", "std_adagrad"):
        return Said(key, "", "embed_w starts at 0 under an adagrad, as in Paddle's own tables")
    same = {"beta1_decay_rate": "beta1", "beta2_decay_rate": "beta2", "ada_epsilon": "epsilon"}
    known = {"learning_rate", "initial_range"} | (
        {"initial_g2sum"} if block == "adagrad" else set()
    )
    if value in same or value in known:
        return Said(key, made.put(f"table.{part}.{same.get(value, value)}", key.value))
    return Said(key, "", "not known to this tool; docs/config.md has all keys")


_Function = Callable[[Conversion, Key, "re.Match[str]"], Said]
_ACCESSOR = r"table_parameters\.[^.]+\.accessor\.(?:ctr_accessor_param\.)?"
_FUNCTIONS: tuple[tuple[str, _Function], ...] = (
    (r"runner\.(train|test)_data_dir", _folder),
    (r"runner\.(train)_reader_path", _reader),
    (r"runner\.pipe_command", _pipe),
    (r"hyper_parameters\.optimizer\.class", _optimizer),
    (
        r"hyper_parameters\.(sparse_feature_dim|embed_size|embedding_size|emb_dim|item_emb_size)",
        _width,
    ),
    (r"hyper_parameters\.(dense_input_dim|dense_feature_dim)", _dense_width),
    (r"hyper_parameters\.(sparse_inputs_slots|slot_num)", _slots),
    (r"hyper_parameters\.use_low_rank_mixture", _low_rank),
    (
        rf"{_ACCESSOR}(nonclk_coeff|click_coeff|embedx_threshold|embedx_dim|{'|'.join(_LIFE)})",
        _accessor,
    ),
    (r"table_parameters\.[^.]+\.accessor\.(embed|embedx)_sgd_param\.(.+)", _rule),
)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def name_of(source: Source) -> str:
    """Of the run: the model's, which a folder's name is made of."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", source.model)


def relative(path: Path) -> str:
    """As it is to stand in a config: from the folder that tools are run in, where that is above."""
    whole = path.resolve()
    here = Path.cwd().resolve()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(whole)
