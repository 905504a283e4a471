"""A folder, a glob, a URI and an hour's folder list the same files, by one rule."""

from __future__ import annotations

import logging
import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from pyarrow import fs

from paddlebox.config.data import HoursConfig
from paddlebox.config.dates import hour_at
from paddlebox.data import listing
from paddlebox.data.listing import expand, look
from paddlebox.errors import DataError
from paddlebox.store import remote

NAMES = ["a", "b", "c d", "e-f", "é"]
TEMPORARY = [".h", "_temporary", "x.tmp", "y.crc", "z._COPYING_"]


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    listing._say.cache_clear()


def make(folder: Path, rng: random.Random, depth: int = 3) -> None:
    folder.mkdir()
    for name in rng.sample(NAMES + TEMPORARY, 5):
        if depth and rng.random() < 0.5:
            make(folder / name, rng, depth - 1)
        else:
            (folder / f"{name}.csv" if name in NAMES else folder / name).write_text("x")


def link(folder: Path, elsewhere: Path, rng: random.Random) -> None:
    folders = [Path(path) for path, _, _ in os.walk(folder)]
    files = [path for path in elsewhere.rglob("*") if path.is_file()]
    targets = [elsewhere, folder, Path(".."), Path("nowhere"), Path("."), folder.parent, *files]
    for number, target in enumerate(rng.sample(targets, 5)):
        (rng.choice(folders) / f"link{number}").symlink_to(target)


def walked(folder: Path, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The parts of the paths of all files, by another program."""
    found: list[tuple[str, ...]] = []
    above = (*above, os.path.realpath(folder))
    for path in folder.iterdir():
        name = path.name
        if name[0] in "._" or name.endswith((".tmp", ".crc", "._COPYING_")):
            continue
        if path.is_file():
            found.append((name,))
        elif path.is_dir():
            real = Path(os.path.realpath(path))
            if not any(real == Path(one) or real in Path(one).parents for one in above):
                found += [(name, *rest) for rest in walked(path, above)]
    return sorted(found)


@pytest.mark.parametrize("seed", range(6))
def test_folder_globs_uris_and_hours_list_the_same_files(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, data = random.Random(seed), tmp_path / "20240101"
    make(data, rng)
    make(tmp_path / "elsewhere", rng)
    (data / "always.csv").write_text("x")
    (data / "sub").mkdir()
    (data / "sub" / "a.csv").write_text("x")
    link(data, tmp_path / "elsewhere", rng)
    expected = walked(data)

    def listed(pattern: str) -> list[tuple[str, ...]]:
        return [
            Path(remote.filesystem_of(file)[1]).relative_to(data).parts
            for file in expand([pattern])
        ]

    uri = data.as_uri()
    for place in (str(data), f"{data}/", f"{data}/**", f"{data}/**/*", uri, f"{uri}/**/*"):
        assert listed(place) == expected, place
    assert listed(f"{data}/*/*.csv") == listed(f"{uri}/*/*.csv")
    assert listed(f"{data}/*/*.csv") == [
        parts for parts in expected if len(parts) == 2 and parts[1].endswith(".csv")
    ]
    assert listed(f"{data}/**/sub/*") == [p for p in expected if p[-2:-1] == ("sub",)]
    hour = hour_at("{date}", datetime(2024, 1, 1, tzinfo=UTC))
    for root in (tmp_path, tmp_path.as_uri()):
        files = look(
            HoursConfig(path_template=f"{root}/{{date}}", from_hour="20240101"), hour
        ).files
        assert [Path(remote.filesystem_of(file)[1]).relative_to(data).parts for file in files] == (
            expected
        )
    # A system without links, which lists all entries at once.
    flat = fs.SubTreeFileSystem(str(data), fs.LocalFileSystem())
    for path in data.rglob("*"):
        if path.is_symlink():
            path.unlink()
    expected = walked(data)
    monkeypatch.setattr(remote, "filesystem_of", lambda uri: (flat, uri[len("s3://host") :]))
    for pattern in ("s3://host/", "s3://host/**"):
        found = [unquote(file).removeprefix("s3://host/") for file in expand([pattern])]
        assert [Path(path).parts for path in found] == expected


def test_what_is_left_out_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    for name in ("a.csv", "_temporary/0/a.csv", "day.tmp/a.csv", "sub/a.csv"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text("x")
    (data / "gone").symlink_to("nowhere")
    (data / "loop").symlink_to("loop")
    (data / "sub" / "up").symlink_to("..")
    (data / "same").symlink_to("sub")
    os.mkfifo(data / "pipe")
    with caplog.at_level(logging.INFO):
        files = [*map(expand, 3 * [[str(data)]])][2]
    assert [os.path.relpath(file, data) for file in files] == ["a.csv", "same/a.csv", "sub/a.csv"]
    said = [record.getMessage() for record in caplog.records]
    assert sorted(text.removeprefix(f"{data}: ") for text in said) == [
        "1 entries that are neither files nor folders are left out: pipe",
        "1 links that lead nowhere are left out: gone",
        "2 hidden or temporary files are left out: _temporary/, day.tmp/",
        "3 links that lead back to a folder above them are left out: loop, same/up, sub/up",
        "a link leads to files that it lists already, which are read twice: "
        f"{data}/same/a.csv is also {data}/sub/a.csv",
    ]
    caplog.clear()
    assert expand([f"{data}/*"]) == [f"{data}/a.csv"]
    assert "2 folders match; add /** to the glob to read the files in them: same/, sub/" in (
        caplog.text
    )


def test_a_glob_may_ask_for_temporary_names(tmp_path: Path) -> None:
    for name in ("_temporary/0/a.csv", "0/a.csv", "0/_b.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    def named(pattern: str) -> list[str]:
        return [os.path.relpath(file, tmp_path) for file in expand([str(tmp_path / pattern)])]

    assert named("**/*.csv") == ["0/a.csv"]
    assert named("*/_*") == ["0/_b.csv"]
    assert named("_temporary") == named("**/_temporary/*/*") == ["_temporary/0/a.csv"]


def test_folders_that_link_each_other_are_an_error(tmp_path: Path) -> None:
    names = [f"d{n}" for n in range(6)]
    for name in names:
        (tmp_path / name).mkdir()
    for name in names:
        for other in names:
            (tmp_path / name / other).symlink_to(tmp_path / other)
    with pytest.raises(DataError, match=r"more than 100 paths with links lead to .*/d"):
        expand([str(tmp_path)])


def test_a_folder_that_cannot_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def refused(path: str) -> Any:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(DataError, match="closed: cannot list the folder: Permission denied"):
        expand([str(tmp_path)])
    (tmp_path / "link.csv").symlink_to("gone.csv")
    with pytest.raises(DataError, match=r"link\.csv: a link to gone\.csv, which is no file"):
        expand([str(tmp_path / "link.csv")])
