"""Pages that say what is in the code, held against it; and the commands of two more pages."""

from __future__ import annotations

import json
import random
import re
import runpy
from pathlib import Path

import pytest

from paddlebox import ops
from paddlebox.config import Config
from paddlebox.config.describe import describe
from tests.conftest import ROOT, call, make_synthetic

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
DESIGN = (ROOT / "docs" / "design.md").read_text()


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def source_of(folder: str) -> str:
    """All code below it."""
    files = [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.h")]
    return "\n".join(path.read_text() for path in files)


def test_every_operator_that_is_registered_is_described() -> None:
    sources = (ROOT / "ops" / "paddle").rglob("*.cc")
    registered = {
        name for path in sources for name in re.findall(r"PD_BUILD_OP\((\w+)\)", path.read_text())
    }
    assert len(registered) >= 12
    written = set(re.findall(r"\w+", page("operators.md")))
    assert registered - written == set()


def test_every_function_of_ops_is_described() -> None:
    spelled = page("operators.md").replace("`…_with_", "`fused_seqpool_cvm_with_")
    assert set(ops.__all__) - {"paddle"} - set(re.findall(r"\w+", spelled)) == set()


def test_every_folder_of_code_has_its_line_in_the_design() -> None:
    found = {
        f"{top}/{folder.name}"
        for top in ("ops", "paddlebox")
        for folder in (ROOT / top).iterdir()
        if folder != ROOT / "paddlebox/include"  # is built
        and folder.is_dir()
        and any(path.suffix in (".py", ".h") for path in folder.rglob("*"))
    }
    lines = re.findall(r"^\| `((?:ops|paddlebox)/\w+)` \|", DESIGN, re.MULTILINE)
    assert found == set(lines)
    assert len(lines) == len(found)


def test_every_file_that_the_design_names_is_there() -> None:
    named = re.findall(r"`((?:ops|paddlebox)/[\w/]+\.\w+)`", DESIGN)
    assert len(named) > 20
    for path in named:
        assert (ROOT / path).is_file(), path


def test_every_class_that_the_design_names_is_in_its_folder() -> None:
    count = 0
    for folder, what in re.findall(r"^\| `((?:ops|paddlebox)/\w+)` \| (.*?) \|", DESIGN, re.M):
        code = source_of(folder)
        for name in re.findall(r"`([A-Z]\w+)`", what):
            assert re.search(rf"^\s*(class|struct) {name}\b", code, re.M), f"{folder}: {name}"
            count += 1
    assert count > 15


def test_every_key_that_a_page_names_is_in_the_schema() -> None:
    keys = {key.path for key in describe(Config)}
    sections = {key.rsplit(".", depth)[0] for key in keys for depth in (1, 2)} | keys
    first = "|".join(sorted({key.split(".")[0] for key in keys if "." in key}))
    files = {"metrics.jsonl", "data.mdb", "store.moving", "store.moved", "store.before"}
    count = 0
    for path in PAGES:
        text = path.read_text()
        named = set(re.findall(rf"`((?:{first})\.[a-z][\w.]*\w)(?:[:= ][^`]*)?`", text))
        named |= set(re.findall(rf"-o '?((?:{first})\.[a-z][\w.]*)=", text))
        named -= files | {"runner.epochs"}  # of PaddleRec
        assert named - sections == set(), path.name
        count += len(named)
    assert count > 100


def test_every_path_that_a_page_names_is_there() -> None:
    tops = "ops|paddlebox|tests|tools|benchmarks|configs|datasets|docs|requirements"
    made = {"paddlebox/_build_info.py", "benchmarks/results/"}  # by a build, by benchmarks
    theirs = {"tools/infer.py"}  # of PaddleRec
    named = {
        (path.name, one)
        for path in PAGES
        for one in re.findall(rf"`((?:{tops})/[\w./-]+)`", path.read_text())
    }
    assert len(named) > 100
    gone = {(on, one) for on, one in named if not (ROOT / one).exists()}
    assert {(on, one) for on, one in gone if one not in made | theirs} == set()


def test_contributing_lists_each_layer() -> None:
    layers = runpy.run_path(str(ROOT / ".ci" / "layers.py"))
    text = (ROOT / "CONTRIBUTING.md").read_text()
    said = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", text))))
    inside = {"ops_dense", "ops_jagged", "ops_seqpool"}  # modules of the package's face
    named = {name for name in (*layers["CPP"], *layers["PYTHON"]) if not name.startswith("_")}
    assert named - inside - said == set()


def test_what_the_reading_tour_names_is_in_its_file() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`([\w.:]+)` in\s+`([\w/]+\.\w+)`", text)
    assert len(named) >= 9
    for name, path in named:
        last = re.split(r"\W+", name)[-1]
        defined = rf"(def |class |::|> ){last}\b"
        assert re.search(defined, (ROOT / path).read_text()), f"{path}: {name}"


def test_every_tool_that_a_page_names_is_there() -> None:
    theirs = {"trainer", "infer"}  # of PaddleRec, whose names stand beside ours
    for path in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        for name in set(re.findall(r"\btools/(\w+)\.py", path.read_text())) - theirs:
            assert (ROOT / "tools" / f"{name}.py").is_file(), f"{path.name}: tools/{name}.py"


def commands_of(name: str) -> list[str]:
    return [line for line in page(name).splitlines() if line.startswith(("paddlebox ", "python "))]


@pytest.mark.slow  # starts of processes that import Paddle
def test_a_config_of_paddlerec_is_trained_with_the_two_commands_of_the_page(tmp_path: Path) -> None:
    config = re.search(r"^# (PaddleRec/\S+)\n(?:.*\n)*?(?=```)", page("from_paddlerec.md"), re.M)
    assert config is not None
    folder = (tmp_path / config[1]).parent
    (folder / "data/sample_data/train").mkdir(parents=True)
    (tmp_path / config[1]).write_text(config[0])
    draw = random.Random(1)
    lines = []
    for _ in range(60):
        dense = " ".join(f"dense_feature:{draw.random():.4f}" for _ in range(13))
        slots = " ".join(f"{slot}:{draw.randrange(1, 1000000)}" for slot in range(1, 27))
        lines.append(f"click:{draw.randrange(2)} {dense} {slots}\n")
    (folder / "data/sample_data/train/sample_train.txt").write_text("".join(lines))

    convert, train, evaluate = commands_of("from_paddlerec.md")
    said = call(tmp_path, convert)
    shown = r"^ +(\d+  (?:runner|hyper_parameters)\..*)$"
    quoted = re.findall(shown, page("from_paddlerec.md"), re.M)
    assert len(quoted) == 4
    assert set(quoted) <= set(re.findall(shown, said, re.M))
    call(tmp_path, train)
    assert json.loads(call(tmp_path, evaluate))["samples"] == 60
    passes = (tmp_path / "runs/dnn/metrics.jsonl").read_text().splitlines()
    assert [json.loads(one)["samples"] for one in passes] == [60, 60, 60]


@pytest.mark.slow
def test_a_custom_network_is_created_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "datasets").symlink_to(ROOT / "datasets")
    make_synthetic(tmp_path / "data/synthetic", passes=1, rows=2000, test_rows=100)
    begin, prepare, train, test = commands_of("new_model.md")
    assert prepare.endswith("datasets/synthetic/prepare.py")  # which has run, with fewer rows
    call(tmp_path, begin)
    call(tmp_path, train)
    assert "2 passed" in call(tmp_path, test)
    assert json.loads((tmp_path / "runs/my_net/metrics.jsonl").read_text())["samples"] == 2000
