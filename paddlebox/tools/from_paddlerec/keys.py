"""Reads a config.yaml of PaddleRec, and converts each of its keys.

Tables have a pattern of each known key, with a function, or the reason why it is not carried over.
Any other key is reported as not carried over, so that none is dropped silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from paddlebox.config import ModelType
from paddlebox.config.check import did_you_mean
from paddlebox.config.load import read_yaml
from paddlebox.errors import ConfigError
from paddlebox.tools.from_paddlerec.data import Reading

# Names of PaddleRec's folders -> types of the model zoo.
MODELS = {
    **{name: name for name in ("fm", "dnn", "wide_deep", "deepfm", "dcn", "dcn_v2", "xdeepfm")},
    **{name: name for name in ("autoint", "dlrm", "gatenet", "din", "dien", "bst", "mmoe", "ple")},
    **{name: name for name in ("esmm", "aitm")},
    "logistic_regression": "lr",
    "slot_dnn": "dnn",
    "share_bottom": "shared_bottom",
}
_OLD_KEYS = ("workspace", "dataset", "phase", "mode")  # only PaddleRec 1 has them


@dataclass(frozen=True)
class Key:
    line: int  # from 1
    name: str  # dotted, as PaddleRec names them: runner.epochs
    value: Any


@dataclass(frozen=True)
class Source:
    path: Path
    keys: tuple[Key, ...]
    model: str  # of PaddleRec

    def get(self, name: str, default: Any = None) -> Any:
        return next((key.value for key in self.keys if key.name == name), default)

    @property
    def folder(self) -> Path:
        """The folder to which relative paths in the config are relative."""
        return self.path.parent


def read_source(path: Path, model: str = "") -> Source:
    """Read a config. model: the model's name in PaddleRec; "": the folder that holds the config has
    this name. Raises: ConfigError if the file is not a config of PaddleRec 2, or if the zoo does
    not have the model."""
    values = read_yaml(path)
    old = [key for key in _OLD_KEYS if key in values]
    if old or isinstance(values.get("runner"), list):
        raise ConfigError(
            f"{path}: is a config of PaddleRec 1 ({', '.join(old) or 'runner is a list'}); "
            "expected one of PaddleRec 2, with the sections runner and hyper_parameters: put your "
            "values into the config.yaml that PaddleRec 2 has for the model"
        )
    if "trainer" in values and "model" in values:
        raise ConfigError(f"{path}: is already a config of this project (model, trainer)")
    for section in ("runner", "hyper_parameters"):
        inside = any(str(key).startswith(f"{section}.") for key in values)
        if not isinstance(values.get(section), dict) and not inside:
            raise ConfigError(
                f"{path}: has no section {section!r}, which every config.yaml of PaddleRec 2 has; "
                f"found {', '.join(map(str, values)) or 'nothing'}"
            )
    lines = dict(_lines(yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)))
    keys = tuple(Key(lines.get(name, 1), name, value) for name, value in _flat(values))
    return Source(path, keys, _model_of(path, model))


def _model_of(path: Path, named: str) -> str:
    model = named or path.resolve().parent.name
    if model in MODELS:
        return model
    where = f"--model {named!r}" if named else f"{path}: its folder, {model!r},"
    raise ConfigError(
        f"{where} is not a model of PaddleRec that the zoo has"
        + (did_you_mean([model], MODELS) or ".")
        + f" Choose a --model of {', '.join(MODELS)}; for another network write the layer with "
        "paddlebox new-model, and use --model dnn for the rest"
    )


def _flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _lines(node: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        yield f"{prefix}{key.value}", key.start_mark.line + 1
        yield from _lines(value, f"{prefix}{key.value}.")


#: Returns what a key became, or "", and a reason or remark.
_Function = Callable[["Conversion", "Key", "re.Match[str]"], tuple[str, str]]
_HYPER = "hyper_parameters."
_NO_MIXTURE = "for the low-rank mixture, which use_low_rank_mixture turns off"
_UNKNOWN = "not known to this tool; docs/config.md has all keys"

# Patterns of keys that are not carried over, and the reason, or what replaces them.
_REASONS = (
    (r"runner\.print_interval", "the progress bar is updated every 100 batches"),
    (r"runner\.infer_batch_size", "paddlebox evaluate uses data.batch_size"),
    (r"runner\.infer_load_path", "paddlebox evaluate RUN_DIR evaluates the newest commit of a run"),
    (r"runner\.infer_(start|end)_epoch", "paddlebox evaluate evaluates the newest commit"),
    (r"runner\.infer_reader_path", "test files are read like training files"),
    (r"runner\.model_save_path", "--run-dir names the folder; every pass is committed there"),
    (r"runner\.(model_init|warmup_model)_path", "PaddleRec's files cannot be read; --init-from "
     "starts from a run of this project"),
    (r"runner\.use_(gpu|xpu|npu)", "training uses the CPU unless hbm.place is gpu (docs/gpu.md)"),
    (r"runner\.use_auc", "the AUC is always measured"),
    (r"runner\.use_visual", "paddlebox report shows a run"),
    (r"runner\.use_fleet", "for several processes use python -m paddle.distributed.launch "
     "(docs/ranks.md)"),
    (r"runner\.fleet_mode", "there is no parameter server; ranks train in step (docs/ranks.md)"),
    (r"runner\.(sync_mode|geo_step)", "ranks train in step; with ranks.staleness: 1 they do "
     "not wait for each other (docs/ranks.md)"),
    (r"runner\.thread_num", "data.threads 0 chooses threads while running; see also "
     "trainer.dense_threads"),
    (r"runner\.num_workers", "data.threads 0 chooses threads while running"),
    (r"runner\.reader_type", "all datasets are read pass by pass; see data.files_per_pass"),
    (r"runner\.split_file_list", "ranks divide the files of a pass among themselves"),
    (r"runner\.(use_inference|save_inference_.*)", "paddlebox export writes a file for the "
     "predictor (docs/serving.md)"),
    (r"runner\.need_(train_)?dump", "paddlebox evaluate --dump writes predictions"),
    (r"runner\.dump_fields", "paddlebox evaluate --dump-slots names columns"),
    (r"hyper_parameters\.(sparse_feature_number|feature_size|vocab_size|(item|cat|user|position)"
     r"_count)", "a row is created when its feasign is first seen"),
    (r"hyper_parameters\.(cat|position)_emb_size", "all rows of a table have one width, "
     "table.embedx_dim"),
    (r"hyper_parameters\.distributed_embedding", "rows are always divided among the ranks"),
    (r"hyper_parameters\.is_sparse", "updates are always sparse"),
    (r"hyper_parameters\.use_DataLoader", "the feeder replaces it"),
    (r"hyper_parameters\.optimizer\.strategy", "there is no parameter server; ranks train in step"),
    (r"hyper_parameters\.gate_num", "each label of slots.yaml has a gate"),
    (r"hyper_parameters\.task_num", "each label of slots.yaml is a task"),
    (r"hyper_parameters\.num_field", "slots.yaml names the slots"),
    (r"hyper_parameters\.use_hidden_gate", "hidden layers always have gates"),
    (r"hyper_parameters\.max_len", "max_length of a slot in slots.yaml replaces it"),
    (r".*clip_by_norm", "gradients are not clipped by their norm"),
    (r".*(reg|l2)(_.*)?", "rows have no L2 penalty except with ftrl; optimizer.weight_decay is for "
     "the dense part"),
    (r"table_parameters\..*\.(table_class|shard_num|accessor_class|enable_sparse_table_cache|"
     r"sparse_table_cache_.*)", "the store has its own tiers and shards"),
    (r"table_parameters\..*click_coeff", "a show without a click scores 0.1, and a click 1"),
    (r"table_parameters\..*weight_bounds", "weights stay within -10 and 10"),
    (r"table_parameters\..*(beta[12]_decay_rate|ada_epsilon)", "Adam decays by 0.9 and 0.999, and "
     "adds 1e-8 to divisors"),
    (r"table_parameters\..*ssd_unseenday_threshold", "mem.budget_bytes decides which rows are on "
     "SSD"),
)  # fmt: skip
# For each model, PaddleRec's hyper parameters -> keys of `model`.
_HIDDEN = {"fc_sizes": "hidden"}
_TOWERS = {"tower_size": "tower", "expert_size": "hidden", "bottom_size": "hidden"}
_OF_MODEL = {
    "dcn": _HIDDEN | {"cross_num": "layers"},
    "dcn_v2": _HIDDEN
    | {"cross_num": "layers", "low_rank": "low_rank", "num_experts": "experts"},
    "xdeepfm": _HIDDEN | {"layer_sizes_cin": "cin", "layer_sizes_dnn": "hidden"},
    "din": _HIDDEN | {"act": "activation"},
    "bst": _HIDDEN
    | {"n_encoder_layers": "layers", "n_head": "heads", "d_key": "head_dim",
       "dropout_rate": "dropout"},
    "mmoe": _TOWERS | {"expert_num": "experts"},
    "ple": _TOWERS
    | {"exp_per_task": "task_experts", "shared_num": "experts", "level_number": "layers"},
    "share_bottom": _TOWERS,
    "esmm": _HIDDEN | {"ctr_fc_sizes": "hidden"},
    "fm": {},
    "logistic_regression": {},
}  # fmt: skip
# Models whose network reads all of a row, including embed_w. PaddleRec's width includes it.
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
# Readers of PaddleRec's own models. They only parse the format of their files.
_READERS = {
    *("criteo_reader", "queuedataset_reader", "inmemory_reader", "reader"),
    *("dinReader", "din_reader", "bst_reader", "esmm_reader", "census_reader"),
}
_LIFE = (
    *("base_threshold", "delta_threshold", "delta_keep_days", "show_click_decay_rate"),
    *("delete_threshold", "delete_after_unseen_days"),
)


@dataclass(frozen=True)
class Outcome:
    key: Key
    became: str  # "data.batch_size: 2", or empty
    why: str = ""

    def __str__(self) -> str:
        what = f"{self.became}{' ' if self.became and self.why else ''}"
        why = f"({self.why})" if self.became and self.why else self.why
        carried = "→" if self.became else "✗ not carried over:"
        return f"{self.key.line:4}  {self.key.name}: {self.key.value}  {carried} {what}{why}"


@dataclass
class Conversion:
    """The config under construction."""

    source: Source
    reading: Reading
    train: str  # the folder of the training files, as the config names it
    test: str  # the folder of the test files; "": none
    config: dict[str, Any] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

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
        value: Any = self.config
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value


def convert(source: Source, reading: Reading, train: str, test: str) -> Conversion:
    """Convert all keys. The config does not have the path of slots.yaml yet."""
    made = Conversion(source, reading, train, test)
    # A run is named by the model, with characters that a folder may have.
    made.config = {
        "name": re.sub(r"[^A-Za-z0-9_.-]", "_", source.model),
        "table": {
            "embedx_dim": 8, "embedx_threshold": 0.0, "embedx": {"initial_range": 0.03},
        },
        "data": {
            "format": reading.format, "key_space": reading.key_space, "train_files": [train],
        },
    }  # fmt: skip
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
        made.outcomes.append(_outcome(made, key))
    return made


def _outcome(made: Conversion, key: Key) -> Outcome:
    other = f"model.type {made.type} has no such key; docs/config.md has its keys"
    ends = ((r"(?s)hyper_parameters\..*", other), ("(?s).*", _UNKNOWN))
    rules = (*_CARRIED, *_of_model(made), *_REASONS, *ends)  # the first match counts
    found = ((re.fullmatch(pattern, key.name), rule) for pattern, rule in rules)
    match, rule = next((match, rule) for match, rule in found if match is not None)
    became, why = ("", rule) if isinstance(rule, str) else rule(made, key, match)
    return Outcome(key, became, why)


def _of_model(made: Conversion) -> Iterator[tuple[str, str | _Function]]:
    """The rules of the hyper parameters that only this model has."""
    model, mixed = made.source.model, made.source.get(f"{_HYPER}use_low_rank_mixture", True)
    for name, target in _OF_MODEL.get(model, _HIDDEN).items():
        unused = model == "dcn_v2" and target in ("low_rank", "experts") and not mixed
        yield re.escape(f"{_HYPER}{name}"), _NO_MIXTURE if unused else _to(f"model.{target}")


def _to(path: str) -> _Function:
    """The rule of a key that has a key here with the same value."""

    def put(made: Conversion, key: Key, _: re.Match[str]) -> tuple[str, str]:
        listed = path in ("model.hidden", "model.tower") and not isinstance(key.value, list)
        return made.put(path, [key.value] if listed else key.value), ""

    return put


def _rules_of_rows(source: Source) -> bool:
    """Whether the config sets the optimizer rules of rows."""
    of_tables = any(re.search(r"_sgd_param\.name$", key.name) for key in source.keys)
    return of_tables or source.model == "slot_dnn"


def _folder(made: Conversion, _: Key, match: re.Match[str]) -> tuple[str, str]:
    if match[1] == "train":
        return f"data.train_files: [{made.train}]", ""
    if made.test:
        return f"data.test_files: [{made.test}]", ""
    return "", "no such folder; name it with --test-data, or set data.test_files"


def _reader(made: Conversion, key: Key, _: re.Match[str]) -> tuple[str, str]:
    reading = made.reading
    if reading.parser:
        return f"data.parser: {reading.parser}, and slots.yaml", reading.what
    what = reading.what
    if str(key.value).removesuffix(".py") not in _READERS:
        what += "; other work of this reader is left out: --reader runs it unchanged"
    return f"data.format: {reading.format}, and slots.yaml", what


def _pipe(made: Conversion, *_: Any) -> tuple[str, str]:
    return "", f"runs a reader for every line; {made.reading.what} and need none"


def _optimizer(made: Conversion, key: Key, _: re.Match[str]) -> tuple[str, str]:
    kind = _OPTIMIZERS.get(str(key.value).lower())
    if kind is None:
        return "", f"there are {', '.join(_OPTIMIZERS)}; adam, the default, is used"
    became = made.put("optimizer.type", kind)
    if _rules_of_rows(made.source):
        return became, "for the dense part; rows have their own rules"
    rates = (f"{_HYPER}optimizer.learning_rate", f"{_HYPER}optimizer.learning_rate_base_lr")
    rate = made.source.get(rates[0]) or made.source.get(rates[1])
    rule = _RULE_OF_OPTIMIZER[kind]
    for part in ("embed", "embedx"):
        made.put(f"table.{part}.rule", rule)
        if rate is not None:
            made.put(f"table.{part}.learning_rate", rate)
    became += f", table.embed.rule and table.embedx.rule: {rule}, with its learning_rate"
    return became, "PaddleRec trains embeddings with the same optimizer"


def _width(made: Conversion, key: Key, _: re.Match[str]) -> tuple[str, str]:
    if not isinstance(key.value, int) or key.value < 1:
        return "", "expected a width of 1 or more; table.embedx_dim is 8"
    if made.type in _WHOLE_ROW and key.value > 1:
        became = made.put("table.embedx_dim", key.value - 1)
        return became, "a row also has embed_w"
    return made.put("table.embedx_dim", key.value), ""


def _dense_width(made: Conversion, key: Key, _: re.Match[str]) -> tuple[str, str]:
    width = made.reading.dense_width
    why = f"as in the data, not {key.value}" if key.value != width else ""
    return f"{width} floats in slots.yaml", why


def _slots(made: Conversion, key: Key, _: re.Match[str]) -> tuple[str, str]:
    count = len(made.reading.sparse)
    # Some of PaddleRec's models count the label.
    why = "" if key.value in (count, count + 1) else "as in the data; add others there"
    return f"{count} sparse slots in slots.yaml", why


def _low_rank(made: Conversion, key: Key, _: re.Match[str]) -> tuple[str, str]:
    if made.source.model != "dcn_v2":
        return "", f"model.type {made.type} has no low-rank mixture"
    if key.value:
        return "model.low_rank above 0", ""
    return made.put("model.low_rank", 0), "full matrices"


def _accessor(made: Conversion, key: Key, match: re.Match[str]) -> tuple[str, str]:
    section = "table.life" if match[1] in _LIFE else "table"
    return made.put(f"{section}.{match[1]}", key.value), ""


def _rule(made: Conversion, key: Key, match: re.Match[str]) -> tuple[str, str]:
    part, name = match[1], match[2]
    chosen = made.source.get(key.name[: match.end(1)] + "_sgd_param.name", "")
    rule, block = _RULES.get(chosen, ("", ""))
    if name == "name":
        if not rule:
            return "", f"there are {', '.join(_RULES)}; adagrad is used"
        return made.put(f"table.{part}.rule", rule), ""
    used, _, value = name.partition(".")
    if used != block:
        return "", f"for another rule than the one that {part}_sgd_param.name chooses"
    if part == "embed" and value == "initial_range" and rule in ("adagrad", "std_adagrad"):
        return "", "with adagrad embed_w starts at 0, as in Paddle's own tables"
    known = ("learning_rate", "initial_range", *["initial_g2sum"] * (block == "adagrad"))
    if value in known:
        return made.put(f"table.{part}.{value}", key.value), ""
    reasons = (why for pattern, why in _REASONS if re.fullmatch(pattern, key.name))
    return "", next(reasons, _UNKNOWN)


_ACCESSOR = r"table_parameters\.[^.]+\.accessor\."
# Patterns of keys that become keys here, and how.
_CARRIED: tuple[tuple[str, _Function], ...] = (
    (r"runner\.train_batch_size", _to("data.batch_size")),
    (r"runner\.epochs", _to("trainer.epochs")),
    (r"runner\.seed", _to("seed")),
    (r"hyper_parameters\.optimizer\.learning_rate(_base_lr)?", _to("optimizer.learning_rate")),
    (r"runner\.(train|test)_data_dir", _folder),
    (r"runner\.train_reader_path", _reader),
    (r"runner\.pipe_command", _pipe),
    (r"hyper_parameters\.optimizer\.class", _optimizer),
    (r"hyper_parameters\.(sparse_feature_dim|embed_size|embedding_size|emb_dim|item_emb_size)",
     _width),
    (r"hyper_parameters\.(dense_input_dim|dense_feature_dim)", _dense_width),
    (r"hyper_parameters\.(sparse_inputs_slots|slot_num)", _slots),
    (r"hyper_parameters\.use_low_rank_mixture", _low_rank),
    (rf"{_ACCESSOR}(?:ctr_accessor_param\.)?(embedx_threshold|embedx_dim|{'|'.join(_LIFE)})",
     _accessor),
    (rf"{_ACCESSOR}(embed|embedx)_sgd_param\.(.+)", _rule),
)  # fmt: skip


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)
