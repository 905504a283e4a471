"""PaddleBox's `core.BoxWrapper` for a table and the dataset that feeds it, and `core.BoxPS`, the
pass protocol that upstream's datasets call."""

from __future__ import annotations

import datetime
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from paddlebox.compat.box_metrics import BoxMetric, Columns, Measuring
from paddlebox.compat.box_saves import BoxSaves
from paddlebox.compat.datasets import InMemoryDataset, InputTableDataset
from paddlebox.compat.stubs import idle, refused
from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.config.dates import day_of
from paddlebox.errors import ConfigError, PassError, StoreError
from paddlebox.saves.meta import BASE, BATCH, DELTA
from paddlebox.saves.reader import Save
from paddlebox.saves.saver import Saver
from paddlebox.store.table_set import TableSet
from paddlebox.training.batch_loop import Watcher
from paddlebox.training.measured import PassResult
from paddlebox.training.own_program import train_from_dataset

log = logging.getLogger(__name__)

_BUCKETS = 1_000_000  # of an AUC


class BoxWrapper:
    """PaddleBox's calls for a table and the dataset that feeds it.

    The path of a save is OUT/<day>/<name>, such as OUT/20240101/base. The donefiles are in OUT, a
    local folder, or with a spool a URI that pyarrow.fs opens. A call that saves returns its path,
    absolute. It raises ValueError for a path of another form, ConfigError for a URI without a
    spool, PassError while a pass is open, StoreError and OutOfSpaceError.

    Args:
        dataset: for phases, metrics and test mode; without it their calls raise PassError.
        extra: files to put into each save, name -> content, such as slots.yaml and config.json.
        spool: a local folder of this job, which all ranks share, for saves at URIs. Each is written
            there and copied; the newest chain of each URI stays there for the next delta. Options
            and credentials of a file system come from its environment.
    """

    def __init__(
        self,
        table: TableSet,
        dataset: UpstreamDataset | None = None,
        *,
        extra: Mapping[str, bytes] | None = None,
        spool: str = "",
    ) -> None:
        self._table = table
        self._dataset = dataset
        self._saves = BoxSaves(table, extra, spool)
        self._metrics: dict[str, BoxMetric] = {}
        self._groups = 0  # of slots that an AucRunner evaluates; 0: there is none
        self._group = 0  # the phase of the AucRunner

    # ---- saves

    def save_base(self, batch_model_path: str, xbox_model_path: str, date: str = "") -> str:
        """Save every row to batch_model_path, unless it is "", and the base to xbox_model_path.
        date: YYYYMMDD, up to which the unseen days of a row count; "": the day of the last pass."""
        day = day_of(date) if date else None
        self._saves.check(xbox_model_path)
        if batch_model_path:
            self._saves.write(batch_model_path, BATCH, Saver.batch)
        return self._saves.write(xbox_model_path, BASE, partial(Saver.base, day=day))

    def save_delta(self, xbox_model_path: str) -> str:
        """Save the changes since the last save in the same OUT, including deletions."""
        return self._saves.write(xbox_model_path, DELTA, Saver.delta)

    def merge_model(self, path: str, out_path: str) -> str:
        """Merge a base or delta, with its chain, into one base at out_path."""
        return self.merge_multi_models([path], out_path)

    def merge_multi_models(self, paths: Sequence[str], out_path: str) -> str:
        """Merge several models of one layout into one base at out_path. If several have a feasign,
        the base gets the row of the last one. If the copy to a URI fails, use another name for the
        next attempt."""
        if not paths:
            raise ValueError("merge_multi_models: expected at least one path of a save")
        return self._saves.merge(paths, out_path)

    def load_model(self, path: str) -> int:
        """Fill an empty table from a base, delta or batch and its chain, as its first commit, and
        return the number of rows. `Table.load_dense` then returns its dense state. Raises: the
        errors of `load_save`."""
        return self._saves.load(path)

    def last_save(self, out: str) -> Save | None:
        """The save in out that the next delta will extend; None before the first base."""
        return self._saves.last(out)

    # ---- the table

    def load_ssd2mem(self, date: str) -> bool:
        """Check the date, and return whether there is a commit to continue from. It loads nothing:
        rows are read from SSD when a pass that needs them is staged."""
        day_of(date)
        return self._table.head is not None

    def shrink_table(self) -> bool:
        """End the day of the last pass now. Returns False if it had ended before."""
        return self._table.life.shrink_table()

    def shrink_resource(self) -> None:
        """Run the compaction that is due in the SSD tier now."""
        for table in self._table.members:
            if table.folder is None:
                raise StoreError(f"table '{table.name}' has no folder, so it has no SSD tier")
            table.compactor.compact()

    def finalize(self) -> None:
        """Close the table."""
        self._table.close()

    # ---- the dataset

    def set_date(self, date: str) -> None:
        """Set the day of the passes that are loaded from now on."""
        self._feeder("set_date").set_date(date)

    def set_test_mode(self, is_test: bool = True) -> None:
        """Set whether the passes that are loaded from now on are for evaluation."""
        self._feeder("set_test_mode").set_test_mode(is_test)

    def set_phase(self, phase: int) -> None:
        """Set the phase: 1 for join, 0 for update. For an AucRunner, the number of a group."""
        if not self._groups:
            self._feeder("set_phase").set_current_phase(phase)
        elif 0 <= phase < self._groups:
            self._group = phase
        else:
            raise ValueError(f"set_phase: expected 0 to {self._groups - 1}, found {phase}")

    def flip_phase(self) -> None:
        """Switch to the other phase. For an AucRunner, to the next group."""
        if self._groups:
            self._group = (self._group + 1) % self._groups
        else:
            self._feeder("flip_phase").flip_phase()

    def initialize_auc_runner(
        self,
        slot_eval: Sequence[Sequence[str]],
        thread_num: int,
        pool_size: int,
        slot_list: Sequence[str],
    ) -> None:
        """Evaluate the importance of groups of slots, slot_eval. From now on, the phases number the
        groups, each `slots_shuffle` of the dataset moves on to the next one, beginning with 0, and
        metrics with that phase measure the group. pool_size: the number of instances of a pass from
        which `slots_shuffle` draws values. Of slot_list only the names are checked.

        Raises: ValueError for an unknown slot, or without groups; PassError if the dataset is not
            one of paddlebox.compat that has passes.
        """
        dataset = self._own("initialize_auc_runner")
        if not slot_eval:
            raise ValueError("initialize_auc_runner: expected at least one group of slots")
        for slots in (*slot_eval, slot_list):
            dataset.options.load.sparse_numbers("initialize_auc_runner", slots)  # checks the names
        dataset.set_fea_eval(pool_size)
        dataset.slots_shuffled = self.flip_phase
        self._groups, self._group = len(slot_eval), len(slot_eval) - 1

    # ---- metrics

    def init_metric(
        self,
        method: str,
        name: str,
        label_varname: str,
        pred_varname: str,
        cmatch_rank_varname: str,
        mask_varname: str,
        metric_phase: int,
        cmatch_rank_group: str,
        ignore_rank: bool,
        bucket_size: int = _BUCKETS,
        mode_collect_in_gpu: bool = False,
        max_batch_size: int = 0,
        sample_scale_varnam: str = "",
    ) -> None:
        """Add a metric. `train_from_dataset` and `add_data` feed it in its phase.

        Args:
            method: the name of a calculator, such as AucCalculator or MaskAucCalculator.
            label_varname, pred_varname, cmatch_rank_varname, mask_varname: names of fed variables
                or of outputs; with MultiTask several predictions, with MultiMask several masks,
                separated by blanks. A value of cmatch_rank_varname is cmatch << 32 | rank.
            metric_phase: 1 for join, 0 for update; for an AucRunner, the number of a group.
            cmatch_rank_group: "222_1 223_2"; "222 223" with ignore_rank; with MultiMask the values
                of the masks.
            mode_collect_in_gpu, max_batch_size: without effect.
            sample_scale_varnam: for AucCalculator, the instances' weights; "": each is 1.

        Raises: ConfigError for a method, number of buckets or weight that is not supported, a name
            that exists, or lists that do not fit each other.
        """
        if bucket_size != _BUCKETS or name in self._metrics:
            raise ConfigError(
                f"init_metric {name!r}: found bucket_size {bucket_size}, names "
                f"{', '.join(self._metrics) or 'none'}: expected {_BUCKETS} buckets, and a new name"
            )
        self._metrics[name] = BoxMetric(
            method,
            name,
            label_varname,
            pred_varname.split(),
            cmatch_rank_varname,
            mask_varname.split() if "Mask" in method else [],
            metric_phase,
            cmatch_rank_group.split(),
            ignore_rank,
            sample_scale_varnam,
        )

    def get_metric_name_list(self, metric_phase: int = -1) -> list[str]:
        """The names of the metrics of a phase; -1: of all."""
        return [n for n, m in self._metrics.items() if metric_phase in (-1, m.phase)]

    def get_metric_msg(self, name: str) -> list[float]:
        """[auc, bucket_error, mae, rmse, actual ctr, predicted ctr, copc, size] since the last
        call. An AUC without one of the classes is -0.5. With weights, size is their sum. Every rank
        calls it. Raises: ConfigError for an unknown name, or a metric of another kind."""
        return self._message("get_metric_msg", name)

    def get_continue_metric_msg(self, name: str) -> list[float]:
        """[mae, rmse, actual value, predicted value, size], as `get_metric_msg`."""
        return self._message("get_continue_metric_msg", name)

    def get_nan_inf_metric_msg(self, name: str) -> list[float]:
        """[NaN, infinite, rate of both, size], as `get_metric_msg`."""
        return self._message("get_nan_inf_metric_msg", name)

    def _message(self, getter: str, name: str) -> list[float]:
        if name not in self._metrics:
            raise ConfigError(
                f"{getter}: no metric {name!r}; there are {', '.join(self._metrics) or 'none'}"
            )
        return self._metrics[name].message(getter, self._table.world)

    def add_data(self, columns: Columns) -> None:
        """Add a batch, name -> (B) labels, predictions, masks, to the metrics of the current phase,
        in a loop of your own. Raises: ConfigError if a column is missing; ValueError for a value
        that a method does not accept, such as a prediction outside of [0, 1]."""
        for metric in self._metrics.values():
            if metric.phase == self._phase():
                metric.add(columns)

    def train_from_dataset(
        self,
        exe: Any,
        program: Any,
        *,
        loss: Any,
        outputs: Mapping[str, Any] | None = None,
        watch: Watcher | None = None,
        **options: Any,
    ) -> PassResult:
        """`paddlebox.train_from_dataset`, with its arguments, over the dataset of the wrapper. It
        adds each batch to the metrics of the current phase. outputs: name -> variable of the
        program with a value per instance, for metrics that name it; fed variables need not be
        listed."""
        measuring = Measuring(exe, outputs or {}, self.add_data)

        def watched(batches: int, samples: int, *rest: Any) -> None:
            measuring.take(samples)
            if watch is not None:
                watch(batches, samples, *rest)

        feeder = self._feeder("train_from_dataset")
        return train_from_dataset(
            measuring, program, feeder, loss=loss, outputs=outputs, watch=watched, **options
        )

    def _phase(self) -> int:
        return self._group if self._groups else self._feeder("the phase").options.phase

    # ---- reports

    def set_batch_max_ins_number(self, max_ins: int) -> None:
        """Count from now on how many batches of page views have how many instances. A max_ins of 0
        or less changes nothing, as in PaddleBox."""
        if max_ins > 0:
            self._own("set_batch_max_ins_number").batch_instances = Counter()

    def show_batch_ins_info(self) -> dict[int, int]:
        """Log the counts since the last call. Returns them: instances of a batch -> batches."""
        dataset = self._own("show_batch_ins_info")
        if dataset.batch_instances is None:
            log.info("batches are not counted: set_batch_max_ins_number is missing")
            return {}
        counts, dataset.batch_instances = dict(sorted(dataset.batch_instances.items())), Counter()
        log.info("batches by their number of instances: %s", counts)
        return counts

    def print_device_info(self, span: float) -> None:
        """Log what the last pass waited for, and the tiers in which its rows were found. span: the
        seconds that the program measured, for the log."""
        stats = self._feeder("print_device_info").stats
        waits = ", ".join(f"{what} {seconds:.3f}" for what, seconds in stats.wait_s.items())
        tiers = ", ".join(f"{tier} {rows}" for tier, rows in stats.hits.items())
        log.info(
            "pass of %.3f s: %d instances; seconds waited: %s; rows found: %s",
            span,
            stats.samples,
            waits,
            tiers,
        )

    # ---- other names of PaddleBox: docs/upstream_names.md says of each what it does

    def initialize_gpu_and_load_model(
        self,
        conf_file: str,
        slot_vector: Sequence[int],
        slot_omit_in_feedpass: Sequence[str],
        model_path: str,
        lr_map: Mapping[str, float],
    ) -> None:
        """`load_model` of model_path, unless it is "". conf_file and lr_map must be empty
        (ConfigError); slot_vector and slot_omit_in_feedpass have no effect: slots.yaml has the
        slots."""
        if conf_file or lr_map:
            raise ConfigError(
                f"initialize_gpu_and_load_model: expected no conf_file and no lr_map, found "
                f"{conf_file!r} and {dict(lr_map)}: set the table's options in TableConfig, and "
                "the learning rates of dense parameters in the program"
            )
        if model_path:
            self.load_model(model_path)

    def set_input_table_dim(self, dim: int) -> None:
        """Set the width of the input table. Raises: PassError if the dataset has none."""
        dataset = self._feeder("set_input_table_dim")
        if not isinstance(dataset, InputTableDataset):
            raise PassError(
                "set_input_table_dim: expected an InputTableDataset, found "
                f"{type(dataset).__name__}: an InputTable that you add has its own width"
            )
        dataset.set_input_table_dim(dim)

    set_dataset_name = idle("as in PaddleBox")
    release_pool = idle("there is no pool of instances")
    feed_pass = refused(
        "feed_pass: a pass is loaded by its dataset, which also collects its keys (PaddleBox calls "
        "this method deprecated)"
    )
    init_afs_api = refused(
        "init_afs_api: afs is not public: name files by URIs (hdfs://, s3://, gs://), which "
        "pyarrow.fs opens"
    )

    def _own(self, call: str) -> InMemoryDataset:
        """The dataset, if it is one of paddlebox.compat that has passes."""
        dataset = self._feeder(call)
        if not isinstance(dataset, InMemoryDataset):
            raise PassError(
                f"{call}: expected a dataset with passes of paddlebox.compat, found "
                f"{type(dataset).__name__}"
            )
        return dataset

    def _feeder(self, call: str) -> UpstreamDataset:
        if self._dataset is None:
            raise PassError(f"{call}: the wrapper has no dataset: BoxWrapper(table, dataset)")
        return self._dataset


class BoxPS:
    """The pass protocol of a dataset. Calls out of order raise the PassError of the dataset.

    Args:
        dataset: the dataset that loads the passes.
    """

    def __init__(self, dataset: InMemoryDataset) -> None:
        self._dataset = dataset

    def set_date(self, year: int, month: int, day: int) -> None:
        """Set the day of the passes that are loaded from now on. Raises: ValueError if there is no
        such day."""
        self._dataset.set_date(datetime.date(year, month, day).strftime("%Y%m%d"))

    def preload_into_memory(self) -> None:
        self._dataset.preload_into_memory()

    def wait_feed_pass_done(self) -> None:
        self._dataset.wait_preload_done()

    def load_into_memory(self) -> None:
        self._dataset.load_into_memory()

    def read_ins_into_memory(self) -> None:
        """The same as `load_into_memory`."""
        self._dataset.load_into_memory()

    def begin_pass(self) -> None:
        self._dataset.begin_pass()

    def end_pass(self, need_save_delta: bool) -> None:
        self._dataset.end_pass(need_save_delta)

    def slots_shuffle(self, slots: Iterable[str]) -> None:
        self._dataset.slots_shuffle(list(slots))
