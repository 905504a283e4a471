"""A published result is out of date if the code that it measures has changed since."""

from __future__ import annotations

import io
import os
import re
import tokenize
from pathlib import Path

import pytest

from tests.ci import scripts
from tests.conftest import ROOT

measured_code = scripts.load("measured_code", "benchmarks")


def digest(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(measured_code.digest(name, folder))


@pytest.mark.parametrize(
    ("name", "old", "same", "other"),
    [
        ("a.py", "x = 1\n", '"""Why."""\n\nx = 1  # one\n', "x = 2\n"),
        ("a.py", "if x:\n    a()\n    b()\n", "if x:\n  a()\n\n  b()\n", "if x:\n    a()\nb()\n"),
        ("a.py", "x = 'a'\n", "'Why.'\nx = 'a'\n", "x = 'b'\n"),
        ("a.cc", "int x = 1;", "// Why.\nint x\n  = /* one */ 1;", "int x = 2;"),
        ("a.cc", 'auto x = "//a";', 'auto x = "//a";  // b', 'auto x = "//b";'),
        ("a.yaml", "rate: 1\n", "rate: 1 # one\n", "rate: 2\n"),
    ],
)
def test_only_comments_docstrings_and_layout_do_not_count(
    tmp_path: Path, name: str, old: str, same: str, other: str
) -> None:
    before = digest(tmp_path, name, old)
    assert digest(tmp_path, name, same) == before
    assert digest(tmp_path, name, other) != before


def test_an_f_string_counts_as_in_python_3_11_where_it_is_one_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "x = f'{a}{f\"{b}\"}'\n"
    expected = digest(tmp_path, "a.py", text)
    start, middle, end = 1001, 1002, 1003  # as Python 3.12 divides it
    strings = [
        *((start, "f'", 4), (54, "{", 6), (1, "a", 7), (54, "}", 8), (54, "{", 9)),
        *((start, 'f"', 10), (54, "{", 12), (1, "b", 13), (54, "}", 14), (end, '"', 15)),
        *((54, "}", 16), (end, "'", 17)),
    ]
    real = list(tokenize.generate_tokens(io.StringIO(text).readline))
    place = next(i for i, token in enumerate(real) if token.type == tokenize.STRING)
    parts = [
        tokenize.TokenInfo(kind, string, (1, at), (1, at + len(string)), text)
        for kind, string, at in strings
    ]
    divided = [*real[:place], *parts, *real[place + 1 :]]
    names = {start: "FSTRING_START", middle: "FSTRING_MIDDLE", end: "FSTRING_END"}
    monkeypatch.setattr(tokenize, "tok_name", tokenize.tok_name | names)
    monkeypatch.setattr(tokenize, "generate_tokens", lambda _: iter(divided))
    assert digest(tmp_path, "a.py", text) == expected


def test_a_folder_changes_with_the_names_and_contents_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    found = [measured_code.digest("ops", tmp_path)]
    for name, text in (("ops/a.h", "int a;"), ("ops/b.h", "int b;"), ("ops/b.h", "int c;")):
        (tmp_path / name).write_text(text)
        found.append(measured_code.digest("ops", tmp_path))
    (tmp_path / "ops/b.h").rename(tmp_path / "ops/c.h")
    found.append(measured_code.digest("ops", tmp_path))
    assert len(set(found)) == 5
    (tmp_path / "ops/notes.md").write_text("no code")
    assert measured_code.digest("ops", tmp_path) == found[-1]


def test_a_script_counts_with_what_it_imports_and_starts(tmp_path: Path) -> None:
    for name, text in {
        "one.py": "import report\nimport two\nfrom peers import three\nx = ['one', 'five']\n",
        "two.py": "Subject('four', 'name')\n",
        "five.py": "",
        "report.py": "",
        "peers/three.py": "compiled('six.cc')\n",
        "peers/four.py": "from peers.seven import x\n",
        "peers/seven.py": "",
        "native/six.cc": '#include "nine.h"\n',
        "native/nine.h": "",
        "native/eight.cc": "",
    }.items():
        (tmp_path / "benchmarks" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "benchmarks" / name).write_text(text)
    found = measured_code.digests(tmp_path / "benchmarks/one.py", ["ops"], tmp_path)
    names = {path.removeprefix("benchmarks/") for path in found}
    parts = {"peers/three.py", "peers/four.py", "peers/seven.py", "native/six.cc", "native/nine.h"}
    assert names == {"one.py", "two.py", *parts, "ops"}
    assert found["ops"] == "missing"
    assert measured_code.changed(found, tmp_path) == []
    (tmp_path / "benchmarks/peers/seven.py").write_text("x = 1\n")
    assert measured_code.changed(found, tmp_path) == ["benchmarks/peers/seven.py"]


def test_code_that_changes_during_a_run_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    file = tmp_path / "ops/a.h"
    file.write_text("int a;")
    moment = file.stat().st_mtime
    assert not measured_code.written_since(["ops"], moment, tmp_path)
    os.utime(file, (moment + 1, moment + 1))
    assert measured_code.written_since(["ops"], moment, tmp_path)


def test_every_peer_and_native_part_belongs_to_a_benchmark() -> None:
    folder = ROOT / "benchmarks"
    found: set[str] = set()
    for script in folder.glob("*.py"):
        found |= measured_code.digests(script, []).keys()
    parts = {*(folder / "peers").glob("[a-z]*.*"), *(folder / "native").glob("*.*")}
    assert {path.relative_to(ROOT).as_posix() for path in parts} <= found


def test_what_a_benchmark_measures_exists() -> None:
    """A path that is renamed is renamed in MEASURES too."""
    texts = [path.read_text() for path in (ROOT / "benchmarks").glob("*.py")]
    written = [text for text in texts if re.search(r"report\.(write|timed)\(", text)]
    measures = [re.search(r"^MEASURES = (.*)$", text, re.MULTILINE) for text in written]
    assert all(measures)
    shared = re.search(r"^TRAINING = .*?^RANKS = .*?$", "\n".join(texts), re.DOTALL | re.MULTILINE)
    for found in (*measures, shared):
        assert found is not None
        for path in re.findall(r'"([^"]+)"', found[0]):
            assert (ROOT / path).exists(), path
