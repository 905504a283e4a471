"""pipe_command and parser plugins: code runs only where allowed, and failures are reported."""

from __future__ import annotations

import gzip
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from paddlebox._native import core
from paddlebox.compat.upstream import UpstreamDataset
from paddlebox.config import Slots, load_config
from paddlebox.data.pipe import piped
from paddlebox.errors import ConfigError, DataError
from tests.support.fixtures import OpenDataset, WriteLines
from tests.support.instances import SLOTS, multislot_lines

OPS = Path(__file__).resolve().parents[2] / "ops"


def load(dataset: UpstreamDataset, *files: str | Path) -> UpstreamDataset:
    dataset.set_filelist([str(file) for file in files])
    dataset.load_into_memory()
    return dataset


def batches(dataset: UpstreamDataset) -> list[dict[str, Any]]:
    dataset.begin_pass()
    found = list(dataset.batches())
    dataset.end_pass()
    return found


def ids(dataset: UpstreamDataset) -> tuple[list[int], list[float]]:
    """The number of ids of each segment, and the labels."""
    (batch,) = batches(dataset)
    return batch["box_offsets"].tolist(), batch["box_label"][:, 0].tolist()


class TestPipeCommand:
    def test_lines_are_what_the_command_prints(
        self, open_dataset: OpenDataset, write_lines: WriteLines, tmp_path: Path
    ) -> None:
        lines = multislot_lines(3000)  # more than a pipe holds
        plain = write_lines("a.txt", lines)
        packed = tmp_path / "b.gz"
        packed.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
        expected = [line for line in lines if line.startswith("1 1")]
        for file in (plain, packed):  # it gets the text, decompressed
            dataset = open_dataset({"fields": {"name": Path(file).name}}, allow_commands=True)
            dataset.set_pipe_command("grep '^1 1'")
            load(dataset, file)
            assert dataset.get_memory_data_size() == len(expected)

    def test_cat_runs_no_process(self, open_dataset: OpenDataset, write_lines: WriteLines) -> None:
        dataset = open_dataset()
        dataset.set_pipe_command("cat")
        assert load(dataset, write_lines("a.txt", multislot_lines(5))).get_memory_data_size() == 5

    def test_a_command_may_stop_reading(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        file = write_lines("a.txt", multislot_lines(50_000))
        dataset = open_dataset(allow_commands=True, pipe_command="head -n 7")
        assert load(dataset, file).get_memory_data_size() == 7

    def test_order_does_not_depend_on_threads(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        files = [write_lines(f"{i}.txt", multislot_lines(200, seed=i)) for i in range(3)]
        found = []
        for threads in (1, 4):
            dataset = open_dataset(
                {"fields": {"name": f"t{threads}"}},
                thread_num=threads,
                allow_commands=True,
                pipe_command="tac",
            )
            found.append([b["box_dense"].tolist() for b in batches(load(dataset, *files))])
        assert found[0] == found[1]

    def test_a_failure_is_an_error_with_the_end_of_stderr(
        self, open_dataset: OpenDataset, write_lines: WriteLines, caplog: pytest.LogCaptureFixture
    ) -> None:
        file = write_lines("a.txt", multislot_lines(5))
        command = "cat; for i in $(seq 20); do echo problem $i >&2; done; exit 3"
        dataset = open_dataset(allow_commands=True, pipe_command=command)
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(DataError, match=r"a\.txt: .*ended with exit code 3") as error,
        ):
            load(dataset, file)
        said = str(error.value)
        assert "problem 20" in said
        assert "problem 11" in said
        assert "problem 10\n" not in said
        assert f"{file}: pipe_command: problem 1" in caplog.text

    def test_stderr_alone_is_logged_and_harms_nothing(
        self, open_dataset: OpenDataset, write_lines: WriteLines, caplog: pytest.LogCaptureFixture
    ) -> None:
        command = "cat; seq 300 >&2"
        dataset = open_dataset(allow_commands=True, pipe_command=command)
        with caplog.at_level(logging.WARNING):
            load(dataset, write_lines("a.txt", multislot_lines(5)))
        assert dataset.get_memory_data_size() == 5
        assert "pipe_command: 100" in caplog.text
        assert "pipe_command: 101" not in caplog.text
        assert "more lines are not logged" in caplog.text

    @pytest.mark.parametrize(
        ("command", "what"),
        [
            ("sleep 300", "neither read nor wrote a byte"),
            ("cat; exec >&-; sleep 300", "closed its output but kept running"),
            ("sleep 300 & cat; echo sleeping >&2; wait", "neither read nor wrote a byte"),
        ],
    )
    def test_one_that_hangs_is_ended_with_all_it_started(
        self,
        open_dataset: OpenDataset,
        write_lines: WriteLines,
        command: str,
        what: str,
        tmp_path: Path,
    ) -> None:
        dataset = open_dataset(allow_commands=True, pipe_timeout_s=0.3)
        dataset.set_pipe_command(f"echo $$ > {tmp_path}/pid; {command}")
        with pytest.raises(DataError, match=rf"{what} for 0\.3 s and was killed"):
            load(dataset, write_lines("a.txt", multislot_lines(5)))
        group = int((tmp_path / "pid").read_text())
        for _ in range(100):  # init may take a moment to reap orphans
            if not alive(group):
                break
            time.sleep(0.1)
        assert not alive(group)

    def test_a_damaged_file_is_reported_and_not_the_command(
        self, open_dataset: OpenDataset, tmp_path: Path
    ) -> None:
        file = tmp_path / "a.gz"
        file.write_bytes(gzip.compress(b"1 1 2 0 0 1 7 1 8\n" * 1000)[:-20])
        dataset = open_dataset(allow_commands=True, pipe_command="cat; exit 1")
        with pytest.raises(DataError, match=r"a\.gz: .*(truncated|gzip)"):
            load(dataset, file)

    def test_a_command_that_is_not_there(
        self, open_dataset: OpenDataset, write_lines: WriteLines
    ) -> None:
        dataset = open_dataset(allow_commands=True, pipe_command="no-such-command-of-ours")
        with pytest.raises(DataError, match=r"exit code 127(.|\n)*not found"):
            load(dataset, write_lines("a.txt", multislot_lines(5)))

    def test_what_is_given_up_half_way_leaves_no_process(self, tmp_path: Path) -> None:
        command = f"echo $$ > {tmp_path}/pid; exec yes"
        blocks = piped("a.txt", iter([b"x"]), command, 10.0, 1 << 16)
        assert isinstance(blocks, Generator)
        assert next(blocks)[:4] == b"y\ny\n"
        blocks.close()
        assert not alive(int((tmp_path / "pid").read_text()))


def alive(group: int) -> bool:
    """Whether a process of the group runs; one that has ended and is not reaped does not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, found = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(found) == group and state != "Z":
            return True
    return False


class TestAllowed:
    def test_code_runs_only_where_it_may(self, open_dataset: OpenDataset) -> None:
        for settings in ({"pipe_command": "grep x"}, {"parser": "json:loads"}):
            with pytest.raises(ConfigError, match=r"security\.allow_commands: true"):
                open_dataset({"fields": {"name": next(iter(settings))}}, **settings)

    def test_in_a_configuration_too(self) -> None:
        config = OPS.parent / "configs" / "dnn_synthetic.yaml"
        with pytest.raises(ConfigError, match=r"data\.pipe_command needs security\.allow_commands"):
            load_config(config, ["data.pipe_command=grep x"])
        allowed = load_config(config, ["data.pipe_command=grep x", "security.allow_commands=true"])
        assert allowed.data.pipe_command == "grep x"

    def test_a_pipe_that_ends_in_a_library_names_the_other_setting(
        self, open_dataset: OpenDataset
    ) -> None:
        dataset = open_dataset(allow_commands=True)
        with pytest.raises(ConfigError, match="set_so_parser_name"):
            dataset.set_pipe_command("cat | parser.so")

    def test_columns_take_no_command(self, open_dataset: OpenDataset) -> None:
        dataset = open_dataset(data_format="parquet", allow_commands=True)
        with pytest.raises(ConfigError, match=r"pipe_command is for text, .* parquet"):
            dataset.set_pipe_command("grep x")


# A parser of "label;user;word,word": a plug-in of a user's.
MODULE = """
import numpy as np


def parse(data):
    rows = [line.split(b";") for line in data.splitlines()]
    return {
        "click": np.array([float(row[0]) for row in rows], np.float32),
        "age": [[1.5, 2.5]] * len(rows),
        "user": [[int(row[1])] for row in rows],
        "words": [[int(w) for w in row[2].split(b",") if w] for row in rows],
    }


def no_words(data):
    columns = parse(data)
    del columns["words"]
    return columns


def ragged(data):
    return {**parse(data), "user": [[1]]}


def not_ids(data):
    columns = parse(data)
    return {**columns, "user": [["x"]] * len(columns["user"])}


number = 3
"""
ROWS = ["1;7;3,4", "0;18446744073709551615;", "1;9;0,5"]
EXPECTED = ([0, 1, 3, 4, 4, 5, 6], [1, 0, 1])


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "user_parser.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "user_parser"
    sys.modules.pop("user_parser", None)


class TestPythonParser:
    def test_its_columns_are_the_instances(
        self, open_dataset: OpenDataset, write_lines: WriteLines, module: str
    ) -> None:
        dataset = open_dataset(allow_commands=True, parser=f"{module}:parse")
        assert ids(load(dataset, write_lines("a.txt", ROWS))) == EXPECTED

    def test_a_label_out_of_range_is_a_malformed_row(
        self, open_dataset: OpenDataset, write_lines: WriteLines, module: str
    ) -> None:
        dataset = open_dataset(allow_commands=True, parser=f"{module}:parse")
        with pytest.raises(DataError, match=r"a\.txt:2: slot 'click': 2 is not a label"):
            load(dataset, write_lines("a.txt", [ROWS[0], "2;7;3"]))

    @pytest.mark.parametrize(
        ("function", "message"),
        [
            ("no_words", "returned no column 'words'; found click, age, user"),
            ("ragged", "columns that do not fit"),
            ("not_ids", "columns that do not fit"),
        ],
    )
    def test_columns_that_do_not_fit(
        self,
        open_dataset: OpenDataset,
        write_lines: WriteLines,
        module: str,
        function: str,
        message: str,
    ) -> None:
        dataset = open_dataset(allow_commands=True, parser=f"{module}:{function}")
        with pytest.raises(DataError, match=rf"a\.txt: parser user_parser:{function} .*{message}"):
            load(dataset, write_lines("a.txt", ROWS))

    def test_one_that_raises(
        self, open_dataset: OpenDataset, write_lines: WriteLines, module: str
    ) -> None:
        dataset = open_dataset(allow_commands=True, parser=f"{module}:parse")
        with pytest.raises(DataError, match=r"a\.txt: .* raised ValueError: could not convert"):
            load(dataset, write_lines("a.txt", ["x;1;2"]))

    @pytest.mark.parametrize(
        ("parser", "message"),
        [
            ("user_parser:none", "has no attribute 'none'"),
            ("user_parser:number", r"\(lines\), found int"),
            ("no_such_module:f", "No module named"),
            ("user_parser", "expected module:function"),
        ],
    )
    def test_one_that_is_not_there(
        self, open_dataset: OpenDataset, module: str, parser: str, message: str
    ) -> None:
        dataset = open_dataset(allow_commands=True)
        with pytest.raises(ConfigError, match=message):
            dataset.set_so_parser_name(parser)


SOURCE = """
#include "plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int pbx_plugin_abi(void) { return ABI; }

/* "label;user;word,word". A word of 666 makes it misbehave. */
int pbx_plugin_parse(const char* line, size_t size, struct pbx_row* row) {
  char text[200];
  if (size >= sizeof(text)) return 9;
  memcpy(text, line, size);
  text[size] = 0;
  char* user = strchr(text, ';');
  if (user == NULL) {
    snprintf(row->error, sizeof(row->error), "no ; in a line of %zu bytes", size);
    return 1;
  }
  row->label = strtof(text, NULL);
  row->dense[0] = 1.5f;
  row->dense[1] = 2.5f;
  char* word;
  row->add(row, 0, strtoull(user + 1, &word, 10));
  while (*word != 0 && word[1] != 0) {
    const uint64_t id = strtoull(word + 1, &word, 10);
    row->add(row, id == 666 ? 2 : 1, id);
  }
  return 0;
}
"""


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """compiled(name, source, abi) -> path of a plugin."""
    folder = tmp_path_factory.mktemp("plugins")

    def make(name: str, source: str = SOURCE, abi: str = "PBX_PLUGIN_ABI") -> str:
        library = folder / f"{name}.so"
        (folder / f"{name}.c").write_text(source)
        command = [os.environ.get("CC", "cc"), "-std=c99", "-Wall", "-Wextra", "-Werror", "-shared"]
        command += ["-fPIC", f"-DABI={abi}", f"-I{OPS / 'feed' / 'text'}"]
        command += [f"{name}.c", "-o", str(library)]
        subprocess.run(command, cwd=folder, check=True)
        return str(library)

    return make


class TestLibrary:
    def test_its_rows_are_the_instances(
        self,
        open_dataset: OpenDataset,
        write_lines: WriteLines,
        compiled: Callable[..., str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        file = write_lines("a.txt", ROWS)
        dataset = open_dataset(allow_commands=True, parser=compiled("good"), thread_num=4)
        assert ids(load(dataset, file)) == EXPECTED
        folder, name = os.path.split(compiled("good"))
        monkeypatch.chdir(folder)  # relative to the current folder, as other paths
        dataset.set_so_parser_name(name)
        assert ids(load(dataset, file)) == EXPECTED
        dataset.set_so_parser_name("")  # and back
        load(dataset, write_lines("b.txt", multislot_lines(3)))

    def test_its_slots_may_share_ids(
        self, write_lines: WriteLines, compiled: Callable[..., str]
    ) -> None:
        listed = [slot.model_dump(exclude_none=True) for slot in SLOTS.slots]
        shared = Slots.model_validate({"slots": [*listed[:-1], {**listed[-1], "shares": "user"}]})
        schemas = [
            core.FeedSchema("plugin", slots.fields(), True, 1 << 20, plugin=compiled("good"))
            for slots in (SLOTS, shared)
        ]
        unique = []
        for schema in schemas:
            instances = core.Instances(schema.sparse_slots, schema.dense_width)
            instances.append(core.parse_chunk(schema, b"1;7;7,3"))
            instances.index(core.ThreadPool(1))
            unique.append(instances.unique_keys)
        assert unique == [3, 2]

    def test_malformed_lines_are_counted_and_quoted(
        self, open_dataset: OpenDataset, write_lines: WriteLines, compiled: Callable[..., str]
    ) -> None:
        lines = [ROWS[0], "none", "2;7;3", "1;7;666", "1;7;" + "3," * 100, ROWS[1]]
        dataset = open_dataset(allow_commands=True, parser=compiled("good"))
        with pytest.raises(DataError, match="4 of 6 lines are malformed") as error:
            load(dataset, write_lines("a.txt", lines))
        said = str(error.value)
        for line, reason in (
            (2, "no ; in a line of 4 bytes"),
            (3, r"label 2, expected [0, 1]"),
            (4, "slot 2, expected slots in ascending order below 2"),
            (5, "code 9"),
        ):
            assert f"a.txt:{line}: the parser plugin: {reason}" in said

    def test_one_that_cannot_be_used_is_refused_with_the_reason(
        self, open_dataset: OpenDataset, compiled: Callable[..., str], tmp_path: Path
    ) -> None:
        dataset = open_dataset(allow_commands=True)
        with pytest.raises(ConfigError, match="built for plugin ABI 0, expected 1"):
            dataset.set_so_parser_name(compiled("old", abi="0"))
        with pytest.raises(ConfigError, match="does not export pbx_plugin_abi"):
            dataset.set_so_parser_name(compiled("empty", "int nothing;"))
        with pytest.raises(ConfigError, match=r"none\.so: cannot be loaded"):
            dataset.set_so_parser_name(str(tmp_path / "none.so"))
