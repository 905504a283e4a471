"""Imports of other systems by a mapping file: NumPy, PyTorch, FBGEMM and Paddle's text tables."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from paddlebox._native import core
from paddlebox.errors import ConfigError, DataError, PaddleBoxError
from paddlebox.tools.rows.receive import into_existing
from paddlebox.tools.rows.safetensors import dumps
from paddlebox.tools.rows.sources import open_rows
from tests.tools.rows import small
from tests.tools.rows.small import digest_of, ids, make_run, rows_in

WEIGHTS = np.arange(20, dtype=np.float32).reshape(5, 4) / 8  # 5 lines of D = 4


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", small.config_of(), ids(5000, 5003), decay=False)


def mapping(folder: Path, **rows: Any) -> str:
    path = folder / "mapping.yaml"
    slot = {} if "slots" in rows else {"slot": "user"}
    path.write_text(yaml.safe_dump({"rows": [{**slot, **rows}]}))
    return str(path)


def imported(run: Path, path: str) -> dict[int, np.ndarray]:
    """The float32 rows of slot user, by id."""
    into_existing(run, open_rows(path))
    found = rows_in(run)
    of_ids = {number: core.feasign_in_slot(number, 0) for number in range(1, 40)}
    return {n: np.frombuffer(found[f], np.float32) for n, f in of_ids.items() if f in found}


def write_arrays(path: Path, **arrays: np.ndarray) -> str:
    if path.suffix == ".npz":
        np.savez(path, allow_pickle=False, **arrays)
    elif path.suffix == ".safetensors":
        path.write_bytes(dumps(arrays))
    elif path.suffix == ".parquet":
        pq.write_table(
            pa.table({name: array.tolist() for name, array in arrays.items()}), path,
            row_group_size=2,
        )  # fmt: skip
    else:
        torch = pytest.importorskip("torch", reason="PyTorch is not installed: make bench-setup")
        torch.save({"model": {name: torch.from_numpy(a) for name, a in arrays.items()}}, path)
    return path.name


@pytest.mark.parametrize(
    "suffix", [".npz", ".safetensors", ".parquet", pytest.param(".pt", marks=pytest.mark.slow)]
)
def test_lines_become_rows_by_their_keys(run: Path, tmp_path: Path, suffix: str) -> None:
    name = write_arrays(tmp_path / f"vectors{suffix}", v=WEIGHTS, key=np.array([3, 9, 4, 11, 30]))
    prefix = "model." if suffix == ".pt" else ""
    path = mapping(tmp_path, file=name, keys=f"{prefix}key", columns={"embedx_w": f"{prefix}v"})
    rows = imported(run, path)
    assert rows.keys() == {3, 9, 4, 11, 30}
    assert rows[4][8:12].tolist() == [1.0, 1.125, 1.25, 1.375]
    assert rows[4].view(np.uint32)[0] == 1 << 16  # slot 0, with an embedx
    assert rows[4][1] == rows[4][2] == rows[4][6] == 0  # as in a new row, whose embed_w is 0


def test_positions_and_columns_of_a_matrix(run: Path, tmp_path: Path) -> None:
    whole = np.column_stack([WEIGHTS[:, 0] + 5, WEIGHTS])
    np.save(tmp_path / "table.npy", whole)
    columns = {"embed_w": "table[:, 0]", "embedx_w": "table[:, 1:5]"}
    rows = imported(run, mapping(tmp_path, file="table.npy", first=0, columns=columns))
    assert rows.keys() == {1, 2, 3, 4}  # 0 is padding
    assert rows[2][6] == 6.0
    assert rows[2][8:12].tolist() == WEIGHTS[2].tolist()


def test_a_vocabulary_is_hashed_as_the_data(run: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "tags.npy", WEIGHTS)
    (tmp_path / "words.txt").write_text("red\ngreen\nblue\nüber\n-\n")
    path = mapping(
        tmp_path, file="tags.npy", slot="tag", vocabulary="words.txt", columns={"embedx_w": "tags"}
    )
    before = rows_in(run).keys()
    into_existing(run, open_rows(path))
    from paddlebox.serving.slot_values import SlotValues

    config = small.config_of()
    of = SlotValues(small.SLOTS, "tag", config.data.format, config.data.key_space)
    expected = {int(f) for f in of.feasigns(["red", "green", "blue", "über", "-"])}
    assert rows_in(run).keys() - before == expected


def test_a_table_of_fbgemm(run: Path, tmp_path: Path) -> None:
    """Two tables of 3 and 5 rows, of which the second one has D = 4."""
    arrays = {
        "weights_host": np.concatenate([np.full(6, 7, np.float32), WEIGHTS.reshape(-1)]),
        "weights_dev": np.empty(0, np.float32),
        "weights_offsets": np.array([0, 6]),
        "weights_placements": np.array([3, 3], np.int32),
        "momentum1_host": np.arange(8, dtype=np.float32),
        "momentum1_offsets": np.array([0, 3]),
        "momentum1_placements": np.array([3, 3], np.int32),
        "D_offsets": np.array([0, 2, 6], np.int32),
        "rows_per_table": np.array([3, 5]),
    }
    name = write_arrays(tmp_path / "e.safetensors", **{f"emb.{n}": a for n, a in arrays.items()})
    path = mapping(
        tmp_path, file=name, first=1, fbgemm={"prefix": "emb.", "table": 1},
        columns={"embedx_w": "weights", "embedx_state": "momentum1"},
    )  # fmt: skip
    rows = imported(run, path)
    assert rows.keys() == {1, 2, 3, 4, 5}
    assert rows[3][8:12].tolist() == WEIGHTS[2].tolist()
    assert [row[12] for row in rows.values()] == [3, 4, 5, 6, 7]


TEXTS = {
    # slot unseen_days delta_score show click embed_w g2sum [embedx_w (4) g2sum]
    "paddle_ctr": "7 101 2 0.5 9 3 0.25 1.5 1 2 3 4 0.75\n8 101 0 0 1 0 -0.25 0\n9 5 0 0 1 0 1 0\n",
    # unseen_days delta_score show click embed_w g2sum slot mf_dim [g2sum embedx_w (4)]
    "paddle_gpups": "7 2 0.5 9 3 0.25 1.5 101 4 0.75 1 2 3 4\n8 0 0 1 0 -0.25 0 101 4\n"
    "9 0 0 1 0 1 0 5 4\n",
}


@pytest.mark.parametrize("text_format", TEXTS)
def test_text_tables_of_paddle(run: Path, tmp_path: Path, text_format: str) -> None:
    for number, line in enumerate(TEXTS[text_format].splitlines(keepends=True)):
        (tmp_path / f"part-{number}").write_text(line)
    slots = {"user": 101, "item": 4}
    path = mapping(tmp_path, file="part-*", format=text_format, slots=slots)
    report = into_existing(run, open_rows(path))
    assert report.refused == {"a slot number that the mapping does not name": 1}
    assert (report.read, report.new) == (3, 2)
    rows = imported(run, path)
    assert rows.keys() == {7, 8}
    assert rows[7][1:4].tolist() == [9, 3, 0.5]
    assert rows[7][6:13].tolist() == [0.25, 1.5, 1, 2, 3, 4, 0.75]
    assert rows[8].view(np.uint32)[0] == 0  # no embedx
    assert rows[8][6] == -0.25


def test_weights_beyond_the_bounds_are_clipped_and_counted(run: Path, tmp_path: Path) -> None:
    wide = WEIGHTS.copy()
    wide[1] *= 100
    np.save(tmp_path / "v.npy", wide)
    path = mapping(tmp_path, file="v.npy", first=1, columns={"embedx_w": "v"})
    report = into_existing(run, open_rows(path))
    assert (report.read, report.clipped, report.new) == (5, 1, 5)
    assert np.frombuffer(rows_in(run)[core.feasign_in_slot(2, 0)], np.float32)[8:12].max() == 10


class _Code:
    def __reduce__(self) -> Any:
        return print, ("run",)


def _pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"v": _Code()}))


BAD: dict[str, tuple[dict[str, Any], type[PaddleBoxError], str]] = {
    "an unknown slot": ({"slot": "usr"}, ConfigError, "no sparse slot 'usr'.*did you mean 'user'"),
    "an unknown array": (
        {"columns": {"embedx_w": "w"}}, ConfigError, "v.npz: expected an array 'w', found none",
    ),
    "an unknown column": (
        {"columns": {"embedx": "v"}}, ConfigError, "found 'embedx'; did you mean 'embedx_w'",
    ),
    "another width": (
        {"columns": {"embedx_w": "v[:, 0:3]"}}, ConfigError, "expected a width of 4.*found 3",
    ),
    "keys of another length": ({"keys": "few"}, ConfigError, "arrays of the same length, found"),
    "keys that are not integers": ({"keys": "v"}, DataError, "keys: expected a column of integers"),
    "negative ids": ({"keys": "negative"}, DataError, "keys: expected ids of at least 0, found -2"),
    "a key twice": ({"keys": "twice"}, DataError, "feasign .* is there twice for table"),
    "NaN": ({"columns": {"embedx_w": "nan"}}, DataError, "embedx_w of feasign .*: expected finite"),
    "a missing file": ({"file": "none.npz"}, DataError, "none.npz: cannot be read"),
    "another kind of file": ({"file": "v.json"}, ConfigError, "expected a file that ends in"),
    "a truncated file": ({"file": "cut.npz"}, DataError, "cut.npz: cannot be read"),
    "a pickle of NumPy": ({"file": "code.npz"}, DataError, "code.npz: cannot be read"),
    "no columns": ({"columns": {}}, ConfigError, "columns: expected at least one"),
    "a state without its weights": (
        {"columns": {"embedx_state": "v[:, 0]"}}, ConfigError,
        "column embedx_state has no meaning without embedx_w",
    ),
    "an expand without an embedx": (
        {"columns": {"expand_w": "v"}}, ConfigError, "expand_w has no meaning without embedx_w",
    ),
    "a first key beside keys": ({"first": 1}, ConfigError, "first has no effect with keys"),
    "a vocabulary of ids": (
        {"keys": "positions", "vocabulary": "words.txt", "keys_are": "ids"}, ConfigError,
        "keys_are has no effect with vocabulary",
    ),
    "columns of a text table": (
        {"format": "paddle_ctr"}, ConfigError, "columns has no effect with format",
    ),
    "numbers of slots beside arrays": (
        {"slots": {"user": 7}}, ConfigError, "slots have numbers in text tables alone",
    ),
    "both a slot and slots": (
        {"format": "paddle_ctr", "columns": {}, "slot": "tag", "slots": {"user": 7}}, ConfigError,
        "expected one of slot and slots, found both",
    ),
    "an unknown key": ({"colums": {}}, ConfigError, "colums"),
    "a state of fbgemm that is not one": (
        {"fbgemm": {}}, ConfigError, "expected an array 'rows_per_table' of a FBGEMM module",
    ),
    "text of another width": (
        {"file": "wide.txt", "format": "paddle_ctr", "columns": {}}, DataError,
        "wide.txt:2: expected a feasign and 7 values, or 12 with an embedx, found 9",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_error_and_nothing_is_applied(
    what: str, run: Path, tmp_path: Path
) -> None:
    changes, kind, message = BAD[what]
    nan = WEIGHTS.copy()
    nan[2, 1] = np.nan
    keys = {"key": [1, 2, 3, 4, 5], "negative": [1, -2, 3, 4, 5], "twice": [1, 2, 3, 2, 5]}
    arrays = {name: np.array(values) for name, values in keys.items()}
    arrays |= {"v": WEIGHTS, "nan": nan, "few": np.arange(1, 4)}
    np.savez(tmp_path / "v.npz", allow_pickle=False, **arrays)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "v.npz").read_bytes()[:-30])
    _pickle(tmp_path / "code.npz")
    (tmp_path / "wide.txt").write_text("1 0 0 0 1 0 0 0\n2 0 0 0 1 0 0 0 1 2\n")
    before = digest_of(run)
    fields = {"file": "v.npz", "keys": "key", "columns": {"embedx_w": "v"}, **changes}
    if fields.get("format"):
        del fields["keys"]
    with pytest.raises(kind, match=message):
        into_existing(run, open_rows(mapping(tmp_path, **fields)))
    assert digest_of(run) == before


def test_a_dense_parameter_replaces_that_of_the_run(run: Path, tmp_path: Path) -> None:
    np.savez(
        tmp_path / "d.npz", w=np.arange(6, dtype=np.float64).reshape(3, 2), nan=np.full(2, np.nan)
    )
    path = tmp_path / "dense.yaml"

    def write(**parameters: Any) -> str:
        path.write_text(yaml.safe_dump({"dense": {"file": "d.npz", "parameters": parameters}}))
        return str(path)

    for parameters, message in (
        ({"w": "w"}, r"expected shape \[2, 3\], found \[3, 2\] .*; set transpose"),
        ({"v": "w"}, "no dense parameter 'v' in the model"),
        ({"w": "w[:, 0:1]"}, r"expected shape \[2, 3\], found \[3, 1\]"),
        ({"b": "nan"}, "expected finite numbers"),
    ):
        with pytest.raises(PaddleBoxError, match=message):
            into_existing(run, open_rows(write(**parameters)))
    into_existing(run, open_rows(write(w={"array": "w", "transpose": True})))
    with small.open_run(run, small.config_of()) as table:
        assert table.load_dense()["w"].tolist() == [[0, 2, 4], [1, 3, 5]]
        assert table.load_dense()["w"].dtype == np.float32
        assert table.load_dense()["b"].tolist() == [1, 1]


@pytest.mark.slow
def test_a_pickle_that_wants_code_is_refused_before_it_runs(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make bench-setup")
    torch.save({"v": _Code()}, tmp_path / "code.pt")
    before = digest_of(run)
    with pytest.raises(DataError, match=r"code.pt: expected a state dict"):
        into_existing(run, open_rows(mapping(tmp_path, file="code.pt", columns={"embedx_w": "v"})))
    assert "run" not in capsys.readouterr().out
    assert digest_of(run) == before


@pytest.mark.slow
def test_a_sharded_table_of_torchrec_is_gathered_first(run: Path, tmp_path: Path) -> None:
    """The names are those of a model around `EmbeddingBagCollection`. With its sharded tensors, the
    file is refused; gathered as docs/rows.md says, it is read."""
    pytest.importorskip("torchrec", reason="TorchRec is not installed: make bench-setup")
    script = Path(__file__).with_name("torchrec_tables.py")
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=120)
    weights = np.load(tmp_path / "weights.npy")
    columns = {"embedx_w": "sparse.embedding_bags.users.weight"}
    with pytest.raises(DataError, match=r"sharded.pt: expected a state dict"):
        into_existing(run, open_rows(mapping(tmp_path, file="sharded.pt", columns=columns)))
    rows = imported(run, mapping(tmp_path, file="gathered.pt", first=1, columns=columns))
    assert sorted(rows) == list(range(1, 1 + len(weights)))
    assert all(np.array_equal(rows[n][8:12], weights[n - 1]) for n in rows)
