"""The settings of PaddleBox's datasets, by its names and by those of Paddle 3."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paddlebox.errors import ConfigError, PassError
from tests.support.fixtures import WriteLines
from tests.support.instances import multislot_lines
from tests.upstream.conftest import OpenUpstream

CLASSES = (
    *("InMemoryDataset", "BoxPSDataset", "PadBoxSlotDataset"),
    *("InputTableDataset", "QueueDataset", "FileInstantDataset"),
)


def var(name: str, width: int = 1, dtype: str = "int64") -> SimpleNamespace:
    return SimpleNamespace(name=name, shape=(-1, width), dtype=dtype, lod_level=0)


VARIABLES = [var("click", dtype="float32"), var("age", 2, "float32"), var("user"), var("words", 3)]


class TestSlotsOfVariables:
    def test_setters_in_any_order_and_no_init(
        self, open_upstream: OpenUpstream, write_lines: WriteLines
    ) -> None:
        dataset = open_upstream("BoxPSDataset")
        dataset.set_batch_size(2)
        dataset.set_thread(1)
        dataset.set_parse_ins_id(True)
        dataset.set_pipe_command("cat")
        dataset.set_use_var(VARIABLES, label="click")
        lines = ["1 a 1 1 2 0.5 1.5 1 7 2 8 9", "1 b 1 0 2 0 0 1 3 1 8", "1 c 1 0 2 0 0 1 4 1 8"]
        dataset.set_filelist([write_lines("a.txt", lines)])
        dataset.load_into_memory()
        dataset.begin_pass()
        first, second = dataset.batches()
        assert dataset.ins_ids(0, 3) == ["a", "b", "c"]
        dataset.end_pass()
        assert first["click"].tolist() == [[1], [0]]
        assert first["age"].tolist() == [[0.5, 1.5], [0, 0]]
        assert first["words"].tolist() == [[8, 9, 0], [8, 0, 0]]
        assert second["user"].tolist() == [[4]]

    def test_a_pass_without_instances_has_no_batches(
        self, open_upstream: OpenUpstream, write_lines: WriteLines
    ) -> None:
        dataset = open_upstream("InMemoryDataset")
        dataset.set_use_var(VARIABLES, label="click")
        for lines, batches in (([], 0), (["1 1 2 0.5 1.5 1 7 2 8 9"], 1)):
            dataset.set_filelist([write_lines(f"{batches}.txt", lines)])
            dataset.load_into_memory()
            dataset.begin_pass()
            assert len(list(dataset.batches())) == batches
            dataset.end_pass()

    def test_made_inputs_are_no_slots(self, open_upstream: OpenUpstream) -> None:
        dataset = open_upstream("PadBoxSlotDataset")
        dataset.set_parse_logkey(True)
        dataset.set_rank_offset("ranks")
        made = [var("ranks", 7, "int32"), var("box_search_id"), var("box_show_click", 2, "float32")]
        dataset.set_use_var([*VARIABLES, *made], label="click")
        assert dataset.slot_names == ["click", "age", "user", "words"]

    def test_without_slots_a_load_names_the_missing_calls(
        self, open_upstream: OpenUpstream
    ) -> None:
        for name, call in (
            ("InMemoryDataset", "load_into_memory"),
            ("PadBoxSlotDataset", "load_into_disk"),
            ("QueueDataset", "batches"),
        ):
            dataset = open_upstream(name)
            dataset.set_filelist(["a.txt"])
            with pytest.raises(PassError, match="init or set_use_var is missing"):
                list(getattr(dataset, call)() or [])
            dataset._table.close()

    def test_without_a_label_each_slot_may_be_a_target(
        self, open_upstream: OpenUpstream, write_lines: WriteLines
    ) -> None:
        dataset = open_upstream("PadBoxSlotDataset")
        dataset.disable_shuffle()
        variables = [var("spent", dtype="float32"), var("stars"), var("user")]
        dataset.set_use_var(variables)
        lines = ["1 -2.5 1 5 1 7", "1 300 1 0 1 8"]
        dataset.set_filelist([write_lines("a.txt", lines)])
        dataset.load_into_memory()
        dataset.begin_pass()
        (batch,) = dataset.batches()
        dataset.end_pass()
        assert batch.keys() == {"spent", "stars", "user"}
        assert batch["spent"].tolist() == [[-2.5], [300]]
        assert batch["stars"].tolist() == [[5], [0]]
        assert (dataset.tasks, dataset.label_variable) == ((), None)

    def test_slots_yaml_may_have_no_label(
        self, open_upstream: OpenUpstream, write_lines: WriteLines
    ) -> None:
        slots = ["slots:", "  - {name: spent, type: dense}", "  - {name: user, type: sparse}"]
        dataset = open_upstream("InMemoryDataset", slots=write_lines("slots.yaml", slots))
        dataset.set_filelist([write_lines("a.txt", ["1 -2.5 1 7", "1 300 1 8"])])
        dataset.load_into_memory()
        dataset.begin_pass()
        (batch,) = dataset.batches()
        dataset.end_pass()
        assert "box_label" not in batch
        assert batch["box_dense"].tolist() == [[-2.5], [300]]
        assert batch["box_show_click"].tolist() == [[1, 0], [1, 0]]

    def test_a_wrong_label_packed_inputs_without_one_and_an_open_width_are_errors(
        self, open_upstream: OpenUpstream
    ) -> None:
        dataset = open_upstream("InMemoryDataset")
        with pytest.raises(ConfigError, match="expected one of click, age, user, words as the lab"):
            dataset.set_use_var(VARIABLES, label="clik")
        with pytest.raises(ConfigError, match="box_ids: packed inputs need a label, found none"):
            dataset.set_use_var([*VARIABLES, var("box_ids")])
        with pytest.raises(ConfigError, match="one variable that is a slot, found box_ids: list"):
            dataset.set_use_var([var("box_ids")])
        with pytest.raises(ConfigError, match=r"'age' has shape \(-1, -1\)"):
            dataset.set_use_var([var("age", -1, "float32"), var("click")], label="click")

    def test_with_slots_the_variables_choose_among_them(self, open_upstream: OpenUpstream) -> None:
        dataset = open_upstream("InMemoryDataset", batch_size=4)
        dataset.set_use_var([var("user")])
        assert dataset.slot_names == ["click", "age", "user", "words"]


class TestPaddle3:
    def test_init_takes_its_keywords(self, open_upstream: OpenUpstream) -> None:
        dataset = open_upstream(
            "BoxPSDataset",
            slots=None,
            thread_num=2,
            use_var=VARIABLES,
            label="click",
            pipe_command="cat",
            input_type=0,
            fs_name="",
            fs_ugi="",
            download_cmd="cat",
            data_feed_type="PaddleBoxDataFeed",
            queue_num=3,
            rank_offset="r",
            pv_batch_size=6,
            parse_logkey=True,
            merge_by_sid=False,
            enable_pv_merge=True,
        )
        options, data = dataset.options, dataset.options.load.data
        assert (options.rank_offset, options.enable_pv_merge) == ("r", True)
        assert (data.pv_batch_size, data.logkey, data.batch_size) == (6, True, 4)
        assert dataset._merge_by_sid is False

    def test_update_settings_and_distributed_settings(self, open_upstream: OpenUpstream) -> None:
        dataset = open_upstream("InMemoryDataset", batch_size=4)
        dataset._init_distributed_settings(
            merge_size=3, parse_ins_id=True, fea_eval=True, candidate_size=100
        )
        dataset.update_settings(
            batch_size=7,
            thread_num=2,
            pipe_command="cat",
            queue_num=2,
            input_type=0,
            download_cmd="cat",
            parse_content=True,
            fleet_send_batch_size=2,
            fleet_send_sleep_seconds=2,
            fs_name="hdfs://nn:9000",
            fs_ugi="me,secret",
        )
        load = dataset.options.load
        assert (load.data.batch_size, dataset.options.pool_size) == (7, 100)
        assert (load.merge_size, load.parse_content) == (3, True)
        dataset.update_settings(merge_size=-1, fea_eval=True)
        assert (dataset.options.load.merge_size, dataset.options.pool_size) == (3, 10000)
        for call in (dataset.update_settings, dataset._init_distributed_settings):
            with pytest.raises(ConfigError, match="batch_sizes: expected "):
                call(batch_sizes=3)

    def test_a_shuffle_by_uid_keeps_the_instances_of_a_user_together(
        self, open_upstream: OpenUpstream, write_lines: WriteLines
    ) -> None:
        dataset = open_upstream("InMemoryDataset", use_var=[var("user")], batch_size=100)
        dataset._set_uid_slot("user")
        dataset._set_shuffle_by_uid(True)
        lines = [f"1 0 2 0 0 1 {1 + n % 7} 1 8" for n in range(42)]
        dataset.set_filelist([write_lines("a.txt", lines)])
        dataset.load_into_memory()
        dataset.global_shuffle()
        dataset.begin_pass()
        (batch,) = dataset.batches()
        dataset.end_pass()
        found = batch["user"][:, 0].tolist()
        assert len({found.index(user) // 6 for user in range(1, 8)}) == 7
        assert all(found[at : at + 6] == [found[at]] * 6 for at in range(0, 42, 6))
        assert found != sorted(found)


class TestSettings:
    def test_paths_on_hdfs_become_uris(self, open_upstream: OpenUpstream) -> None:
        dataset = open_upstream("PadBoxSlotDataset")
        dataset.set_hdfs_config("hdfs://nn:9000", "me,secret")
        dataset.set_filelist(["hdfs:/logs/a", "/local/b", "hdfs://other:1/c", "s3://d/e"])
        assert dataset._filelist == [
            *("hdfs://me@nn:9000/logs/a", "/local/b", "hdfs://other:1/c", "s3://d/e")
        ]
        for name in ("afs://host:1", "", "nn:9000"):
            with pytest.raises(ConfigError, match="set_hdfs_config: expected hdfs://HOST:PORT"):
                dataset.set_hdfs_config(name, "me,secret")

    def test_the_description_is_one_of_paddle(self, open_upstream: OpenUpstream) -> None:
        from google.protobuf import text_format  # type: ignore[import-untyped]
        from paddle.base.proto import data_feed_pb2

        dataset = open_upstream("PadBoxSlotDataset")
        assert 'name: "SlotPaddleBoxDataFeed"' in dataset.desc()
        dataset.set_batch_size(9)
        dataset.set_rank_offset("ranks")
        dataset.set_use_var(VARIABLES, label="click")
        found = text_format.Parse(dataset.desc(), data_feed_pb2.DataFeedDesc())
        assert (found.batch_size, found.pipe_command, found.rank_offset) == (9, "cat", "ranks")
        slots = [(s.name, s.type, s.is_dense, s.is_used) for s in found.multi_slot_desc.slots]
        assert slots == [
            ("click", "float", True, True),
            ("age", "float", True, True),
            ("user", "uint64", False, True),
            ("words", "uint64", False, True),
        ]

    def test_feed_types_are_checked(self, open_upstream: OpenUpstream) -> None:
        dataset = open_upstream("InMemoryDataset")
        dataset.set_feed_type("SlotRecordInMemoryDataFeed")
        assert "SlotRecordInMemoryDataFeed" in dataset.desc()
        with pytest.raises(ConfigError, match="set_feed_type: expected one of Multi"):
            dataset.set_feed_type("MyDataFeed")
        table = open_upstream("InputTableDataset", {"fields": {"name": "other"}})
        with pytest.raises(ConfigError, match="set_feed_type: expected InputTableDataFeed"):
            table.set_feed_type("PaddleBoxDataFeed")
        with pytest.raises(ConfigError, match="expected 0, one instance per line, found 1"):
            dataset.set_input_type(1)

    def test_the_factory_knows_every_class(self, open_upstream: OpenUpstream) -> None:
        from paddlebox import compat

        dataset = open_upstream("QueueDataset")
        factory = compat.DatasetFactory(dataset._table)
        for name in CLASSES:
            made = factory.create_dataset(name)
            assert type(made) is getattr(compat, name)
            made.close()
        assert type(factory.create_dataset()).__name__ == "QueueDataset"
        with pytest.raises(ValueError, match=r"create_dataset: expected one of InMemory.*'My'"):
            factory.create_dataset("My")

    def test_the_names_of_the_package_are_these_classes(self) -> None:
        import paddlebox
        from paddlebox import compat

        for name in ("InMemoryDataset", "BoxPSDataset", "PadBoxSlotDataset", "QueueDataset"):
            assert getattr(paddlebox, name) is getattr(compat, name)
        assert paddlebox.BoxWrapper is compat.BoxWrapper


def test_a_queue_dataset_streams_windows(
    open_upstream: OpenUpstream, write_lines: WriteLines
) -> None:
    for name in ("QueueDataset", "FileInstantDataset"):
        dataset = open_upstream(name)
        dataset.set_use_var(VARIABLES, label="click")
        files = [write_lines(f"{i}.txt", multislot_lines(5, seed=i)) for i in range(2)]
        dataset.set_filelist(files)
        assert sum(len(batch["click"]) for batch in dataset.batches()) == 10
        with pytest.raises(PassError, match="a QueueDataset streams and has no passes"):
            dataset.load_into_memory()
        dataset._table.close()


# ---- input tables


def words_of(data: bytes) -> tuple[list[str], np.ndarray]:
    """A parser of `key;v1;v2` lines."""
    rows = [line.split(";") for line in data.decode().splitlines()]
    return [row[0] for row in rows], np.array([row[1:] for row in rows], np.float32)


class TestInputTable:
    @pytest.mark.parametrize("parser", ["", "words_of"])
    def test_its_rows_are_read_with_each_pass(
        self, open_upstream: OpenUpstream, write_lines: WriteLines, parser: str
    ) -> None:
        dataset = open_upstream(
            "InputTableDataset", batch_size=4, allow_commands=True, use_var=[var("user")]
        )
        mark = ";" if parser else " "
        dataset.set_input_table_dim(2)
        for number in (1, 2):
            words = write_lines(f"words{number}", [mark.join(["w", str(number), "0.5"])])
            dataset.set_index_filelist([words])
            dataset.set_index_parser(f"{Path(__file__)}:{parser}" if parser else "")
            dataset.set_filelist([write_lines("a.txt", multislot_lines(4))])
            dataset.load_into_memory()
            dataset.begin_pass()
            table = dataset.input_table
            row = table.rows_of(["w", "none"]).tolist()
            assert row == [1, 0]
            assert lookup(table.name, row) == [[number, 0.5], [0, 0]]
            list(dataset.batches())
            dataset.end_pass()

    def test_missing_calls_are_named(self, open_upstream: OpenUpstream) -> None:
        dataset = open_upstream("InputTableDataset", batch_size=4)
        dataset.set_filelist(["a.txt"])
        with pytest.raises(PassError, match="set_input_table_dim or set_index_filelist is missing"):
            dataset.load_into_memory()
        with pytest.raises(ConfigError, match="index_parser 'a:b' runs code, which is off"):
            dataset.set_index_parser("a:b")


def lookup(table: str, rows: list[int]) -> Any:
    from paddlebox import ops
    from paddlebox._native import paddle

    paddle.disable_static()
    ids = paddle.to_tensor([[row] for row in rows], "int64")
    return ops.lookup_input(ids, 2, table=table).numpy().tolist()
