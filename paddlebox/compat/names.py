"""Every public name of PaddleBox, with its counterpart here. docs/upstream_names.md shows the list:
`python -m paddlebox.compat` prints it. The error of a refused name is its note.

A name of PaddleBox is one that the fork of Paddle defines for training with BoxPS; names of stock
Paddle that the fork does not change are left out.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from paddlebox.errors import ConfigError

REPOSITORY = "https://github.com/jiaoxuewu/PaddleBox"
COMMIT = "edeaaf0af611f7fa1f56cfb8c390dc566355e727"


class Status(StrEnum):
    SAME = "same"
    DIFFERENT = "different"  # the note tells how
    REPLACED = "replaced"  # `here` is what to use instead
    REFUSED = "refused"  # the note tells why, and what to use instead


class Name(NamedTuple):
    """A name of PaddleBox.

    Attributes:
        owner: the class or module that defines it.
        here: the dotted path of its counterpart. Empty: the same name in the class of
            paddlebox.compat that is named like the owner, or in all dataset classes that derive
            from the owner in PaddleBox. A refused name that `here` leaves empty is there, too, and
            raises; "none": there is no such name here.
    """

    name: str
    owner: str
    status: Status
    note: str = ""
    here: str = ""


class Group(NamedTuple):
    title: str
    where: str  # the module or file in PaddleBox
    names: tuple[Name, ...]


def _same(owner: str, *names: str, note: str = "") -> tuple[Name, ...]:
    return tuple(Name(name, owner, Status.SAME, note) for name in names)


def _different(owner: str, name: str, note: str, here: str = "") -> Name:
    return Name(name, owner, Status.DIFFERENT, note, here)


def _replaced(owner: str, name: str, here: str, note: str = "") -> Name:
    return Name(name, owner, Status.REPLACED, note, here)


def _refused(owner: str, names: str, note: str, here: str = "") -> tuple[Name, ...]:
    return tuple(Name(name, owner, Status.REFUSED, note, here) for name in names.split())


_BASE, _MEMORY, _BOX, _PAD, _TABLE = (
    "DatasetBase",
    "InMemoryDataset",
    "BoxPSDataset",
    "PadBoxSlotDataset",
    "InputTableDataset",
)
_ONE_LOAD = "a pass that is loaded must begin before the next one is loaded"
_NO_SERVER = "accepted without effect, because there is no parameter server"

DATASETS = Group(
    "Datasets",
    "python/paddle/fluid/dataset.py",
    (
        _different(
            "DatasetFactory",
            "create_dataset",
            "`DatasetFactory(table, seed=0)` takes the table of its datasets",
        ),
        *_same(_BASE, "set_batch_size", "set_thread"),
        _different(_BASE, "set_pv_batch_size", "also for a pass that is loaded already"),
        _different(_BASE, "set_filelist", "also folders, globs and URIs"),
        _different(
            _BASE,
            "set_use_var",
            "variables have shape (-1, n) and no LoD. Without `slots` in `init`, they are the "
            "slots of a line; `label=NAME` makes one of them the click of the packed inputs",
        ),
        _different(
            _BASE,
            "set_pipe_command",
            "needs `init(allow_commands=True)`. A parser plugin goes to `set_so_parser_name`",
        ),
        _different(
            _BASE,
            "set_so_parser_name",
            "a library with the C interface of `ops/feed/text/plugin.h`, or `module:function` in "
            "Python, not an `ISlotParser`",
        ),
        _different(
            _BASE,
            "set_rank_offset",
            "the variable takes -1 in batches that are not page views, so a program that declares "
            "it also runs in update",
        ),
        _different(
            _BASE,
            "set_sample_rate",
            "a hash of the seed and the ins_id chooses the instances. Without ids, the number of "
            "the instance replaces the ins_id",
        ),
        *_same(_BASE, "set_fea_eval"),
        _different(
            _BASE,
            "slots_shuffle",
            "seeded; an instance takes the values of all replaced slots from one other instance of "
            "the pass. Without `set_fea_eval` it is an error",
        ),
        _different(_BASE, "set_input_type", "only 0, one instance per line"),
        _different(
            _BASE,
            "set_hdfs_config",
            "paths that begin with `hdfs:` become URIs of this host and user. Afs is refused",
        ),
        _different(_BASE, "desc", "the fields that Paddle's own DataFeedDesc has"),
        *_refused(
            _BASE,
            "set_download_cmd",
            "files are not fetched by a command: name them by URIs (hdfs://, s3://, gs://), or "
            "copy them to local disk first. Only `cat` is accepted",
        ),
        *_same(
            _BASE, "set_ads_offset", "set_ads_train_mask", note="also for split methods 0 and 1"
        ),
        _different(
            _BASE,
            "set_ads_cur_timestamp",
            "the same time as `set_ads_show_timestamp`: an instance has one time",
        ),
        *_same(_BASE, "set_ads_show_timestamp"),
        *_same(
            _MEMORY,
            "set_parse_ins_id",
            "set_parse_content",
            "set_parse_logkey",
            note="also for CSV, Parquet and Arrow, where they are columns",
        ),
        *_same(_MEMORY, "set_enable_pv_merge"),
        *_same(_MEMORY, "set_merge_by_sid", note="with False, each instance is a page view"),
        _different(
            _MEMORY,
            "set_merge_by_uid",
            "`user=SLOT`, or `_set_uid_slot(SLOT)`, names the slot of the user, and `time=COLUMN` "
            "the column of the time. Equal times keep the order of the files. A page view without "
            "an instance that trains is left out",
        ),
        *_same(_MEMORY, "set_need_time_info"),
        _different(
            _MEMORY,
            "set_shuffle_and_sort",
            "the page views of a user stay in the order of time when page views are shuffled. The "
            "public code of PaddleBox stores the flag and never reads it",
        ),
        *_same(_MEMORY, "set_invalid_users", note='`""` is always one of them'),
        _different(
            _MEMORY,
            "set_train_timestamp_range",
            "an instance before the range is context, one after it is left out, and update trains "
            "the instances within. PaddleBox only drops page views that end before the range; with "
            "`FLAGS_enable_update_filter_ins`, update trains the same instances as here. A range "
            "that begins with 0 leaves later instances out; in PaddleBox it has no effect",
        ),
        _different(_MEMORY, "set_test_timestamp_range", "as `set_train_timestamp_range`"),
        _different(_MEMORY, "set_test_mode", "later passes only evaluate"),
        _different(
            _MEMORY,
            "preprocess_instance",
            "page views are shuffled by the seed. Without `set_enable_pv_merge`, instances are "
            "shuffled; in PadBoxSlotDataset, nothing happens",
        ),
        _different(
            _MEMORY,
            "postprocess_instance",
            "instances are shuffled by the seed. In PadBoxSlotDataset, an optional call",
        ),
        _different(
            _MEMORY,
            "set_current_phase",
            "the phase of this dataset; `BoxWrapper.set_phase` sets it, too. Shows and clicks "
            "count in the first phase of a pass, unless `set_counted_slots` says otherwise",
        ),
        _different(
            _MEMORY,
            "set_merge_by_lineid",
            "merged instances are in the order of the first line of each id, and the log says how "
            "many were dropped",
        ),
        _different(
            _MEMORY,
            "set_feed_type",
            "checks the name; `init(data_format=...)` chooses the format",
        ),
        _different(
            _MEMORY, "set_queue_num", "accepted without effect: there is one queue of batches"
        ),
        _different(_MEMORY, "set_fleet_send_batch_size", _NO_SERVER),
        _different(_MEMORY, "set_fleet_send_sleep_seconds", _NO_SERVER),
        _different(
            _MEMORY,
            "set_generate_unique_feasigns",
            "accepted without effect: the unique feasigns of a pass are always computed",
        ),
        _different(
            _MEMORY,
            "generate_local_tables_unlock",
            "accepted without effect: the rows of a pass are staged before it begins",
        ),
        _different(_MEMORY, "set_date", "a date that is no day of the calendar is an error"),
        _different(_MEMORY, "load_into_memory", _ONE_LOAD),
        _different(_MEMORY, "preload_into_memory", _ONE_LOAD),
        *_same(_MEMORY, "wait_preload_done"),
        _different(
            _MEMORY,
            "local_shuffle",
            "seeded; for the loaded pass and for later ones; also by ins_id, search id or slot. "
            "QueueDataset shuffles within its windows, where PaddleBox raises",
        ),
        _different(
            _MEMORY,
            "global_shuffle",
            "seeded; over all ranks, which exchange instances. A loaded pass is loaded again, so "
            "it is faster to call it before. Also by ins_id, search id or slot",
        ),
        _different(_MEMORY, "release_memory", "only a check: `end_pass` has freed the instances"),
        *_same(_MEMORY, "get_memory_data_size", "get_pv_data_size"),
        _different(
            _MEMORY, "get_shuffle_data_size", "the same as `get_memory_data_size`, of this rank"
        ),
        *_refused(
            _MEMORY, "set_graph_config", "there is no graph training: PGLBox is not part of this"
        ),
        *_same(_BOX, "begin_pass"),
        _different(
            _BOX, "end_pass", "the argument has no effect: every commit holds only what changed"
        ),
        _different(
            _PAD,
            "disable_shuffle",
            "keeps instances on their rank, in the order of the files, and page views in that of "
            "search ids. In PaddleBox two flags keep the order. Its default here is True",
        ),
        _different(
            _PAD,
            "disable_polling",
            "each rank reads the whole list of files. Its default here is True",
        ),
        _different(
            _PAD,
            "preload_into_disk",
            "the file has no name, and its space is free again after the pass",
        ),
        *_same(_PAD, "wait_load_disk_done"),
        _different(_PAD, "load_into_disk", "as `preload_into_disk`"),
        *_refused(
            _PAD,
            "set_archivefile",
            "there are no archive files: `load_into_disk` reads the original files, and "
            "`init(cache_bytes=...)` keeps them parsed. False is accepted",
        ),
        _different(
            _TABLE,
            "set_index_parser",
            "a Python function, `module:function`, from the bytes of a file to keys and values",
        ),
        _different(
            _TABLE,
            "set_index_filelist",
            "lines `key v1 .. vD`, unless there is a parser. The lines of instances hold row "
            "numbers, not keys",
        ),
    ),
)
_P3 = "fleet InMemoryDataset"
PADDLE3 = Group(
    "Settings of Paddle 3's datasets",
    "paddle/distributed/fleet/dataset/dataset.py of Paddle 3.3.1",
    (
        _different(
            "fleet DatasetBase",
            "init",
            "`slots`, `data_format` and others are added. Arguments that are left out keep their "
            "setting: Paddle's default for `merge_by_sid` is False, and for `pv_batch_size` 1",
        ),
        _different(_P3, "update_settings", "an unknown key is an error"),
        _different(_P3, "_init_distributed_settings", "an unknown key is an error"),
        *_same(
            "fleet DatasetBase",
            *("_set_batch_size", "_set_thread", "_set_use_var", "_set_pipe_command"),
            *("_set_input_type", "_set_hdfs_config", "_set_fea_eval", "_desc"),
            note="as the name without the underscore",
        ),
        *_same(
            _P3,
            *("_set_feed_type", "_set_queue_num", "_set_parse_ins_id", "_set_parse_content"),
            *("_set_merge_by_lineid", "_set_fleet_send_batch_size"),
            *("_set_fleet_send_sleep_seconds", "_set_generate_unique_feasigns"),
            *("_generate_local_tables_unlock", "_set_rank_offset", "_set_pv_batch_size"),
            *("_set_parse_logkey", "_set_merge_by_sid", "_set_enable_pv_merge"),
            note="as the name without the underscore",
        ),
        _different(
            "fleet DatasetBase", "_set_uid_slot", "the slot that `_set_shuffle_by_uid` shuffles by"
        ),
        _different(
            _P3,
            "_set_shuffle_by_uid",
            "`local_shuffle()` and `global_shuffle()` keep the instances of a user together",
        ),
        _different("fleet DatasetBase", "_set_use_ps_gpu", _NO_SERVER),
        _different(_P3, "_set_heter_ps", _NO_SERVER),
        _different(
            _P3,
            "_set_trainer_num",
            "without effect: the launcher sets the number of ranks",
        ),
        *_refused(
            "fleet DatasetBase",
            "_set_download_cmd",
            "files are not fetched by a command: name them by URIs (hdfs://, s3://, gs://), or "
            "copy them to local disk first. Only `cat` is accepted",
        ),
        *_refused(_P3, "tdm_sample", "there are no tree models (TDM, JTM)"),
        *_refused(
            "fleet DatasetBase",
            "_prepare_to_run",
            "Paddle's executor cannot read this dataset: call "
            "`paddlebox.train_from_dataset(exe, program, dataset, loss=loss)`",
        ),
    ),
)

_BOX_WRAPPER = "core.BoxWrapper"
WRAPPER = Group(
    "BoxWrapper",
    "paddle/fluid/pybind/box_helper_py.cc",
    (
        _different(
            _BOX_WRAPPER,
            "BoxWrapper",
            "`BoxWrapper(table, dataset)`, not a singleton; `TableConfig` has `embedx_dim` and "
            "`expand_dim`",
            "paddlebox.compat.BoxWrapper",
        ),
        *_same(
            _BOX_WRAPPER,
            "save_base",
            note='`batch_model_path` gets every row; with `""`, no batch is written. Paths are '
            "local, or URIs if the wrapper has a `spool`",
        ),
        _different(
            _BOX_WRAPPER,
            "save_delta",
            "contains deletions, and with `table.life.delta_threshold: 0` every change",
        ),
        _different(
            _BOX_WRAPPER,
            "merge_model",
            "`merge_model(path, out_path)` writes the chain that ends with this base or delta as "
            "one base",
        ),
        _different(
            _BOX_WRAPPER,
            "merge_multi_models",
            "`merge_multi_models(paths, out_path)`: the row of the last model that has a feasign "
            "counts",
        ),
        _different(
            _BOX_WRAPPER,
            "load_ssd2mem",
            "returns whether there is a commit to continue from; rows are read from SSD when a "
            "pass is staged",
        ),
        _different(_BOX_WRAPPER, "shrink_table", "ends the day of the last pass, once"),
        _different(_BOX_WRAPPER, "shrink_resource", "runs the compaction that is due on SSD"),
        _different(
            _BOX_WRAPPER,
            "initialize_gpu_and_load_model",
            "loads `model_path` into an empty table. `conf_file` and `lr_map` must be empty: a "
            "`TableConfig` configures the table, and the optimizer the dense parameters",
        ),
        *_same(_BOX_WRAPPER, "set_test_mode", "set_phase", "flip_phase"),
        *_same(_BOX_WRAPPER, "finalize", note="closes the table"),
        _different(
            _BOX_WRAPPER,
            "init_metric",
            "`train_from_dataset` of the wrapper, or `add_data`, feeds the metrics of the phase. "
            "`sample_scale_varnam` also weights the errors in mae and rmse, which PaddleBox sums "
            "without weights; methods other than AucCalculator refuse it",
        ),
        *_same(
            _BOX_WRAPPER,
            "get_metric_msg",
            note="[auc, bucket_error, mae, rmse, actual ctr, predicted ctr, copc, size]; resets it",
        ),
        *_same(
            _BOX_WRAPPER,
            "get_continue_metric_msg",
            note="[mae, rmse, actual value, predicted value, size]; resets it",
        ),
        *_same(
            _BOX_WRAPPER,
            "get_nan_inf_metric_msg",
            note="[NaN, infinite, rate, size]; resets it",
        ),
        *_same(_BOX_WRAPPER, "get_metric_name_list"),
        _different(
            _BOX_WRAPPER,
            "initialize_auc_runner",
            "one pool of `pool_size` instances per pass. The phases number the groups of slots, as "
            "in PaddleBox",
        ),
        _different(_BOX_WRAPPER, "set_input_table_dim", "for an InputTableDataset"),
        *_same(_BOX_WRAPPER, "set_dataset_name", note="without effect, as in PaddleBox"),
        _different(
            _BOX_WRAPPER,
            "set_batch_max_ins_number",
            "counts batches of any size; the argument only has to be above 0",
        ),
        _different(
            _BOX_WRAPPER,
            "show_batch_ins_info",
            "logs how many batches of page views had how many instances, and returns it; without "
            "sequences, all of them train",
        ),
        _different(
            _BOX_WRAPPER, "print_device_info", "logs the times and the tiers of the last pass"
        ),
        _different(_BOX_WRAPPER, "release_pool", "accepted without effect: there is no pool"),
        *_refused(
            _BOX_WRAPPER,
            "feed_pass",
            "a pass is loaded by its dataset, which also collects its keys (PaddleBox calls this "
            "method deprecated)",
        ),
        *_refused(
            _BOX_WRAPPER,
            "init_afs_api",
            "afs is not public: name files by URIs (hdfs://, s3://, gs://), which pyarrow.fs opens",
        ),
    ),
)
_BOX_PS = "core.BoxPS"
BOX_PS = Group(
    "BoxPS",
    "paddle/fluid/pybind/box_helper_py.cc, class BoxHelper",
    (
        *_same(_BOX_PS, "BoxPS", "set_date", "begin_pass"),
        _different(
            _BOX_PS, "end_pass", "the argument has no effect: every commit holds only what changed"
        ),
        _different(_BOX_PS, "preload_into_memory", _ONE_LOAD),
        _different(_BOX_PS, "load_into_memory", _ONE_LOAD),
        _different(_BOX_PS, "read_ins_into_memory", "the same as `load_into_memory`"),
        *_same(_BOX_PS, "wait_feed_pass_done"),
        _different(
            _BOX_PS,
            "slots_shuffle",
            "as the dataset's",
        ),
    ),
)
_FILES = "core.BoxFileMgr"
FILES = Group(
    "BoxFileMgr",
    "paddle/fluid/pybind/box_helper_py.cc",
    (
        *_same(_FILES, "BoxFileMgr"),
        _different(
            _FILES,
            "init",
            "`fs_name` is a URI that pyarrow.fs opens, such as hdfs://HOST:PORT, or empty for "
            "local disk. Afs is refused",
        ),
        *_same(_FILES, "makedir", "exists", "download", "upload", "rename", "finalize"),
        *_same(_FILES, "list_dir", note="full paths, sorted"),
        *_same(_FILES, "remove", note="also a folder with its content"),
        *_same(_FILES, "file_size", note="-1 if there is no file"),
        *_same(_FILES, "dus", note="each entry of a folder, with the bytes of all files below it"),
        *_same(_FILES, "list_info", note="each entry of a folder, with its own bytes"),
        *_same(_FILES, "count", note="the number of files below a path"),
        *_same(_FILES, "truncate", note="rewrites the file, except on local disk"),
        *_same(_FILES, "touch"),
    ),
)

_CONTRIB = "fluid.contrib.layers"
_LAYERS = "fluid.layers"
_OPS = "paddlebox.ops"
_OWN = "paddlebox.compat.layers"


def _operator(owner: str, name: str, note: str = "", here: str = "") -> Name:
    return _different(owner, name, note, here or f"{_OPS}.{name.lstrip('_')}")


_PACKED = "jagged input is (values, offsets), not a LoD tensor"
OPERATORS = Group(
    "Operators",
    "python/paddle/fluid/layers/nn.py and python/paddle/fluid/contrib/layers/nn.py",
    (
        _operator(
            _LAYERS,
            "_pull_box_sparse",
            "a slot may have several ids; all slots have the same number of instances",
            f"{_OWN}.pull_box_sparse",
        ),
        _operator(_CONTRIB, "_pull_box_extended_sparse", "without `offset`: slice the result"),
        _operator(_LAYERS, "_pull_gpups_sparse"),
        _operator(_LAYERS, "_pull_cache_value", "reads a `ReplicaCache`"),
        _operator(_LAYERS, "lookup_input", "reads an `InputTable`"),
        _operator(_LAYERS, "continuous_value_model", "also on the CPU in PIR and dygraph"),
        _operator(_LAYERS, "data_norm", "the sums change in the forward", f"{_OWN}.data_norm"),
        _operator(
            _CONTRIB,
            "fused_seqpool_cvm",
            f"{_PACKED}. `grad_mask` also counts for K > 1 with `use_cvm` and without "
            "`clk_filter`, where PaddleBox ignores it",
        ),
        *(
            _operator(_CONTRIB, f"fused_seqpool_cvm_with_{kind}", _PACKED)
            for kind in ("conv", "credit", "diff_thres", "pcoc")
        ),
        _operator(_CONTRIB, "rank_attention", "also on the CPU"),
        _operator(
            _CONTRIB,
            "batch_fc",
            "the gradient of the bias is the sum over the instances; PaddleBox's kernel reads "
            "other elements",
        ),
        _replaced(
            _CONTRIB, "shuffle_batch", "paddle.incubate.layers.shuffle_batch", "of stock Paddle"
        ),
        _operator(_CONTRIB, "partial_concat", "also in PIR programs", f"{_OWN}.partial_concat"),
        _operator(_CONTRIB, "partial_sum", "also in PIR programs", f"{_OWN}.partial_sum"),
        _replaced(
            _CONTRIB,
            "sparse_embedding",
            "paddlebox.ops.pull_box_sparse",
            "the embedding of a parameter server",
        ),
        *_refused(
            _LAYERS,
            "_store_q_value",
            "fetch the values (`fetch_list`); `fused_seqpool_cvm_with_pcoc` takes them as an input",
            "none",
        ),
        *_refused(
            _LAYERS, "alias_method", "draw negative samples in your reader, or with NumPy", "none"
        ),
        *(
            _operator(_CONTRIB, name, here=f"{_OWN}.{name}")
            for name in (
                *("rank_attention2", "scaled_fc", "scaled_int8fc"),
                "cross_norm_layer_hadamard",
            )
        ),
        _operator(_LAYERS, "masked_data_norm", here=f"{_OWN}.masked_data_norm"),
        *(
            _operator(_CONTRIB, name, here=f"{_OWN}.{name}")
            for name in (
                *("fused_concat", "fused_seq_tensor", "fused_seqpool_concat"),
                "fused_causal_mask",
            )
        ),
        _operator(
            _CONTRIB, "fused_seqpool_cvm_tradew", _PACKED, f"{_OWN}.fused_seqpool_cvm_tradew"
        ),
        _operator(
            "operator",
            "fusion_seqpool_cvm_concat",
            _PACKED,
            f"{_OWN}.fusion_seqpool_cvm_concat",
        ),
    ),
)

OTHERS = Group(
    "Trainers and programs",
    "python/paddle/fluid",
    (
        _replaced(
            "fluid.Executor",
            "train_from_dataset",
            "paddlebox.train_from_dataset",
            "`train_from_dataset(exe, program, dataset, loss=loss)`; `thread` and `debug` are left "
            "out",
        ),
        _replaced(
            "fluid.Executor",
            "infer_from_dataset",
            "paddlebox.train_from_dataset",
            "on a pass that was loaded after `set_test_mode(True)`, with a program that has no "
            "optimizer",
        ),
        _replaced(
            "fluid.optimizer",
            "BoxPSOptimizer",
            "paddle.optimizer.Adam",
            "any optimizer of Paddle, for the dense parameters only; rows are trained by the "
            "backward of the pull. There are no sections and no places",
        ),
        _replaced(
            "fluid.optimizer",
            "PipelineOptimizer",
            "paddle.optimizer.Adam",
            "as BoxPSOptimizer. `sync_steps` is `ranks.sync_weight_step` of a config",
        ),
        _replaced(
            "fluid.trainer_desc",
            "BoxPSTrainer",
            "paddlebox.train_from_dataset",
            "a program needs no `_pipeline_opt`",
        ),
        *(
            _replaced(
                "fluid.trainer_desc",
                f"_set_{what}",
                "paddlebox.compat.TrainingDump",
                f"its argument `{argument}`",
            )
            for what, argument in (
                ("dump_fields_path", "folder"),
                ("dump_fields", "fields"),
                ("dump_param", "params"),
                ("enable_random_dump", "mode"),
                ("random_with_lineid", "mode"),
                ("dump_interval", "interval"),
            )
        ),
        _replaced(
            "fluid.device_worker",
            "BoxPSWorker",
            "paddlebox.train_from_dataset",
            "`sync_dense_mode` and `async_mode` are the section `ranks` of a config",
        ),
        _replaced(
            "core",
            "Dataset",
            "paddlebox.compat.InMemoryDataset",
            "the object behind a dataset class: call the dataset's own methods",
        ),
        _replaced(
            "fluid.io",
            "save_persistables",
            "paddle.static.save",
            "of stock Paddle, without `filter_func`. Dense parameters are in each commit if you "
            "set `dataset.dense_state`",
        ),
        *_refused(
            "fleet.meta_optimizers",
            "ThreadShardingOptimizer",
            "dense parameters are not sharded: each rank has a copy (docs/ranks.md)",
            "none",
        ),
    ),
)

GROUPS = (DATASETS, PADDLE3, WRAPPER, BOX_PS, FILES, OPERATORS, OTHERS)


def refusal(group: Group, name: str) -> ConfigError:
    """The error of a refused name."""
    (found,) = (one for one in group.names if one.name == name)
    return ConfigError(f"{name}: {found.note}")


def markdown() -> str:
    """The tables of docs/upstream_names.md."""
    return "\n".join(_table(group) for group in GROUPS if group.names)


def _table(group: Group) -> str:
    lines = [f"## {group.title}", "", f"In PaddleBox: `{group.where}`.", ""]
    lines += ["| name | class or module | here | |", "|---|---|---|---|"]
    lines += [f"| `{n.name}` | `{n.owner}` | {n.status} | {_told(n)} |" for n in group.names]
    return "\n".join(lines) + "\n"


def _told(name: Name) -> str:
    where = f"`{name.here}`" if name.here not in ("", "none") else ""
    return ": ".join(part for part in (where, name.note) if part)
