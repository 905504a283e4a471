"""docs/upstream_names.md says truly of every name of PaddleBox what it is here."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from paddlebox.errors import ConfigError
from tests.support.fixtures import WriteLines
from tests.upstream.conftest import OpenUpstream

PAGE = Path(__file__).resolve().parents[2] / "docs" / "upstream_names.md"


class Name(NamedTuple):
    """A row of the page.

    Attributes:
        owner: the class or module of PaddleBox that defines it.
        status: same, different, replaced or refused.
        here: the dotted path of its counterpart. Empty: the same name in the classes of CLASSES;
            there is no such name here if it is refused and its owner is no such class.
    """

    name: str
    owner: str
    status: str
    here: str
    note: str


_ROW = re.compile(
    r"\| (`\w+`(?:, `\w+`)*) \| `([^`]+)` \| (same|different|replaced|refused) "
    r"\| (?:`(paddle(?:box)?\.[\w.]+)`(?:: )?)?(.*?) ?\|"
)


def read_page() -> dict[str, list[Name]]:
    """Title of a section -> its names. A row may have several names."""
    groups = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        _, _, table = text.partition("\n| name | class or module | here | |\n|---|---|---|---|\n")
        rows = [(line, _ROW.fullmatch(line)) for line in table.strip().splitlines()]
        assert all(row for _, row in rows), [line for line, row in rows if row is None]
        if rows:
            groups[title] = [
                Name(name, *row.groups("")[1:])
                for _, row in rows
                if row is not None
                for name in re.findall(r"\w+", row[1])
            ]
    return groups


PAGE_ROWS = read_page()
DATASETS, PADDLE3, WRAPPER, BOX_PS, FILES, OPERATORS, OTHERS = PAGE_ROWS.values()
HERE = ("same", "different")

# The classes here that have the methods of a class of PaddleBox.
_MEMORY = ("InMemoryDataset", "BoxPSDataset", "PadBoxSlotDataset", "InputTableDataset")
CLASSES = {
    "DatasetFactory": ("DatasetFactory",),
    "DatasetBase": (*_MEMORY, "QueueDataset", "FileInstantDataset"),
    "InMemoryDataset": _MEMORY,
    "BoxPSDataset": _MEMORY[1:],
    "PadBoxSlotDataset": _MEMORY[2:],
    "InputTableDataset": _MEMORY[3:],
    "fleet DatasetBase": (*_MEMORY, "QueueDataset", "FileInstantDataset"),
    "fleet InMemoryDataset": _MEMORY,
    "core.BoxWrapper": ("BoxWrapper",),
    "core.BoxPS": ("BoxPS",),
    "core.BoxFileMgr": ("BoxFileMgr",),
}


def var(name: str, dtype: str = "int64") -> SimpleNamespace:
    return SimpleNamespace(name=name, shape=(-1, 1), dtype=dtype, lod_level=0)


# Arguments as in PaddleBox, in its order. A refused name gets arguments that ask for an effect.
# A name of a dataset is called on a PadBoxSlotDataset, or on the class that NEEDS names.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "create_dataset": ("PadBoxSlotDataset",),
    "set_batch_size": (8,),
    "set_thread": (2,),
    "set_pv_batch_size": (4,),
    "set_filelist": (["a"],),
    "set_use_var": ([var("user")],),
    "set_pipe_command": ("cat",),
    "set_so_parser_name": ("",),
    "set_rank_offset": ("rank_offset",),
    "set_sample_rate": (0.5,),
    "set_fea_eval": (100, True),
    "slots_shuffle": (["user"],),
    "set_input_type": (0,),
    "set_hdfs_config": ("hdfs://nn:9000", "me,secret"),
    "desc": (),
    "set_download_cmd": ("./read_from_afs",),
    "set_ads_offset": ("ads_offset",),
    "set_ads_cur_timestamp": ("a",),
    "set_ads_show_timestamp": ("a",),
    "set_ads_train_mask": ("a",),
    "set_parse_ins_id": (True,),
    "set_parse_content": (True,),
    "set_parse_logkey": (True,),
    "set_enable_pv_merge": (True,),
    "set_merge_by_sid": (False,),
    "set_merge_by_uid": (True, 1, 1024, 512),
    "set_need_time_info": (True,),
    "set_shuffle_and_sort": (True,),
    "set_invalid_users": ({"", "0"},),
    "set_train_timestamp_range": ((1, 2),),
    "set_test_timestamp_range": ((1, 2),),
    "set_test_mode": (True,),
    "preprocess_instance": (),
    "postprocess_instance": (),
    "set_current_phase": (1,),
    "set_merge_by_lineid": (2,),
    "set_feed_type": ("SlotPaddleBoxDataFeed",),
    "set_queue_num": (12,),
    "set_fleet_send_batch_size": (800,),
    "set_fleet_send_sleep_seconds": (2,),
    "set_generate_unique_feasigns": (True, 15),
    "generate_local_tables_unlock": (0, 11, 1, 25, 15),
    "set_date": ("20240101",),
    "load_into_memory": (),
    "preload_into_memory": (),
    "wait_preload_done": (),
    "local_shuffle": (),
    "global_shuffle": (None, 12),
    "release_memory": (),
    "get_memory_data_size": (None,),
    "get_pv_data_size": (),
    "get_shuffle_data_size": (None,),
    "set_graph_config": ({"walk_len": 24},),
    "begin_pass": (),
    "end_pass": (True,),
    "disable_shuffle": (True,),
    "disable_polling": (True,),
    "preload_into_disk": ("", 4),
    "wait_load_disk_done": (),
    "load_into_disk": ("", 4),
    "set_archivefile": (True,),
    "set_index_parser": ("",),
    "set_index_filelist": (["index"],),
    # Paddle 3
    "init": (),
    "update_settings": (),
    "_init_distributed_settings": (),
    "_set_uid_slot": ("6048",),
    "_set_shuffle_by_uid": (True,),
    "_set_use_ps_gpu": (1,),
    "_set_heter_ps": (True,),
    "_set_trainer_num": (1,),
    "tdm_sample": ("tree", "path", [1], 1, False, 0, 1),
    "_prepare_to_run": (),
    # BoxWrapper
    "save_base": ("", "{tmp}/20240101/base", "20240101"),
    "save_delta": ("{tmp}/20240101/delta-2",),
    "merge_model": ("{tmp}/20240101/base", "{tmp}/20240101/merged"),
    "merge_multi_models": (["{tmp}/20240101/base"], "{tmp}/20240101/merged-2"),
    "load_ssd2mem": ("20240101",),
    "shrink_table": (),
    "shrink_resource": (),
    "initialize_gpu_and_load_model": ("", [1, 2], ["click"], "", {}),
    "set_phase": (1,),
    "flip_phase": (),
    "finalize": (),
    "init_metric": ("AucCalculator", "auc", "y", "p", "", "", 1, "", False, 1000000, False, 0, ""),
    "get_metric_msg": ("auc",),
    "get_continue_metric_msg": ("continuous",),
    "get_nan_inf_metric_msg": ("broken",),
    "get_metric_name_list": (-1,),
    "initialize_auc_runner": ([["user"]], 4, 100, ["user", "words"]),
    "set_input_table_dim": (4,),
    "set_dataset_name": ("name",),
    "set_batch_max_ins_number": (100,),
    "show_batch_ins_info": (),
    "print_device_info": (1.5,),
    "release_pool": (),
    "feed_pass": (20240101, [1, 2]),
    "init_afs_api": ("afs://host:1", "me,secret", "conf"),
    # BoxFileMgr; a name that BoxWrapper has, too, has the same arguments
    "BoxFileMgr.init": ("", "me,secret", ""),
    "list_dir": ("{tmp}",),
    "makedir": ("{tmp}/folder",),
    "exists": ("{tmp}",),
    "download": ("{tmp}/a.txt", "{tmp}/copy"),
    "upload": ("{tmp}/a.txt", "{tmp}/other"),
    "remove": ("{tmp}/folder",),
    "file_size": ("{tmp}/a.txt",),
    "dus": ("{tmp}",),
    "truncate": ("{tmp}/a.txt", 3),
    "touch": ("{tmp}/new",),
    "rename": ("{tmp}/new", "{tmp}/newer"),
    "list_info": ("{tmp}",),
    "count": ("{tmp}",),
    # BoxPS
    "BoxPS.set_date": (2024, 1, 2),
    "wait_feed_pass_done": (),
    "read_ins_into_memory": (),
    "BoxPS.slots_shuffle": ({"user"},),
}
# The state that a name of a dataset needs: a class, or the last call before it.
NEEDS = {
    "set_index_parser": "InputTableDataset",
    "set_index_filelist": "InputTableDataset",
    "set_input_table_dim": "InputTableDataset",
    "wait_preload_done": "preload_into_memory",
    "wait_feed_pass_done": "preload_into_memory",
    "wait_load_disk_done": "preload_into_disk",
    "begin_pass": "load_into_memory",
    "slots_shuffle": "begin_pass",
    "preprocess_instance": "begin_pass",
    "postprocess_instance": "begin_pass",
    "end_pass": "batches",
}


def methods(*groups: list[Name]) -> list[Name]:
    return [one for group in groups for one in group if not one.here and one.owner in CLASSES]


def arguments_of(name: Name, tmp: str) -> tuple[Any, ...]:
    plain = name.name if name.name in ARGUMENTS else name.name.removeprefix("_")
    owned = f"{CLASSES[name.owner][0]}.{plain}"
    given = ARGUMENTS[owned if owned in ARGUMENTS else plain]

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(part) for part in value]
        return value.replace("{tmp}", tmp) if isinstance(value, str) else value

    return tuple(filled(value) for value in given)


@pytest.fixture
def prepared(
    open_upstream: OpenUpstream, write_lines: WriteLines, tmp_path: Path
) -> Callable[[str], Any]:
    """Opens a dataset in the state that a name needs."""

    def prepare(name: str) -> Any:
        needs = NEEDS.get(name, "")
        kind = needs if needs.endswith("Dataset") else "PadBoxSlotDataset"
        table = {"folder": tmp_path / "store"}
        dataset = open_upstream(kind, table, batch_size=4, allow_commands=True)
        dataset.set_fea_eval(10)
        dataset.set_filelist([write_lines("a.txt", [f"1 0 2 0 0 1 {n} 1 7" for n in range(1, 9)])])
        if needs.startswith("preload"):
            getattr(dataset, needs)()
        if needs in ("load_into_memory", "begin_pass", "batches"):
            dataset.load_into_memory()
        if needs in ("begin_pass", "batches"):
            dataset.begin_pass()
        if needs == "batches":
            list(dataset.batches())
        return dataset

    return prepare


def ended(dataset: Any) -> None:
    """Leaves the dataset such that its table can be closed."""
    if dataset._loader.busy:
        dataset.wait_preload_done()
    if dataset._stager.current is not None:
        dataset.abandon_pass()


@pytest.mark.parametrize("name", methods(DATASETS, PADDLE3), ids=lambda one: one.name)
def test_a_method_of_the_datasets(
    prepared: Callable[[str], Any], name: Name, tmp_path: Path
) -> None:
    from paddlebox import compat

    for here in CLASSES[name.owner]:
        assert callable(getattr(getattr(compat, here), name.name)), here
    dataset = prepared(name.name)
    owner = compat.DatasetFactory(dataset._table) if name.name == "create_dataset" else dataset
    called(name, owner, tmp_path)
    ended(dataset)


@pytest.mark.parametrize("name", methods(BOX_PS), ids=lambda one: one.name)
def test_a_method_of_box_ps(prepared: Callable[[str], Any], name: Name, tmp_path: Path) -> None:
    from paddlebox import compat

    dataset = prepared(name.name)
    made = compat.BoxPS(dataset)
    if name.name != "BoxPS":
        called(name, made, tmp_path)
    ended(dataset)


@pytest.mark.parametrize("name", methods(WRAPPER), ids=lambda one: one.name)
def test_a_method_of_the_wrapper(
    prepared: Callable[[str], Any], name: Name, tmp_path: Path
) -> None:
    from paddlebox import compat

    dataset = prepared(name.name)
    box = compat.BoxWrapper(dataset._table, dataset)
    if name.name in ("save_base", "save_delta", "merge_model", "merge_multi_models"):
        dataset.load_into_memory()
        dataset.begin_pass()
        list(dataset.batches())
        dataset.end_pass()
    if name.name.startswith(("merge", "save_delta")):
        box.save_base("", f"{tmp_path}/20240101/base", "20240101")
    if name.name.startswith("get_"):
        for method, metric in (
            ("AucCalculator", "auc"),
            ("ContinueMaskCalculator", "continuous"),
            ("NanInfCalculator", "broken"),
        ):
            box.init_metric(method, metric, "y", "p", "", "", 1, "", False)
    called(name, box, tmp_path)


@pytest.mark.parametrize("name", methods(FILES), ids=lambda one: one.name)
def test_a_method_of_the_file_manager(name: Name, tmp_path: Path, write_lines: WriteLines) -> None:
    from paddlebox import compat

    write_lines("a.txt", ["abc"])
    (tmp_path / "new").touch()
    (tmp_path / "folder").mkdir()
    files = compat.BoxFileMgr()
    if name.name != "BoxFileMgr":
        files.init("", "", "")
        assert called(name, files, tmp_path) is not False  # the result of a call that failed


def called(name: Name, owner: Any, tmp_path: Path) -> Any:
    """What the method returns; None if it is refused, as it should be."""
    method = getattr(owner, name.name)
    arguments = arguments_of(name, str(tmp_path))
    if name.status == "refused":
        with pytest.raises(ConfigError) as raised:
            method(*arguments)
        plain = name.name if name.name in str(raised.value) else name.name.removeprefix("_")
        assert str(raised.value) == f"{plain}: {name.note}"
        return None
    return method(*arguments)


@pytest.mark.parametrize(
    "name",
    [one for group in PAGE_ROWS.values() for one in group if one.here],
    ids=lambda one: one.name,
)
def test_what_a_row_names_is_there_and_callable(name: Name) -> None:
    module, _, rest = name.here.partition(".")
    at: Any = importlib.import_module(module)
    for part in rest.split("."):
        at = (
            getattr(at, part)
            if hasattr(at, part)
            else importlib.import_module(f"{at.__name__}.{part}")
        )
    assert callable(at)


def test_every_method_of_the_classes_is_listed_or_ours() -> None:
    from paddlebox import compat

    dataset_page = (PAGE.parent / "dataset.md").read_text()
    own = set(re.findall(r"`(\w+)", dataset_page.partition("## Our names")[2]))
    listed = {one.name for one in (*DATASETS, *PADDLE3)}
    # For code of this package.
    inside = {"batches", "heartbeat", "label_variable", "preload", "wait_loaded", "set_load"}
    inside |= {"make_page_views", "undo_page_views", "numbers_at"}
    for here in CLASSES["DatasetBase"]:
        public = {name for name in dir(getattr(compat, here)) if not name.startswith("_")}
        assert public - listed - own - inside == set(), here
    wrapper_page = (PAGE.parent / "box_wrapper.md").read_text()
    own = set(re.findall(r"`(\w+)", wrapper_page.partition("## Our names")[2]))
    for group, made in (
        (WRAPPER, compat.BoxWrapper),
        (BOX_PS, compat.BoxPS),
        (FILES, compat.BoxFileMgr),
    ):
        public = {name for name in dir(made) if not name.startswith("_")}
        assert public - {one.name for one in group} - own == set(), made


def test_no_name_is_listed_twice_and_a_note_ends_without_a_full_stop() -> None:
    for title, group in PAGE_ROWS.items():
        listed = [one.name for one in group]
        assert len(set(listed)) == len(listed), title
        for one in group:
            assert not one.note.endswith("."), one.name
            assert one.note or one.status in HERE, one.name


def test_as_many_names_do_their_work_as_the_page_says() -> None:
    def counts(group: list[Name]) -> list[int]:
        """How many work, are accepted without effect, and are refused."""
        methods = [one for one in group if one.name != "BoxWrapper"]  # the class itself
        here = [one for one in methods if one.status in HERE]
        idle = [one for one in here if "without effect" in one.note.partition(",")[0]]
        return [len(here) - len(idle), len(idle), len(methods) - len(here)]

    found = [*counts(DATASETS), *counts(WRAPPER)]
    assert found == [55, 5, 3, 22, 2, 2]
    words = re.sub(r"\s+", " ", PAGE.read_text())
    assert "Of the 63 methods of the dataset classes, 55 do their work, 5 have" in words
    assert "Of the 26 methods of `core.BoxWrapper` these are 22, 2 and 2." in words


def test_layers_are_an_attribute_of_the_package() -> None:
    from paddlebox import compat

    assert callable(compat.layers.scaled_fc)
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        getattr(compat, "other")  # noqa: B009  # mypy knows that it is not there
