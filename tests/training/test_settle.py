"""What a run chooses where its config names nothing: once, when it begins, alike on all ranks."""

from __future__ import annotations

import gzip
import json
import logging
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paddlebox.config import Config, Phase, Slots, load_config, load_slots
from paddlebox.config.slots import Csv
from paddlebox.data.first_look import FirstLook
from paddlebox.errors import ConfigError, DataError
from paddlebox.ranks import World
from paddlebox.store.group import ONE_RANK, Group
from paddlebox.store.record import VersionRecord
from paddlebox.store.version_store import VersionStore
from paddlebox.training.config_changes import description
from paddlebox.training.opening import warn_of_missing_tests
from paddlebox.training.pass_line import Lines
from paddlebox.training.plan import PlannedPass, plan_passes
from paddlebox.training.resume import ResumeRequest
from paddlebox.training.settle import batch_size_for, chosen, settled, warn_of_few_steps
from tests.conftest import PATIENCE_S, ROOT, run_python
from tests.support.configs import make_config, make_slots

SLOTS = make_slots(click="label", **dict.fromkeys("abcdefgh", "sparse"))
LINE = b"1 1 " + b" ".join([b"1 5"] * 8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Passes of 3 and of 1 rows."""
    (tmp_path / "a").write_bytes(b"\n".join([LINE] * 3))
    (tmp_path / "b").write_bytes(LINE + b"\n")
    return tmp_path


def config(folder: Path, **changes: Any) -> Config:
    files = [str(folder / "a"), str(folder / "b")]
    data = {"format": "multislot", "train_files": files, "files_per_pass": 1}
    return make_config(data=data | changes.pop("data", {}), **changes)


def settle(
    own: Config,
    run_dir: Path,
    world: Group = ONE_RANK,
    slots: Slots = SLOTS,
    **more: Any,
) -> Config:
    plan = plan_passes(own) if own.data.train_files else []
    source, filled = more.pop("source", None), more.pop("filled", False)
    return settled(ResumeRequest(run_dir, own, slots, **more), plan, world, source, filled=filled)


def commit(run_dir: Path, settled_config: Config, number: int = 1) -> None:
    """A version with this config."""
    with VersionStore.open_writer(run_dir / "store") as manifest:
        described = description(settled_config, SLOTS)
        manifest.append(VersionRecord(number, number - 1, [], {}, number, config=described))


def rows_found(monkeypatch: pytest.MonkeyPatch, rows: int) -> list[Sequence[str]]:
    """Files have so many rows from now on; returns those that are counted."""
    counted: list[Sequence[str]] = []

    def count(_: FirstLook, files: Sequence[str], at_most: int) -> int:
        counted.append(list(files))
        return min(rows, at_most)

    monkeypatch.setattr(FirstLook, "rows", count)
    return counted


def test_larger_data_has_larger_batches() -> None:
    sizes = [batch_size_for(rows) for rows in (0, 24_999, 25_000, 50_000, 400_000, 1_000_000)]
    assert sizes == [32, 32, 64, 128, 256, 512]


def test_auto_is_chosen_from_the_first_pass_times_the_passes_of_an_epoch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counted = rows_found(monkeypatch, 30_000)
    with caplog.at_level(logging.INFO, "paddlebox"):
        made = settle(config(folder, trainer={"epochs": 5}), folder / "run")
    assert made.data.batch_size == batch_size_for(60_000)
    assert counted == [[str(folder / "a")]]
    assert "data.batch_size 128 (about 60000 training rows)" in caplog.text


def test_counting_ends_where_more_rows_change_nothing(folder: Path) -> None:
    own = config(folder)
    assert FirstLook(own, SLOTS).rows([str(folder / "a"), str(folder / "b")], 100) == 4
    assert FirstLook(own, SLOTS).rows([str(folder / "a"), "not there"], 2) == 2


def test_sizes_that_are_named_are_taken_and_no_row_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = rows_found(monkeypatch, 30_000)
    own = config(folder, data={"batch_size": 7}, model={"hidden": [4]})
    assert settle(own, folder / "run").data.batch_size == 7
    assert not counted


def test_a_stream_of_hours_has_batches_of_512(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = rows_found(monkeypatch, 3)
    hours = {
        "path_template": "{date}/{hour}/*",
        "from_hour": "20240101",
        "train_files": [],
        "files_per_pass": 0,
    }
    assert settle(config(folder, data=hours), folder / "run").data.batch_size == 512
    assert not counted


def test_rows_that_only_a_command_can_read_are_not_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = rows_found(monkeypatch, 3)
    own = config(folder, data={"pipe_command": "cat"}, security={"allow_commands": True})
    assert settle(own, folder / "run").data.batch_size == 512
    assert not counted


class Rank(World):
    """One of several, in a thread; they meet to gather."""

    def __init__(self, rank: int, size: int, board: dict[Any, Any], all_here: Any) -> None:
        super().__init__(rank, size)
        self._board, self._all_here = board, all_here

    def gather(self, what: str, mine: Any) -> list[Any]:
        self._board[what, self.rank] = mine
        self._all_here.wait(PATIENCE_S)
        found = [self._board[what, rank] for rank in range(self.size)]
        self._all_here.wait(PATIENCE_S)
        return found


def coordination(size: int, work: Callable[[Rank], Config]) -> list[Config]:
    all_here, board = threading.Barrier(size), dict[Any, Any]()
    ranks = [Rank(rank, size, board, all_here) for rank in range(size)]
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(work, ranks))


def test_all_ranks_choose_alike_from_what_the_first_has_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = rows_found(monkeypatch, 25_000)
    made = coordination(2, lambda rank: settle(config(folder), folder / str(rank.rank), rank))
    assert [one.data.batch_size for one in made] == [batch_size_for(25_000)] * 2  # of a rank
    assert len(counted) == 1


def test_a_million_rows_of_each_rank_are_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows_found(monkeypatch, 1 << 40)
    with caplog.at_level(logging.INFO, "paddlebox"):
        made = coordination(3, lambda rank: settle(config(folder), folder / str(rank.rank), rank))
    assert [one.data.batch_size for one in made] == [512] * 3
    assert "at least 3000000 training rows" in caplog.text


def test_a_rank_whose_store_is_lost_continues_with_the_values_of_the_others(folder: Path) -> None:
    own = config(folder)
    old = config(folder, data={"batch_size": 7}, table={"embed": {"initial_g2sum": 9.0}}, seed=5)
    commit(folder / "1", old)
    made = coordination(2, lambda rank: settle(own, folder / str(rank.rank), rank))
    assert made == [old, old]


def test_a_later_start_with_other_rows_keeps_the_values(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, own = folder / "run", config(folder, data={"batch_size": "auto"})
    first = settle(own, run_dir)
    assert first.data.batch_size == 32
    commit(run_dir, first)
    counted = rows_found(monkeypatch, 1_000_000)
    assert settle(own, run_dir) == first
    assert not counted


def test_going_back_takes_the_values_of_that_version(folder: Path) -> None:
    run_dir, own = folder / "run", config(folder)
    for number, rate in ((1, 0.25), (2, 0.5)):
        commit(run_dir, config(folder, optimizer={"learning_rate": rate}), number)
    assert settle(own, run_dir).optimizer.learning_rate == 0.5
    assert settle(own, run_dir, back_to="1").optimizer.learning_rate == 0.25


def test_a_store_that_a_kill_left_without_a_version_is_as_none(folder: Path) -> None:
    (folder / "run/store/manifest").mkdir(parents=True)
    assert settle(config(folder), folder / "run").data.batch_size == 32


def test_few_slots_have_a_higher_rate_and_what_is_named_is_kept(folder: Path) -> None:
    embed = settle(config(folder), folder / "run").table.embed
    assert (embed.learning_rate, embed.initial_g2sum) == (0.125, 1.0)  # of 8 slots
    named = config(folder, table={"embed": {"learning_rate": 0.3, "initial_g2sum": 2.0}})
    assert settle(named, folder / "run").table == named.table
    one = Slots.model_validate({"slots": [slot.model_dump() for slot in SLOTS.slots[:2]]})
    assert chosen(config(folder), one, []).table.embed.learning_rate == 0.2
    items = config(folder, extra_tables={"items": {}})
    listed = [slot.model_dump() for slot in SLOTS.slots]
    two = Slots.model_validate({"slots": [*listed[:-1], listed[-1] | {"table": "items"}]})
    assert [t.embed.learning_rate for t in chosen(items, two, []).tables] == [0.125] * 2
    other = config(folder, table={"embed": {"rule": "ftrl"}})
    assert settle(other, folder / "run").table == other.table


@pytest.mark.parametrize("model", ["lr", "fm"])
def test_models_without_a_network_have_rates_of_their_own(folder: Path, model: str) -> None:
    once = {"epochs": 1}
    made = settle(config(folder, model={"type": model}, trainer=once), folder / "run")
    assert (made.table.embed.learning_rate, made.optimizer.learning_rate) == (0.2, 0.1)
    named = config(folder, model={"type": model}, optimizer={"learning_rate": 0.3})
    assert settle(named, folder / "run").optimizer == named.optimizer


def test_a_regression_of_few_rows_has_several_epochs_at_a_lower_rate(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows_found(monkeypatch, 199_999)  # in each of two passes
    regression = {"type": "lr"}
    with caplog.at_level(logging.INFO, "paddlebox"):
        made = settle(config(folder, model=regression), folder / "run")
    assert (made.trainer.epochs, made.table.embed.learning_rate) == (5, 0.1)
    assert "trainer.epochs 5 (model lr, about 399998 training rows)" in caplog.text
    dated = config(folder, model=regression, data={"date": "20240101"})
    assert settle(dated, folder / "other").trainer.epochs == 1
    assert settle(config(folder, model={"type": "fm"}), folder / "other").trainer.epochs == 1
    rows_found(monkeypatch, 200_000)
    many = settle(config(folder, model=regression), folder / "other")
    assert (many.trainer.epochs, many.table.embed.learning_rate) == (1, 0.2)


def test_long_lists_have_a_lower_rate_in_a_regression_of_several_epochs(folder: Path) -> None:
    slots = make_slots(click="label", user="sparse", words="sparse")
    for name in "ab":
        (folder / name).write_text("1 1 1 5 47 " + " ".join(map(str, range(1, 48))) + "\n")

    def rate(model: str, **more: Any) -> float:
        own = config(folder, model={"type": model}, **more)
        return settle(own, folder / "run", slots=slots).table.embed.learning_rate

    assert rate("lr") == 0.05  # 48 ids in a row
    assert rate("lr", trainer={"epochs": 1}) == rate("fm") == 0.2
    assert rate("lr", table={"embed": {"learning_rate": 0.3}}) == 0.3


def test_later_starts_keep_the_epochs_that_were_chosen_unless_they_name_others(
    folder: Path,
) -> None:
    own = config(folder, model={"type": "lr"})
    commit(folder / "run", settle(own, folder / "run"))
    assert settle(own, folder / "run").trainer.epochs == 5
    more = config(folder, model={"type": "lr"}, trainer={"epochs": 7})
    assert settle(more, folder / "run").trainer.epochs == 7


def test_a_network_of_few_rows_has_a_second_epoch_with_new_rows(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def made(
        rows: int, source: Any = None, filled: bool = False, **changes: Any
    ) -> tuple[int, bool]:
        rows_found(monkeypatch, rows)
        data = {"files_per_pass": 0, **changes.pop("data", {})}
        own = config(folder, data=data, **{"model": {"type": "deepfm"}, **changes})
        trainer = settle(own, folder / "run", source=source, filled=filled).trainer
        return trainer.epochs, trainer.reset_rows

    with caplog.at_level(logging.INFO, "paddlebox"):
        assert made(2000) == made(99_999) == (2, True)
    assert "trainer.epochs 2, trainer.reset_rows (about 2000 training rows)" in caplog.text
    assert made(1999) == made(100_000) == (1, False)
    assert made(2000, trainer={"epochs": 3}) == (3, False)
    for model in ("fm", "custom"):
        custom = {"layer": "a.py:Layer"} if model == "custom" else {}
        allowed = {"allow_commands": True}
        assert made(2000, model={"type": model, **custom}, security=allowed) == (1, False)
    for data in ({"files_per_pass": 1}, {"date": "20240101"}, {"sequences": {"user": "a"}}):
        assert made(2000, data=data) == (1, False)
    assert made(2000, save={"out": str(folder / "saves")}) == (1, False)
    source = settle(config(folder), folder / "source").model_dump(mode="json")
    assert made(2000, source=source, filled=True) == made(2000, filled=True) == (1, False)


@pytest.mark.parametrize("phases", [False, True])
def test_parameters_that_ranks_average_now_and_then_are_not_averaged_over_the_steps(
    folder: Path, phases: bool
) -> None:
    dense = {"ranks": {"sync_weight_step": 16}}
    bare = {"model": {"type": "dnn"}}
    more: dict[str, Any] = {"phases": {"join": bare, "update": bare}} if phases else {}
    fields = config(folder).model_dump(exclude_unset=True) | dense | more
    if phases:
        fields.pop("model")
        fields["data"]["logkey"] = True
    made = settle(Config.model_validate(fields), folder / "run")
    assert made.optimizer.averaging == 0.0
    assert [phase.optimizer.averaging for phase in made.phases.values()] == [0.0] * 2 * phases
    assert Config.model_validate(made.model_dump(mode="json")) == made
    named = config(folder, optimizer={"averaging": 0.5}, **dense)
    assert settle(named, folder / "run").optimizer.averaging == 0.5  # refused further on


def test_a_warm_start_takes_key_space_and_use_cvm_of_its_source(folder: Path) -> None:
    old = config(
        folder,
        data={"key_space": "shared", "batch_size": 7},
        model={"type": "dnn", "use_cvm": True},
    )
    source = old.model_dump(mode="json")
    made = settle(config(folder, model={"type": "deepfm"}), folder / "run", source=source)
    assert (made.data.key_space, made.model.use_cvm) == ("shared", True)
    assert made.data.batch_size == 32, "others are chosen"
    named = config(
        folder,
        data={"key_space": "per_slot"},
        model={"type": "dnn", "use_cvm": False},
    )
    made = settle(named, folder / "run", source=source)
    assert (made.data.key_space, made.model.use_cvm) == ("per_slot", False)
    bare = {"model": {"type": "dnn"}}
    fields = config(folder, data={"logkey": True}).model_dump(exclude_unset=True)
    del fields["model"]
    of_phases = Config.model_validate({**fields, "phases": {"join": bare, "update": bare}})
    made = settle(of_phases, folder / "run", source=source)
    assert [made.of_phase(phase).model.use_cvm for phase in Phase] == [True, True]
    assert made.model == made.of_phase(Phase.UPDATE).model


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_configs_of_the_zoo_name_what_a_run_would_choose_and_what_they_were_measured_with(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    own = load_config(path)
    plan = [PlannedPass(1, 1, ["no file is counted"])]
    assert chosen(own, load_slots(own.data.slots), plan) == own
    assert {"batch_size", "key_space"} <= own.data.model_fields_set
    for part in own.phases.values() or [own]:
        assert "averaging" in part.optimizer.model_fields_set
        assert "use_cvm" in part.model.model_fields_set or not hasattr(part.model, "hidden")


@pytest.mark.parametrize(
    ("form", "lines"), [({}, 3), ({"header": False}, 4), ({"skip": 2}, 1), ({"skip": 9}, 0)]
)
def test_lines_before_the_rows_of_a_csv_are_not_counted(
    tmp_path: Path, form: dict[str, Any], lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("click,user\n1,2\n0,3\n1,4\n")
    own = config(tmp_path, data={"format": "csv", "files_per_pass": 2})
    with caplog.at_level(logging.INFO, "paddlebox"):
        settle(own, tmp_path / "run", slots=SLOTS.model_copy(update={"csv": Csv(**form)}))
    assert f"(about {2 * lines} training rows)" in caplog.text


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_rows_of_text_are_its_lines(tmp_path: Path, end: bytes, packed: bool) -> None:
    text = b"\n".join([b"click,user", *[b"1,x" * 300] * 9999]) + end  # several chunks
    whole = gzip.compress(text, mtime=0) if packed else text
    (tmp_path / "a").write_bytes(whole)
    own = config(tmp_path, data={"format": "csv"})
    assert FirstLook(own, SLOTS).rows([str(tmp_path / "a")], 1 << 40) == 9_999
    if packed:  # reading on would find the end missing
        (tmp_path / "a").write_bytes(whole[:-9])
        with pytest.raises(DataError):
            FirstLook(own, SLOTS).rows([str(tmp_path / "a")], 1 << 40)
    assert FirstLook(own, SLOTS).rows([str(tmp_path / "a")], 5) == 5


def test_rows_of_columns_are_what_their_files_say(tmp_path: Path) -> None:
    table = pa.table({"click": list(range(7))})
    pq.write_table(table, tmp_path / "a", row_group_size=2)
    own = config(tmp_path, data={"format": "parquet"})
    assert FirstLook(own, SLOTS).rows([str(tmp_path / "a")] * 2, 100) == 14
    with pa.OSFile(str(tmp_path / "a"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table, max_chunksize=3)
    with pytest.raises(DataError, match=str(tmp_path / "a")):
        FirstLook(own, SLOTS).rows([str(tmp_path / "a")], 100)
    own = config(tmp_path, data={"format": "arrow"})
    assert FirstLook(own, SLOTS).rows([str(tmp_path / "a")] * 2, 100) == 14


def of_batches(*batches: int, first: int = 1) -> Lines:
    """Of passes with so many each."""
    passes = enumerate(batches, first)
    return Lines(1, [{"pass": n, "samples": 1, "batches": count} for n, count in passes])


@pytest.mark.parametrize(
    ("lines", "warned"),
    [
        (of_batches(299), True),
        (of_batches(150, 149), True),
        (of_batches(150, 150), False),  # the first pass may be of an earlier start
        (of_batches(10, first=7), False),  # lines that are lost
    ],
)
def test_a_run_of_few_steps_is_warned_of_with_what_to_change(
    folder: Path, caplog: pytest.LogCaptureFixture, lines: Lines, warned: bool
) -> None:
    warn_of_few_steps(config(folder, data={"batch_size": 64}), lines)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == warned
    if warned:
        assert "run: the run ends after 299 training steps of data.batch_size 64" in said[0]
        assert said[0].endswith("learn well: data.batch_size: auto takes 32 for so few rows")
        warn_of_few_steps(config(folder, data={"batch_size": 32}), lines)
        assert caplog.records[-1].getMessage().endswith("learn well: train on more data")


STARTS = """
import json, logging, sys
from pathlib import Path
from paddlebox.config import load_config
from paddlebox.errors import ConfigError
from paddlebox.launch import cpu
folder = Path(sys.argv[1])
cpu.apply(load_config(folder / "config.json").trainer.program, 1)
from paddlebox.store import run_config
from paddlebox.training import run
said, found = [], []
class Kept(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("paddlebox").addHandler(Kept(logging.WARNING))
for overrides in json.loads(sys.argv[2]):
    said.clear()
    try:
        run.train(load_config(folder / "config.json", overrides), folder / "run")
    except ConfigError as error:
        said.append(str(error))
    written = json.loads((folder / "run/config.json").read_text())
    committed = run_config.of_newest(folder / "run")[0].model_dump(mode="json")
    found.append([written, committed, [*said]])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_run_stores_what_it_chose_and_later_starts_continue_with_it(folder: Path) -> None:
    (folder / "slots.yaml").write_text(json.dumps(SLOTS.model_dump(mode="json")))
    own = config(folder, data={"slots": str(folder / "slots.yaml")})
    fields = own.model_dump(mode="json", exclude_unset=True)
    fields["model"]["hidden"] = [2]
    (folder / "config.json").write_text(json.dumps(fields))
    starts = [
        *([], ["trainer.epochs=2"], ["trainer.epochs=3", "data.batch_size=1"]),
        ["trainer.epochs=4", "data.key_space=shared"],
    ]
    first, second, third, refused = run_python(STARTS, str(folder), json.dumps(starts))
    for written, committed, said in (first, second):
        assert written == committed
        assert written["data"]["batch_size"] == 32
        assert written["table"]["embed"]["learning_rate"] == 0.125
        assert not [text for text in said if "goes on with" in text]
    assert ["ends after 4 training steps" in text for text in second[2]].count(True) == 1
    assert third[1]["data"]["batch_size"] == 1
    assert "goes on with data.batch_size: was 32, now 1" in third[2]
    assert "ends after 8 training steps of data.batch_size 1;" in third[2][-1]
    assert refused[1] == third[1]
    assert ['data.key_space: was "per_slot", now "shared"' in text for text in refused[2]] == [True]


def test_a_network_of_few_rows_is_small_unless_it_is_named_or_of_another_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def made(rows: int, source: Any = None, filled: bool = False, **model: Any) -> tuple[int, ...]:
        rows_found(monkeypatch, rows)
        own = config(folder, data={"files_per_pass": 0}, model={"type": "deepfm", **model})
        found: Any = settle(own, folder / "run", source=source, filled=filled).model
        return tuple(found.hidden)

    with caplog.at_level(logging.INFO, "paddlebox"):
        assert made(2000) == made(99_999, type="dcn_v2") == (256, 128)
    assert "model.hidden [256, 128] (about 2000 training rows)" in caplog.text
    wide = (400, 400, 400)
    assert made(1999) == made(100_000) == made(2000, filled=True) == wide
    assert made(2000, hidden=[7]) == (7,)
    theirs = config(folder, model={"type": "deepfm", "hidden": [5]})
    source = settle(theirs, folder / "source").model_dump(mode="json")
    assert made(2000, source=source, filled=True) == (5,)
    assert made(2000, source=source, filled=True, hidden=[7]) == (7,)
    assert made(2000, source=source, filled=True, type="dnn") == wide  # of another network


def test_a_value_of_the_source_that_the_config_does_not_allow_is_an_error(folder: Path) -> None:
    theirs = config(folder, model={"type": "lr", "click_prior": True})
    source = settle(theirs, folder / "source").model_dump(mode="json")
    open_value = {"type": "lr", "click_prior": "auto"}
    own = config(folder, model=open_value, extra_tables={"wide": {}})
    with pytest.raises(
        ConfigError, match=r"taken over from the source of the rows\): model\.click_prior does"
    ):
        settle(own, folder / "run", source=source)
    named = {"type": "lr", "click_prior": False}
    own = config(folder, model=named, extra_tables={"wide": {}})
    assert not settle(own, folder / "run", source=source).model.click_prior


def test_logistic_regression_has_one_epoch_if_click_priors_of_a_second_are_refused(
    folder: Path,
) -> None:
    model = {"type": "lr", "click_prior": True}
    assert settle(config(folder, model=model), folder / "run").trainer.epochs == 5
    counted = config(folder, model=model, table={"admission": {"min_count": 2}})
    assert settle(counted, folder / "run").trainer.epochs == 1


def test_histories_of_users_have_one_epoch(folder: Path) -> None:
    plain = settle(config(folder, model={"type": "lr"}), folder / "plain")
    assert plain.trainer.epochs == 5
    users = {"sequences": {"user": "a", "history": {"length": 4}}}
    made = settle(config(folder, model={"type": "lr"}, data=users), folder / "run")
    assert made.trainer.epochs == 1


def test_missing_files_to_evaluate_on_are_warned_of_before_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    there = tmp_path / "there"
    there.touch()
    warn_of_missing_tests(make_config(data={"test_files": [str(there)]}))
    assert not caplog.records
    warn_of_missing_tests(make_config(data={"test_files": [str(tmp_path / "none")]}))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert re.match(r"data\.test_files, .*none: no such file", caplog.messages[0])
