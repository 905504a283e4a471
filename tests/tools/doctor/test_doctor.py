"""Each fact that matters is told, with what mends it; a sound machine is told nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from paddlebox.config.section import GIB, MIB
from paddlebox.config.table import HbmConfig, MemConfig
from paddlebox.errors import StoreError
from paddlebox.launch.cpu import Setting
from paddlebox.tools.doctor.cli import as_text, as_yaml, budgets, doctor_main, report_of
from paddlebox.tools.doctor.facts import DiskRates, Facts, chosen_of, filesystem_of, measure_disk
from paddlebox.tools.doctor.findings import Level, findings

FAST = DiskRates(
    write_bytes_per_s=1.5e9,
    read_bytes_per_s=2.5e9,
    random_reads_per_s=200_000,
    fsync_s=0.0005,
    direct=True,
    free_bytes=400 * GIB,
)
SOUND = Facts(
    python=(3, 11),
    machine="x86_64",
    packages_missing=(),
    paddle="paddlepaddle 3.3.1 (CPU build)",
    native_problem="",
    vector_path="avx512",
    dense_types={"float32": "fast", "bfloat16": "slow"},
    cpu_vendor="AuthenticAMD",
    cpu_flags=frozenset({"avx2", "avx512f"}),
    cores=8,
    load=1.0,
    numa_nodes=1,
    governor="performance",
    huge_pages="madvise",
    memory_bytes=64 * GIB,
    available_bytes=40 * GIB,
    memory_limit_bytes=None,
    memory_used_bytes=0,
    open_files=1 << 20,
    io_uring=True,
    gpus=0,
    filesystem="ext4",
    disk=FAST,
    settings={},
)


def test_a_sound_machine_has_no_findings() -> None:
    assert findings(SOUND) == []


@pytest.mark.parametrize(
    ("changed", "level", "topic", "words"),
    [
        ({"machine": "aarch64"}, "fails", "machine", "aarch64"),
        ({"python": (3, 10)}, "fails", "python", "3.10, expected 3.11"),
        ({"packages_missing": ("lmdb",)}, "fails", "packages", "lmdb"),
        ({"native_problem": "made for Paddle 3.3.0"}, "fails", "paddle", "made for Paddle 3.3.0"),
        ({"gpus": 2}, "note", "gpu", "2 GPUs"),
        (
            {"dense_types": {"bfloat16": "fast"}},
            "note",
            "dense types",
            "products in bfloat16 are faster",
        ),
        ({"vector_path": "avx2"}, "note", "vector path", "use AVX2"),
        ({"vector_path": "plain"}, "slow", "vector path", "no AVX2"),
        ({"cores": 1}, "slow", "cores", "one core"),
        ({"load": 20.4}, "slow", "load", "have 20 threads for the 8 cores"),
        ({"governor": "powersave"}, "slow", "governor", "powersave"),
        ({"numa_nodes": 2}, "note", "numa", "2 memory nodes"),
        ({"settings": {"OMP_NUM_THREADS": "8"}}, "slow", "OMP_NUM_THREADS", "is 8, with 8 cores"),
        (
            {"settings": {"KMP_AFFINITY": "granularity=fine,compact"}},
            "slow",
            "KMP_AFFINITY",
            "pins",
        ),
        ({"settings": {"FLAGS_use_mkldnn": "1"}}, "fails", "FLAGS_use_mkldnn", "wrong results"),
        ({"settings": {"MKL_DEBUG_CPU_TYPE": "5"}}, "slow", "MKL_DEBUG_CPU_TYPE", "is 5; 7 is"),
        ({"available_bytes": 500 * MIB}, "fails", "memory", "500 MiB are free"),
        ({"memory_limit_bytes": 16 * GIB}, "note", "memory", "may use 16.0 of 64.0 GiB"),
        (
            {"memory_limit_bytes": 16 * GIB, "memory_used_bytes": 16 * GIB},
            *("fails", "memory", "0 MiB are free"),
        ),
        ({"huge_pages": "never"}, "slow", "huge pages", "are off"),
        ({"io_uring": False}, "note", "io_uring", "forbids"),
        ({"filesystem": "nfs4"}, "slow", "disk", "nfs4"),
        ({"filesystem": "tmpfs"}, "fails", "disk", "tmpfs is memory"),
        ({"open_files": 100}, "fails", "open files", "limit is 100"),
        ({"open_files": 1000}, "note", "open files", "limit is 1000"),
    ],
)
def test_each_problem_is_reported(
    changed: dict[str, Any], level: str, topic: str, words: str
) -> None:
    found = findings(dataclasses.replace(SOUND, **changed))
    told = [one for one in found if one.topic == topic and words in one.what]
    assert [one.level for one in told] == [Level(level)]
    assert told[0].do
    assert all(one.topic == topic for one in found)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"read_bytes_per_s": 120e6}, "reads 120 MB/s"),
        ({"write_bytes_per_s": 90e6}, "writes 90 MB/s"),
        ({"random_reads_per_s": 150}, "reads 150 random pages"),
        ({"fsync_s": 0.03}, "30 ms"),
        ({"direct": False}, "no direct I/O"),
    ],
)
def test_a_slow_disk_is_reported_with_its_figure(changed: dict[str, Any], words: str) -> None:
    disk = dataclasses.replace(FAST, **changed)
    (one,) = findings(dataclasses.replace(SOUND, disk=disk))
    assert (one.level, one.topic) == (Level.SLOW, "disk")
    assert words in one.what


def test_what_fails_comes_first_and_makes_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = dataclasses.replace(SOUND, governor="powersave", python=(3, 9), gpus=1)
    assert [one.level.value for one in findings(bad)] == ["fails", "slow", "note"]
    for facts, code in ((bad, 1), (dataclasses.replace(bad, python=(3, 12)), 0)):
        monkeypatch.setattr("paddlebox.tools.doctor.cli.read_facts", lambda *_, f=facts, **__: f)
        assert doctor_main(["--folder", str(tmp_path), "--disk-mib", "0", "--json"]) == code
        assert json.loads(capsys.readouterr().out)["works"] is (code == 0)


def test_suitable_settings_are_not_reported() -> None:
    good = {"OMP_NUM_THREADS": "4", "MKL_DEBUG_CPU_TYPE": "7", "FLAGS_use_mkldnn": "0"}
    assert findings(dataclasses.replace(SOUND, settings=good)) == []
    intel: dict[str, Any] = {"cpu_vendor": "GenuineIntel", "settings": {"MKL_DEBUG_CPU_TYPE": "5"}}
    assert findings(dataclasses.replace(SOUND, **intel)) == []


def test_budgets_leave_room_and_can_be_pasted() -> None:
    limited = dataclasses.replace(SOUND, memory_limit_bytes=20 * GIB, memory_used_bytes=4 * GIB)
    chosen = budgets(limited)
    # 16 GiB may be taken: a quarter, 35 % down to 64 MiB, 15 %; of 400 GiB free 80 %.
    assert chosen == {
        "hbm.budget_bytes": 4 * GIB,
        "mem.budget_bytes": 5696 * MIB,
        "feeder.budget_bytes": 2432 * MIB,
        "ssd.disk_budget_bytes": 320 * GIB,
    }
    pasted = yaml.safe_load(as_yaml(chosen))
    assert HbmConfig.model_validate(pasted["hbm"]).budget_bytes == 4 * GIB
    assert MemConfig.model_validate(pasted["mem"]).budget_bytes == 5696 * MIB
    assert "ssd.disk_budget_bytes" not in budgets(dataclasses.replace(SOUND, disk=None))


def test_the_text_has_findings_settings_and_budgets() -> None:
    facts = dataclasses.replace(SOUND, huge_pages="never")
    text = as_text(report_of(facts, {"OMP_NUM_THREADS": Setting("4", "of 8 cores")}))
    for words in ("slow  huge pages: are off", "-> echo madvise", "OMP_NUM_THREADS=4", "mem:\n"):
        assert words in text
    assert "no problems found" in as_text(report_of(SOUND, {}))


def test_system_files_are_understood() -> None:
    assert chosen_of("always [madvise] never\n") == "madvise"
    assert chosen_of("") is None
    mounts = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "40 22 0:30 / /data rw shared:1 - nfs4 server:/x rw\n"
        "41 22 0:31 / /data/fast\\040disk rw - xfs /dev/nvme0n1 rw\n"
    )
    assert filesystem_of(mounts, Path("/home/me")) == "ext4"
    assert filesystem_of(mounts, Path("/data/runs")) == "nfs4"
    assert filesystem_of(mounts, Path("/data/fast disk/runs")) == "xfs"
    assert filesystem_of("", Path("/data")) == ""


def test_a_disk_is_measured_within_bounds_and_left_as_it_was(tmp_path: Path) -> None:
    found = measure_disk(tmp_path, most_bytes=4 << 20, seconds=0.1)
    assert min(found.write_bytes_per_s, found.read_bytes_per_s, found.random_reads_per_s) > 0
    assert found.fsync_s > 0
    at_once = measure_disk(tmp_path, most_bytes=4 << 20, seconds=0.0)  # a machine that is so slow
    assert min(at_once.read_bytes_per_s, at_once.random_reads_per_s) > 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError, match="cannot be measured: No such file"):
        measure_disk(tmp_path / "absent")


def test_this_machine_can_be_examined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor_main(["--folder", str(tmp_path), "--disk-mib", "4", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert code == (0 if told["works"] else 1)
    assert told["facts"]["native_problem"] == ""
    assert told["facts"]["cores"] >= 1
    assert told["facts"]["usable_bytes"] > 0
    assert told["budgets"]["hbm.budget_bytes"] >= MIB
