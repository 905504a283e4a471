"""Passes over feeder.budget_bytes: the same instances, batches and rows, within the budget."""

from __future__ import annotations

import errno
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox import _native
from paddlebox.config import Format
from paddlebox.data.loader import LoadedPass, load
from paddlebox.data.spill import Columns, SpillingInstances
from paddlebox.errors import OutOfSpaceError
from tests.conftest import run_python
from tests.support.fixtures import OpenDataset
from tests.support.instances import SLOTS, multislot_lines
from tests.support.marks import long
from tests.support.options import load_options

core = _native.core
MIB = 1 << 20


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: Any) -> list[str]:
    """About 4 MB in memory, in chunks of every size."""
    folder = tmp_path_factory.mktemp("files")
    sizes = (20_000, 1, 300, 30_000, 7)
    return [
        write(folder / str(at), multislot_lines(size, seed=at, vocabulary=3000))
        for at, size in enumerate(sizes)
    ]


def loaded(files: list[str], budget: int, batch_size: int, **options: Any) -> LoadedPass:
    max_rows = options.pop("max_rows", 1 << 30)
    given = load_options(
        Format.MULTISLOT, SLOTS, batch_size, threads=2, budget_bytes=budget, **options
    )
    return load(files, given, max_rows)


def trained(of: LoadedPass) -> list[Any]:
    """Everything that staging and training see of a pass, in their order."""
    seen: list[Any] = [of.size, of.instances.unique_keys]
    for number, chosen in enumerate(of.ranges):
        part = of.part(number)
        seen += [chosen.begin, chosen.end, part.keys, part.slots, part.positions]
        rows = np.full(of.instances.unique_keys, -1, np.int32)
        rows[part.positions] = np.arange(len(part.positions), dtype=np.int32)
        size = of.options.data.batch_size
        for begin in range(part.begin, part.end, size):
            end = min(begin + size, part.end)
            seen += of.instances.pack_batch(begin, end, rows, 7, 2).values()
            seen += of.instances.pack_feasigns(begin, end)
    return seen


def check_same(some: LoadedPass, other: LoadedPass) -> None:
    left, right = trained(some), trained(other)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert np.array_equal(a, b)
        assert getattr(a, "dtype", None) == getattr(b, "dtype", None)


@pytest.mark.parametrize("seed", [None, 5], ids=["in order", "shuffled"])
@pytest.mark.parametrize("batch_size", [1000, 4096, 60_000])
@pytest.mark.parametrize("budget", [MIB // 2, 3 * MIB])
def test_batches_are_those_of_a_pass_in_memory(
    files: list[str], seed: int | None, batch_size: int, budget: int
) -> None:
    spilled = loaded(files, budget, batch_size, shuffle_seed=seed)
    assert spilled.spilled_bytes > 0
    check_same(spilled, loaded(files, 0, batch_size, shuffle_seed=seed))


@pytest.mark.parametrize("seed", [None, 5], ids=["in order", "shuffled"])
def test_a_pass_is_split_into_the_same_parts(files: list[str], seed: int | None) -> None:
    options: dict[str, Any] = {"batch_size": 100, "max_rows": 2900, "shuffle_seed": seed}
    spilled, whole = loaded(files, MIB, **options), loaded(files, 0, **options)
    assert len(whole.ranges) > 3
    check_same(spilled, whole)


def test_a_batch_over_the_pass_table_is_the_same_error(files: list[str]) -> None:
    for budget in (0, MIB):
        with pytest.raises(OutOfSpaceError, match=r"alone needs .* rows, the pass table holds 50"):
            loaded(files, budget, 100, max_rows=50)


def test_a_pass_within_the_budget_stays_in_memory(files: list[str]) -> None:
    kept = loaded(files, 64 * MIB, 1000, shuffle_seed=2)
    assert kept.spilled_bytes == 0
    check_same(kept, loaded(files, 0, 1000, shuffle_seed=2))


def test_an_empty_pass_is_one(tmp_path: Path) -> None:
    assert loaded([write(tmp_path / "a", [])], MIB, 10).ranges == []


def test_nothing_is_left_in_the_folder_even_while_it_is_in_use(
    files: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "spill"
    spilled = loaded(files, MIB, 1000, spill_dir=folder)
    assert spilled.spilled_bytes > 0
    assert list(folder.iterdir()) == []


def test_spilled_data_lies_in_a_folder_of_its_own(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where everyone writes: the file has a name for a moment."""
    tmp_path.chmod(0o777)
    born, create = [], core.SpillFile

    def watched(path: str) -> Any:
        born.append((Path(path).parent, Path(path).parent.stat().st_mode & 0o777))
        return create(path)

    monkeypatch.setattr(core, "SpillFile", watched)
    for _ in range(2):
        loaded(files, MIB, 1000, spill_dir=tmp_path)
    assert [mode for _, mode in born] == [0o700] * len(born)
    assert len({folder for folder, _ in born}) == len(born) >= 2
    assert all(folder.parent == tmp_path for folder, _ in born)
    assert not [*tmp_path.iterdir()]


def test_batches_may_be_gone_through_again_and_in_any_order(files: list[str]) -> None:
    spilled, whole = loaded(files, MIB, 1000), loaded(files, 0, 1000)
    for begin in (40_000, 0, 49_000, 1000, 0):
        for a, b in zip(
            spilled.instances.pack_feasigns(begin, begin + 1000),
            whole.instances.pack_feasigns(begin, begin + 1000),
            strict=True,
        ):
            assert np.array_equal(a, b)


def test_a_batch_across_windows_is_refused(files: list[str]) -> None:
    spilled = loaded(files, MIB, 1000)
    with pytest.raises(ValueError, match="begins at a multiple of 1000"):
        spilled.instances.pack_feasigns(0, 50_000)


def test_a_full_disk_is_reported_with_its_path(files: list[str], tmp_path: Path) -> None:
    core.inject_write_fault(100_000, errno.ENOSPC)
    try:
        with pytest.raises(OutOfSpaceError, match=f"{tmp_path}.*no space"):
            loaded(files, MIB, 1000, spill_dir=tmp_path)
    finally:
        core.inject_write_fault(-1, 0)


def test_training_ends_with_the_same_rows(
    open_dataset: OpenDataset, files: list[str], tmp_path: Path
) -> None:
    from tests.data.test_protocol import train

    digests, spilled = [], []
    for budget in (0, MIB):
        dataset = open_dataset(
            batch_size=2000,
            budget_bytes=budget,
            spill_dir=tmp_path,
        )
        dataset.local_shuffle()
        for file in (files[0], files[3]):
            train(dataset, file)
            spilled.append(dataset.stats.spilled_bytes > 0)
        dataset._table.wait_commit()
        digests.append(dataset._table.digest())
        dataset.close()
        dataset._table.close()
    assert digests[0] == digests[1]
    assert spilled == [False, False, True, True]


def test_instances_hold_no_more_than_asked_for() -> None:
    """The shares of the budget add up: two passes, one that trains and one that loads."""
    from paddlebox.data import spill

    train, load_and_index = 2 * spill._WINDOW_SHARE, 3 * spill._WINDOW_SHARE
    assert train + load_and_index <= 1
    assert 2 * 2 * spill._HELD_SHARE <= 1
    assert SpillingInstances(Columns(1, 0), 8, 96 * MIB)._window_bytes == 8 * MIB


MEASURED = """
import json, sys
import numpy as np
from pathlib import Path
from paddlebox._native import core
from paddlebox.data.spill import Columns, new_instances

budget, folder, seed = int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
slots = [{"name": n, "type": t, "dim": 1, "column": ""} for n, t in
         [("click", "label"), *((f"s{i}", "sparse") for i in range(26))]]
schema = core.FeedSchema("multislot", slots, False, 1 << 20)
random = np.random.default_rng(1)
ids = lambda: b"2 %d %d" % tuple(random.integers(1, 50000, 2))
line = lambda: b"1 1 " + b" ".join(ids() for _ in range(26))
texts = [b"".join(line() + b"\\n" for _ in range(1000)) for _ in range(8)]
core.parse_chunk(schema, texts[0])
# ru_maxrss would count what the parent held when it forked.
status = lambda: Path("/proc/self/status").read_text()
peak = lambda: int(status().partition("VmHWM:")[2].split()[0]) * 1024
before, held = peak(), 0
instances = new_instances(Columns(26, 0), 1000, budget, folder)
for number in range(5 * int(sys.argv[4]) // 500_000):
    chunk = core.parse_chunk(schema, texts[number % 8])
    held += core.chunk_bytes(chunk)
    instances.append(chunk)
if seed is not None:
    instances.shuffle(seed)
instances.index(core.ThreadPool(2))
rows = np.arange(instances.unique_keys, dtype=np.int32)
check = 0
for begin in range(0, instances.size, 1000):
    check += int(instances.pack_batch(begin, begin + 1000, rows, 1, 0)["ids"].sum())
print(json.dumps([held, peak() - before, check, instances.size]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [long(None), 3], ids=["in order", "shuffled"])
def test_a_pass_five_times_the_budget_stays_within_it(tmp_path: Path, seed: int | None) -> None:
    budget = 96 * MIB
    env = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "65536"}
    arguments = (str(tmp_path), json.dumps(seed), str(budget))
    held, peak, check, size = run_python(MEASURED, str(budget), *arguments, env=env)
    assert held >= 5 * budget
    assert peak <= budget, f"peak {peak / MIB:.0f} MiB of a budget of {budget / MIB:.0f}"
    whole, in_memory, same, size_too = run_python(MEASURED, "0", *arguments, env=env)
    assert (whole, same, size_too) == (held, check, size)
    assert in_memory > 4 * budget


def test_a_window_that_a_thread_waits_for_is_read_though_another_goes_on(files: list[str]) -> None:
    """Threads pack batches of windows that lie far apart, where windows are small."""
    instances = loaded(files, MIB // 2, 1000).instances
    windows, bounds = instances._windows, instances._layout.bounds
    assert len(bounds) > 4
    blocked = threading.Event()
    windows._reader.submit(blocked.wait)  # so that no window is read yet
    windows._windows.clear()
    with ThreadPoolExecutor(2) as threads:
        waiting = []
        for number in (0, 3):
            begin = int(bounds[number])
            waiting.append(threads.submit(instances.pack_feasigns, begin, begin + 1))
            while number not in windows._windows:
                time.sleep(0.001)
        blocked.set()
        for batch in waiting:
            feasigns, offsets = batch.result(timeout=60)
            assert len(feasigns) == offsets[-1]


def test_threads_get_the_rows_of_the_row_ids_that_they_give(files: list[str]) -> None:
    """The last batches of a part are packed while the next part is prepared."""
    spilled = loaded(files, MIB, 64)
    assert spilled.spilled_bytes
    interval = sys.getswitchinterval()

    def wrong(thread: int) -> int:
        rows = np.full(spilled.instances.unique_keys, thread, np.int32)
        return sum(int(spilled.within(0, 64, rows)[3][0]) != thread for _ in range(3000))

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(wrong, range(4))) == [0] * 4
    finally:
        sys.setswitchinterval(interval)
