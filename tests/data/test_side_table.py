"""Side tables: where their rows come from, their life, and a dataset that leads it."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from paddlebox import ops
from paddlebox._native import paddle
from paddlebox.data.side_table import InputTable, ReplicaCache, SideTable
from paddlebox.errors import DataError, PassError
from tests.support.fixtures import OpenDataset, WriteLines
from tests.support.instances import multislot_lines

Side = TypeVar("Side", bound=SideTable)


@pytest.fixture(autouse=True)
def dygraph() -> None:
    paddle.disable_static()


@pytest.fixture
def made() -> Iterator[Callable[..., Any]]:
    """Makes side tables that the test's end closes: their names are the process's."""
    tables = []

    def make(kind: type[Any], *arguments: Any, **options: Any) -> InputTable | ReplicaCache:
        tables.append(kind(*arguments, **options))
        return tables[-1]

    yield make
    for table in tables:
        if table.is_open:
            table.end_pass()


def int64(ids: ArrayLike) -> Any:
    return paddle.to_tensor(np.array(ids, np.int64))


def begin(table: Side) -> Side:
    table.begin_feed_pass()
    table.begin_pass()
    return table


def feed(table: InputTable | ReplicaCache, *files: str) -> None:
    table.set_filelist(files)
    table.begin_feed_pass()
    table.wait_feed_pass_done()


class TestRows:
    def test_of_an_array_are_copied(self, made: Callable[..., Any]) -> None:
        cache = made(ReplicaCache, "c", 2)
        values = np.arange(6, dtype=np.float64).reshape(3, 2)
        cache.set_values(values)
        values[:] = -1
        begin(cache)
        assert cache.rows == 3
        assert ops.pull_cache_value(int64([2, 0]), 2).numpy().tolist() == [[4, 5], [0, 1]]

    def test_of_files_plain_and_gzip_are_numbered_on(
        self, made: Callable[..., Any], tmp_path: Path
    ) -> None:
        (tmp_path / "a.txt").write_text("0 1 2\r\n\n1\t3\t4")
        (tmp_path / "b.gz").write_bytes(gzip.compress(b"2 5 6\n"))
        cache = made(ReplicaCache, "c", 2)
        cache.set_filelist([str(tmp_path / "a.*"), str(tmp_path / "b.gz")])
        begin(cache)
        out = ops.pull_cache_value(int64([0, 1, 2]), 2).numpy()
        assert out.tolist() == [[1, 2], [3, 4], [5, 6]]

    def test_of_a_file_of_several_chunks(
        self, made: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from paddlebox.data import reader, side_table

        monkeypatch.setattr(
            side_table, "read_chunks", lambda path, **k: reader.read_chunks(path, 64, **k)
        )
        (tmp_path / "a.txt").write_text("".join(f"{i} {i}.5\n" for i in range(1000)))
        cache = made(ReplicaCache, "c", 1)
        cache.set_filelist([str(tmp_path / "a.txt")])
        begin(cache)
        np.testing.assert_array_equal(
            ops.pull_cache_value(int64(range(1000)), 1).numpy()[:, 0], np.arange(1000) + 0.5
        )
        (tmp_path / "a.txt").write_text("".join(f"{i} {i}.5\n" for i in range(500)) + "x 1\n")
        with pytest.raises(DataError, match=r"a\.txt:501: row number 'x', expected 500"):
            feed(cache, str(tmp_path / "a.txt"))

    def test_by_key_have_a_row_of_zeros_for_the_unknown(self, made: Callable[..., Any]) -> None:
        table = made(InputTable, "t", 2)
        table.set_values(["a", "ü"], np.array([[1, 2], [3, 4]]))
        begin(table)
        rows = table.rows_of(["ü", "-", "a", "b", ""])
        assert rows.tolist() == [2, 0, 1, 0, 0]
        assert table.misses == 2  # "-" is no miss
        out = ops.lookup_input(paddle.to_tensor(rows), 2).numpy()
        assert out.tolist() == [[3, 4], [0, 0], [1, 2], [0, 0], [0, 0]]

    @pytest.mark.parametrize(
        ("kind", "text", "message"),
        [
            (InputTable, b"a 1 2\nb 1\n", r"side\.txt:2: 1 values, expected 2: b 1"),
            (InputTable, b"a 1 2\n\nb 1 2 3\n", r"side\.txt:3: more than 2 values"),
            (InputTable, b"a 1 nan\n", r"side\.txt:1: value 2 'nan' is not a finite number"),
            (InputTable, b"a 1 2\nb 1 2\na 3 4\n", r"side\.txt:3: key 'a' .* \S*side\.txt:1 has"),
            (InputTable, b"- 1 2\n", r"side\.txt:1: key '-' occurs twice"),
            (InputTable, b"a 1 \x00\n", r"side\.txt:1: a NUL byte"),
            (InputTable, b"a " + b"1" * (3 << 20) + b"\n", r"side\.txt:1: the line has \d+ bytes"),
            (InputTable, b"\xff\xfe\n", r"side\.txt:1: the line is not UTF-8: \\xff\\xfe"),
            (ReplicaCache, b"0 1 2\n2 1 2\n", r"side\.txt:2: row number '2', expected 1"),
            (ReplicaCache, b"1 2\n", r"side\.txt:1: row number '1', expected 0"),
            (ReplicaCache, gzip.compress(b"0 1 2\n" * 999, mtime=0)[:-9], "damaged gzip stream"),
        ],
    )
    def test_of_hostile_files_are_refused_by_file_and_line(
        self, made: Callable[..., Any], tmp_path: Path, kind: type[Any], text: bytes, message: str
    ) -> None:
        path = tmp_path / "side.txt"
        path.write_bytes(text)
        table = made(kind, "t", 2)
        with pytest.raises(DataError, match=message):
            feed(table, str(path))
        path.write_bytes(b"0 1 2\n")
        feed(table, str(path))  # mended: it may be fed again

    def test_of_no_file(self, made: Callable[..., Any], tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no such file"):
            feed(made(InputTable, "t", 2), str(tmp_path / "absent"))

    @pytest.mark.parametrize(
        ("keys", "values", "message"),
        [
            (["a"], np.ones((1, 3)), r"'t': values have shape \(1, 3\), expected \(N, 2\)"),
            (["a"], np.ones(2), r"shape \(2,\), expected"),
            (["a"], np.ones((2, 2)), "1 keys for 2 rows"),
            (["a", "b"], np.array([[1, 2], [3, np.inf]]), "row 1 are not all finite"),
        ],
    )
    def test_of_arrays_that_do_not_fit_are_refused(
        self, made: Callable[..., Any], keys: list[str], values: np.ndarray, message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            made(InputTable, "t", 2).set_values(keys, values)

    def test_with_a_key_twice_are_refused(self, made: Callable[..., Any]) -> None:
        table = made(InputTable, "t", 1)
        table.set_values(["a", "a"], np.ones((2, 1)))
        table.begin_feed_pass()
        with pytest.raises(DataError, match="row 1 of the array: key 'a' occurs twice"):
            table.begin_pass()

    @pytest.mark.parametrize("arguments", [("", 1), ("t", 0)])
    def test_need_a_name_and_columns(self, arguments: tuple[str, int]) -> None:
        with pytest.raises(ValueError, match="expected a name"):
            ReplicaCache(*arguments)


class TestLife:
    def test_the_next_pass_is_fed_while_one_is_open(self, made: Callable[..., Any]) -> None:
        cache = made(ReplicaCache, "c", 1)
        cache.set_values(np.array([[1], [2]]))
        begin(cache)
        cache.set_values(np.array([[3]]))
        cache.begin_feed_pass()
        cache.wait_feed_pass_done()
        assert ops.pull_cache_value(int64([1]), 1).numpy().tolist() == [[2]]
        cache.end_pass()
        cache.begin_pass()
        assert ops.pull_cache_value(int64([0]), 1).numpy().tolist() == [[3]]

    def test_an_id_of_the_pass_before_is_an_error_or_a_counted_miss(
        self, made: Callable[..., Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        cache, table = made(ReplicaCache, "c", 1), made(InputTable, "t", 1)
        cache.set_values(np.ones((2, 1)))
        table.set_values(["a", "b"], np.ones((2, 1)))
        begin(cache)
        stale = begin(table).rows_of(["b"])
        for side in (cache, table):
            side.end_pass()
        cache.set_values(np.ones((1, 1)))
        table.set_values(["a"], np.ones((1, 1)))
        begin(cache)
        begin(table)
        with pytest.raises(ValueError, match=r"'c': id 1 at position 1, expected .* \[0, 1\)"):
            ops.pull_cache_value(int64([0, 1]), 1)
        assert ops.lookup_input(paddle.to_tensor(stale), 1).numpy().tolist() == [[0]]
        with caplog.at_level(logging.WARNING):
            table.end_pass()
        assert table.misses == 1
        assert "1 ids were outside its 2 rows" in caplog.text

    def test_keys_are_those_of_the_pass_that_is_asked_for(self, made: Callable[..., Any]) -> None:
        table = made(InputTable, "t", 1)
        table.set_values(["a", "b"], np.ones((2, 1)))
        begin(table)
        table.set_values(["b"], np.ones((1, 1)))
        table.begin_feed_pass()
        assert table.rows_of(["b"]).tolist() == [2]
        assert table.rows_of(["b"], feeding=True).tolist() == [1]

    def test_calls_out_of_order_name_the_one_that_is_missing(
        self, made: Callable[..., Any]
    ) -> None:
        table = made(InputTable, "t", 1)
        with pytest.raises(PassError, match=r"input table 't': .* set_filelist or set_values is"):
            table.begin_feed_pass()
        table.set_values(["a"], np.ones((1, 1)))
        for call in (table.wait_feed_pass_done, table.begin_pass):
            with pytest.raises(PassError, match="begin_feed_pass is missing"):
                call()
        for call in (table.end_pass, lambda: table.rows_of(["a"])):
            with pytest.raises(PassError, match="begin_pass is missing"):
                call()
        with pytest.raises(PassError, match="begin_feed_pass is missing"):
            table.rows_of(["a"], feeding=True)
        table.begin_feed_pass()
        with pytest.raises(PassError, match="begin_pass is missing"):
            table.begin_feed_pass()
        table.begin_pass()
        table.begin_feed_pass()
        with pytest.raises(PassError, match="end_pass is missing"):
            table.begin_pass()
        table.drop_feed_pass()
        table.begin_feed_pass()

    def test_two_of_one_name_cannot_be_open_at_once(self, made: Callable[..., Any]) -> None:
        first, second = made(ReplicaCache, "c", 1), made(ReplicaCache, "c", 1)
        other_kind = made(InputTable, "c", 1)
        for cache in (first, second):
            cache.set_values(np.ones((1, 1)))
        other_kind.set_values(["a"], np.ones((1, 1)))
        begin(first)
        begin(other_kind)
        second.begin_feed_pass()
        with pytest.raises(PassError, match="replica cache 'c' is open in a pass already"):
            second.begin_pass()
        first.end_pass()
        second.begin_pass()


KEYS = st.text(st.characters(exclude_characters="\0 \t\r\n", exclude_categories=["Cs"]), min_size=1)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    keys=st.lists(KEYS.filter(lambda k: k != "-"), unique=True, max_size=20),
    unknown=st.lists(KEYS, max_size=5),
    dim=st.integers(1, 40),
    threads=st.integers(1, 3),
    from_file=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_lookups_agree_with_numpy(
    tmp_path: Path,
    keys: list[str],
    unknown: list[str],
    dim: int,
    threads: int,
    from_file: bool,
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    values = random.normal(size=(len(keys), dim)).astype(np.float32)
    table = InputTable("property", dim, threads=threads)
    if from_file:
        lines = (
            f"{k} {' '.join(map(repr, v.tolist()))}\n" for k, v in zip(keys, values, strict=True)
        )
        (tmp_path / "side.txt").write_bytes("".join(lines).encode())
        table.set_filelist([str(tmp_path / "side.txt")])
    else:
        table.set_values(keys, values)
    begin(table)
    try:
        asked = [*keys, *unknown]
        random.shuffle(asked)
        model = np.concatenate([np.zeros((1, dim), np.float32), values])
        expected = [keys.index(k) + 1 if k in keys else 0 for k in asked]
        rows = table.rows_of(asked)
        assert rows.tolist() == expected
        ids = random.integers(-2, len(keys) + 3, (7, 3))
        out = ops.lookup_input(int64(ids), dim, "property").numpy()
        inside = np.where((ids >= 0) & (ids <= len(keys)), ids, 0)
        np.testing.assert_array_equal(out, model[inside])
    finally:
        table.end_pass()


class TestDataset:
    @pytest.fixture
    def files(self, write_lines: WriteLines) -> list[str]:
        return [write_lines("a.txt", multislot_lines(40))]

    def test_side_tables_live_with_its_passes(
        self, made: Callable[..., Any], open_dataset: OpenDataset, files: list[str]
    ) -> None:
        dataset, cache = open_dataset(), made(ReplicaCache, "c", 1)
        dataset.add_side_table(cache)
        dataset.set_filelist(files)
        cache.set_values(np.array([[1]]))
        dataset.preload_into_memory()
        with pytest.raises(PassError, match="end_pass is missing"):
            dataset.add_side_table(made(ReplicaCache, "late", 1))
        dataset.begin_pass()
        cache.set_values(np.array([[2]]))
        dataset.preload_into_memory()
        for expected in (1, 2):
            seen = []
            for _ in dataset.batches():
                seen.append(ops.pull_cache_value(int64([0]), 1).item())
            assert seen == [expected] * 2
            dataset.end_pass()
            assert not cache.is_open
            if expected == 1:
                dataset.begin_pass()

    def test_ids_travel_as_a_dense_slot(
        self, made: Callable[..., Any], open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        last = 2**24 - 1  # the largest id that a dense slot holds exactly
        cache = made(ReplicaCache, "c", 1)
        cache.set_values(np.arange(last + 1, dtype=np.float32)[:, None])
        paddle.enable_static()
        age = paddle.static.data("age", [-1, 2], "float32")
        paddle.disable_static()
        dataset = open_dataset(use_var=[age])
        dataset.add_side_table(cache)
        dataset.set_filelist([write_lines("a.txt", [f"1 1 2 7 {last} 1 7 1 3"])])
        dataset.load_into_memory()
        dataset.begin_pass()
        (batch,) = dataset.batches()
        ids = paddle.cast(paddle.to_tensor(batch["age"]), "int64")
        assert ops.pull_cache_value(ids, 1).numpy().tolist() == [[[7], [last]]]
        dataset.end_pass()

    def test_an_abandoned_pass_drops_them(
        self, made: Callable[..., Any], open_dataset: OpenDataset, files: list[str]
    ) -> None:
        dataset, cache = open_dataset(), made(ReplicaCache, "c", 1)
        dataset.add_side_table(cache)
        dataset.set_filelist(files)
        cache.set_values(np.array([[1]]))
        dataset.load_into_memory()
        dataset.begin_pass()
        assert cache.is_open
        dataset.abandon_pass()
        assert not cache.is_open

    def test_one_that_cannot_be_read_is_reported_before_the_pass_begins(
        self, made: Callable[..., Any], open_dataset: OpenDataset, files: list[str], tmp_path: Path
    ) -> None:
        dataset, good, bad = open_dataset(), made(ReplicaCache, "g", 1), made(ReplicaCache, "b", 1)
        for side in (good, bad):
            dataset.add_side_table(side)
        dataset.set_filelist(files)
        good.set_values(np.array([[1]]))
        with pytest.raises(PassError, match=r"'b': .* set_values is missing"):
            dataset.preload_into_memory()
        (tmp_path / "bad.txt").write_text("0 x\n")
        bad.set_filelist([str(tmp_path / "bad.txt")])
        dataset.preload_into_memory()
        with pytest.raises(DataError, match=r"bad\.txt:1"):
            dataset.wait_preload_done()
        with pytest.raises(PassError, match="'b': no pass is fed: begin_feed_pass is missing"):
            dataset.begin_pass()
        assert not good.is_open
        bad.set_values(np.array([[7]]))
        bad.begin_feed_pass()
        dataset.begin_pass()
        assert ops.pull_cache_value(int64([0]), 1, "b").item() == 7
        assert len(list(dataset.batches())) == 2
        dataset.end_pass()

    def test_files_that_cannot_be_loaded_give_up_the_side_tables_rows(
        self, made: Callable[..., Any], open_dataset: OpenDataset, files: list[str]
    ) -> None:
        dataset, cache = open_dataset(), made(ReplicaCache, "c", 1)
        dataset.add_side_table(cache)
        cache.set_values(np.array([[1]]))
        dataset.set_filelist(["absent"])
        with pytest.raises(DataError, match="absent"):
            dataset.load_into_memory()
        dataset.set_filelist(files)
        dataset.load_into_memory()  # and does not find a pass that is fed already

    def test_two_of_one_name_are_refused(
        self, made: Callable[..., Any], open_dataset: OpenDataset
    ) -> None:
        dataset = open_dataset()
        dataset.add_side_table(made(ReplicaCache, "c", 1))
        dataset.add_side_table(made(InputTable, "c", 1))
        with pytest.raises(ValueError, match="replica cache 'c' was added already"):
            dataset.add_side_table(made(ReplicaCache, "c", 1))
