"""The parsed cache: what is kept, when it is used, what becomes of one that is old or damaged."""

from __future__ import annotations

import gzip
import json
import logging
import os
import threading
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paddlebox.config import DataConfig, Format, KeySpace, Slots, zones
from paddlebox.config.data import HoursConfig
from paddlebox.data.cache import ParsedCache
from paddlebox.data.loader import LoadedPass, load
from paddlebox.data.options import LoadOptions
from paddlebox.data.reader import read_chunks
from paddlebox.errors import DataError
from tests.conftest import run_python
from tests.data.test_formats_columnar import contents
from tests.support.configs import make_slots
from tests.support.fixtures import OpenDataset, WriteLines
from tests.support.instances import SLOTS, multislot_lines
from tests.support.options import load_options

GIB = 1 << 30


@pytest.fixture
def cache(tmp_path: Path) -> ParsedCache:
    return ParsedCache(tmp_path / "cache", GIB)


def settled(path: Path) -> Path:
    """As a file that was written a while ago: a fresh one is not trusted to stay as it is."""
    os.utime(path, ns=(time.time_ns(), time.time_ns() - 10**10))
    return path


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return settled(path)


# Options with which files are not cached, and those that do not affect how a line is parsed.
UNCACHED = """
pipe_command parser logkey parse_ins_id parse_content time_column user_sequences merge_size
"""
NOT_PARSING = """
train_files test_files files_per_pass date files_per_day batch_size max_bad_line_ratio dedup_slots
pv_batch_size shuffle threads share drop_last negative_rate sequences stream
data seed test click_slots budget_bytes spill_dir to_disk cache sample_rate shuffle_by shuffle_slot
pipe_timeout_s retries allow_commands tables shuffle_seed keep_values keep_values_bytes exact_values
"""


def loaded(path: Path, cache: ParsedCache | None, **options: Any) -> LoadedPass:
    given = {"data_format": Format.MULTISLOT, "slots": SLOTS, "batch_size": 16, "threads": 2}
    return load([str(path)], load_options(**{**given, **options}, cache=cache), 1 << 30)


def unread(path: Path) -> None:
    """Other bytes behind the same path, size and time. Reading them reads another file."""
    info = path.stat()
    path.write_bytes(b"x" * info.st_size)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def entries(cache: ParsedCache) -> list[Path]:
    return sorted(cache.folder.iterdir())


def several_chunks() -> list[str]:
    return multislot_lines(40_000)  # 2 MB and more: three chunks of text


class TestSecondReading:
    def test_parses_nothing_and_gives_the_same(self, tmp_path: Path, cache: ParsedCache) -> None:
        path = write(tmp_path / "a", several_chunks())
        first = loaded(path, cache)
        unread(path)
        second = loaded(path, cache)
        assert contents(second) == contents(first) == contents(loaded_of(several_chunks, tmp_path))
        assert (first.files_from_cache, second.files_from_cache) == (0, 1)
        assert second.lines == first.lines == 40_000

    @pytest.mark.parametrize("threads", [1, 3])
    def test_is_the_same_for_any_number_of_threads(
        self, tmp_path: Path, cache: ParsedCache, threads: int
    ) -> None:
        path = write(tmp_path / "a", several_chunks())
        loaded(path, cache, threads=4 - threads)
        assert contents(loaded(path, cache, threads=threads)) == contents(loaded(path, None))

    def test_holds_for_every_kind_of_file(self, tmp_path: Path, cache: ParsedCache) -> None:
        text = "".join(f"{line}\n" for line in multislot_lines(300))
        zipped = tmp_path / "a.gz"
        zipped.write_bytes(gzip.compress(text.encode()))
        csv = tmp_path / "a.csv"
        csv.write_text("user,click,words,age\n7,1,1|2,0.5|2\n8,0,,1|1\n")
        table = pa.table({"click": [1, 0, 1], "user": [7, 8, 9]})
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
        two = make_slots(click="label", user="sparse")
        for path, options in (
            (zipped, {}),
            (csv, {"data_format": Format.CSV}),
            (tmp_path / "a.parquet", {"data_format": Format.PARQUET, "slots": two}),
        ):
            settled(path)
            first = contents(loaded(path, cache, **options))
            unread(path)
            assert contents(loaded(path, cache, **options)) == first

    def test_is_shuffled_and_batched_as_asked_now(self, tmp_path: Path, cache: ParsedCache) -> None:
        path = write(tmp_path / "a", multislot_lines(500))
        loaded(path, cache)
        unread(path)
        again = loaded(path, cache, shuffle_seed=3, batch_size=7)
        assert contents(again) == contents(
            load(
                [str(write(tmp_path / "b", multislot_lines(500)))],
                load_options(Format.MULTISLOT, SLOTS, 7, shuffle_seed=3),
                1 << 30,
            )
        )

    def test_counts_and_quotes_the_same_bad_lines(
        self, tmp_path: Path, cache: ParsedCache, caplog: pytest.LogCaptureFixture
    ) -> None:
        lines = multislot_lines(1000)
        lines[700] = "nonsense \x01"
        path = write(tmp_path / "a", lines)
        loaded(path, cache, max_bad_line_ratio=0.01)
        unread(path)
        with caplog.at_level(logging.WARNING):
            assert loaded(path, cache, max_bad_line_ratio=0.01).bad_lines == 1
        assert f"{path}:701: " in caplog.text
        assert "nonsense \\x01" in caplog.text
        with pytest.raises(DataError, match="1 of 1000 lines are malformed"):
            loaded(path, cache, max_bad_line_ratio=0.0001)


def loaded_of(lines: Any, folder: Path) -> LoadedPass:
    return loaded(write(folder / "reference", lines()), None)


class TestOldOrForeign:
    def test_a_changed_file_is_parsed_again_and_takes_the_place_of_the_old_one(
        self, tmp_path: Path, cache: ParsedCache, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = write(tmp_path / "a", multislot_lines(100))
        loaded(path, cache)
        old = entries(cache)
        write(path, multislot_lines(100, seed=2))
        with caplog.at_level(logging.WARNING):
            assert contents(loaded(path, cache)) == contents(loaded(path, None))
        assert caplog.text.count("holds another file, or the file parsed with other settings") == 1
        assert entries(cache) == old
        loaded(path, cache)
        assert cache.hits == 1

    @pytest.mark.parametrize(
        "options",
        [
            {"key_space": KeySpace.PER_SLOT},
            {"max_line_bytes": 50},
            {
                "slots": Slots.model_validate(
                    {
                        "slots": [
                            s if s["name"] != "words" else {**s, "max_length": 1}
                            for s in SLOTS.model_dump(mode="json")["slots"]
                        ]
                    }
                )
            },
        ],
        ids=["key_space", "max_line_bytes", "transform"],
    )
    def test_other_options_of_parsing_make_another_entry(
        self, tmp_path: Path, cache: ParsedCache, options: dict[str, Any]
    ) -> None:
        path = write(tmp_path / "a", multislot_lines(100))
        loaded(path, cache)
        options = {"max_bad_line_ratio": 1.0, **options}
        assert contents(loaded(path, cache, **options)) == contents(loaded(path, None, **options))
        assert len(entries(cache)) == 2
        assert cache.hits == 0

    def test_every_option_is_of_parsing_unless_it_is_known_not_to_be(self) -> None:
        parsing = set(load_options(Format.MULTISLOT, SLOTS, 1).parsing())
        options = {*DataConfig.model_fields} - {*HoursConfig.model_fields}
        options |= {field.name for field in fields(LoadOptions)}
        assert parsing - options == {"chunk_bytes", "zones"}
        assert options - parsing == {*UNCACHED.split(), *NOT_PARSING.split()}

    def test_other_tables_of_zones_are_of_parsing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        slots = make_slots(click="label", h={"hash": True, "expr": "hour(t, 'Europe/Berlin')"})
        of = []
        for offset in (3600, 7200):
            monkeypatch.setattr(zones, "_offsets", lambda _, offset=offset: ([0], [offset]))
            of.append(load_options(Format.CSV, slots, 1).parsing())
        assert of[0] != of[1]

    def test_what_only_training_reads_of_a_slot_is_not_of_parsing(self) -> None:
        *others, last = SLOTS.slots
        slower = SLOTS.having({"slots": (*others, last.having({"learning_rate_factor": 0.5}))})
        of = [load_options(Format.MULTISLOT, slots, 1).parsing() for slots in (SLOTS, slower)]
        assert of[0] == of[1]

    def test_a_file_changed_this_moment_is_not_kept(
        self, tmp_path: Path, cache: ParsedCache
    ) -> None:
        path = write(tmp_path / "a", multislot_lines(10))
        ahead = time.time_ns() + 10**9
        os.utime(path, ns=(ahead, ahead))
        loaded(path, cache)
        assert entries(cache) == []

    def test_a_file_that_changes_while_it_is_read_is_not_kept(
        self, tmp_path: Path, cache: ParsedCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write(tmp_path / "a", multislot_lines(10))
        from paddlebox.data import loader

        read = loader._read_source

        def touched(*arguments: Any) -> Any:
            yield from read(*arguments)
            os.utime(path, ns=(1, 1))

        monkeypatch.setattr(loader, "_read_source", touched)
        loaded(path, cache)
        assert entries(cache) == []


class TestDamaged:
    @pytest.mark.parametrize("share", [0.0, 0.001, 0.4, 0.9, 0.9999], ids=str)
    def test_damaged_bytes_are_never_data_and_the_file_is_written_again(
        self, tmp_path: Path, cache: ParsedCache, caplog: pytest.LogCaptureFixture, share: float
    ) -> None:
        path = write(tmp_path / "a", several_chunks())
        expected = contents(loaded(path, cache))
        (file,) = entries(cache)
        damaged = bytearray(file.read_bytes())
        at = int(len(damaged) * share)
        damaged[at : at + 64] = bytes(byte ^ 1 for byte in damaged[at : at + 64])
        file.write_bytes(damaged)
        with caplog.at_level(logging.WARNING):
            assert contents(loaded(path, cache)) == expected
        assert caplog.text.count("parsing the file again") == 1
        caplog.clear()
        loaded(path, cache)
        unread(path)
        with caplog.at_level(logging.WARNING):
            assert contents(loaded(path, cache)) == expected
        assert not caplog.text

    def test_a_cut_or_empty_file_is_written_again(self, tmp_path: Path, cache: ParsedCache) -> None:
        path = write(tmp_path / "a", multislot_lines(100))
        expected = contents(loaded(path, cache))
        (file,) = entries(cache)
        whole = file.read_bytes()
        for size in (0, 10, len(whole) // 2, len(whole) - 1):
            file.write_bytes(whole[:size])
            assert contents(loaded(path, cache)) == expected
            assert file.read_bytes()[-8:] == b"PBXPARSE"


class TestFolder:
    def test_what_was_used_least_lately_goes_first(
        self, tmp_path: Path, cache: ParsedCache
    ) -> None:
        paths = [write(tmp_path / name, multislot_lines(100, seed=5)) for name in "abc"]
        for second, path in enumerate(paths[:2]):
            loaded(path, cache)
            (file,) = (f for f in entries(cache) if f.stat().st_mtime_ns > 10**18 + 10**12)
            os.utime(file, ns=(0, 10**18 + second * 10**9))  # long ago: b a second after a
        small = ParsedCache(cache.folder, int(2.5 * file.stat().st_size))
        for path in (paths[0], paths[2]):  # a is used again; there is no room for c beside both
            loaded(path, small)
        assert len(entries(small)) == 2
        for path in (paths[0], paths[2]):
            loaded(path, small)
        assert small.hits == 3

    def test_a_file_over_the_whole_budget_is_not_kept(self, tmp_path: Path) -> None:
        cache = ParsedCache(tmp_path / "cache", 1000)
        path = write(tmp_path / "a", several_chunks())
        assert contents(loaded(path, cache)) == contents(loaded(path, None))
        assert entries(cache) == []

    def test_a_folder_that_cannot_be_written_is_reported_once_and_loading_continues(
        self, tmp_path: Path, cache: ParsedCache, caplog: pytest.LogCaptureFixture
    ) -> None:
        paths = [write(tmp_path / name, multislot_lines(100)) for name in "ab"]
        cache.folder.rmdir()
        with caplog.at_level(logging.WARNING):
            for path in paths:
                assert contents(loaded(path, cache)) == contents(loaded(path, None))
        assert caplog.text.count("the parsed cache is not written") == 1

    def test_a_load_that_fails_leaves_nothing(self, tmp_path: Path, cache: ParsedCache) -> None:
        path = write(tmp_path / "a", [*several_chunks(), *["nonsense"] * 20_000])
        with pytest.raises(DataError, match="malformed"):
            loaded(path, cache)
        assert [file for file in entries(cache) if file.suffix != ".pbxparsed"] == []

    def test_loads_at_once_share_it(self, tmp_path: Path, cache: ParsedCache) -> None:
        path = write(tmp_path / "a", several_chunks())
        expected = contents(loaded(path, None))
        found: list[Any] = []
        threads = [
            threading.Thread(
                target=lambda: found.append(contents(loaded(path, ParsedCache(cache.folder, GIB))))
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [expected] * 4
        assert len(entries(cache)) == 1

    def test_two_that_write_one_entry_at_once_do_not_meet(
        self, tmp_path: Path, cache: ParsedCache
    ) -> None:
        path = write(tmp_path / "a", several_chunks())
        schema = load_options(Format.MULTISLOT, SLOTS, 16).schema()
        other = ParsedCache(cache.folder, GIB)
        both = [
            each.parts(str(path), {}, lambda: read_chunks(str(path))) for each in (cache, other)
        ]
        for parts in zip(*both, strict=True):  # each of them begins before the other ends
            for part in parts:
                part.parse(schema)
        assert len(entries(cache)) == 1
        kept = cache.parts(str(path), {}, lambda: read_chunks("nowhere"))
        assert sum(part.parse(schema).instances for part in kept) == 40_000

    def test_another_process_reads_what_this_one_kept(
        self, tmp_path: Path, cache: ParsedCache
    ) -> None:
        path = write(tmp_path / "a", multislot_lines(300))
        first = loaded(path, cache)
        unread(path)
        code = """
import json, sys
from pathlib import Path
from paddlebox.config import Format, Slots
from paddlebox.data.cache import ParsedCache
from paddlebox.data.loader import load
from tests.support.options import load_options
path, folder, slots = sys.argv[1:]
options = load_options(Format.MULTISLOT, Slots.model_validate(json.loads(slots)), 16,
                      cache=ParsedCache(Path(folder), 1 << 30))
done = load([path], options, 1 << 30)
print(json.dumps([done.size, done.instances.unique_keys, done.files_from_cache]))
"""
        slots = json.dumps(SLOTS.model_dump(mode="json"))
        assert run_python(code, str(path), str(cache.folder), slots) == [
            300,
            first.instances.unique_keys,
            1,
        ]


def test_training_from_the_cache_ends_with_the_same_rows(
    open_dataset: OpenDataset, tmp_path: Path, write_lines: WriteLines
) -> None:
    from tests.data.test_protocol import train

    digests = []
    paths = [
        settled(Path(write_lines(name, multislot_lines(400, seed))))
        for seed, name in enumerate("ab")
    ]
    for folder in ("", str(tmp_path / "cache"), str(tmp_path / "cache")):
        dataset = open_dataset(cache_bytes=GIB if folder else 0, cache_dir=folder)
        for path in paths:
            train(dataset, str(path))
        dataset._table.wait_commit()
        digests.append(dataset._table.digest())
        dataset.close()
        dataset._table.close()
    assert digests[0] == digests[1] == digests[2]
    assert dataset.stats.files_from_cache == 1
