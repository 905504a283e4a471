"""Mistakes that show when a command runs. `say` makes each in a folder of its own; one process
makes all of them, because to import Paddle takes longer than they do.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.mistakes import Named, Said

SLOTS = """\
slots:
  - {name: click, type: label}
  - {name: user, type: sparse, hash: true}
  - {name: item, type: sparse}
  - {name: price, type: dense}
"""
CONFIG = """\
name: mine
data:
  format: csv
  slots: slots.yaml
  train_files: [train.csv]
  test_files: [test.csv]
  files_per_pass: 1
model: {type: deepfm, hidden: [4]}
table: {embedx_dim: 4}
"""
HEADER = "click,user,item,price\n"
ROWS = "".join(f"{n % 2},u{n % 5},{1 + n % 3},{n % 4}.5\n" for n in range(40))
ROOT = Path(__file__).resolve().parents[2]
GOOD = {"user": "u1", "item": 2, "price": 0.5}
_NAMED: dict[str, tuple[Named, Callable[[], Said]]] = {}


def mistake(
    object: str,  # noqa: A002  # the word that messages are described with
    expected: str,
    found: str,
    step: str,
    code: int | None = None,
) -> Callable[[Callable[[], Said]], None]:
    """Adds a function that makes a mistake, in its own folder; the rest is as in `Named`."""

    def add(make: Callable[[], Said]) -> None:
        name = make.__name__.replace("_", " ").strip()
        _NAMED[name] = (Named(object, expected, found, step, code), make)

    return add


def write(files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def _recorded() -> Iterator[Path]:
    """What the process prints, native code included, goes to a file."""
    sys.stdout.flush(), sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    with tempfile.NamedTemporaryFile("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            yield Path(file.name)
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            for number, one in zip((1, 2), kept, strict=True):
                os.dup2(one, number)
                os.close(one)


def ran(tool: str, *arguments: Any) -> Said:
    """A command line, as of tools/<tool>.py."""
    from paddlebox.launch import cli, export, serve

    mains = {
        "train": cli.train_main,
        "evaluate": cli.evaluate_main,
        "export": export.export_main,
        "serve": serve.serve_main,
    }
    sys.argv[0] = f"{tool}.py"
    with _recorded() as text:
        try:
            code = mains[tool]([*map(str, arguments)])
        except SystemExit as ended:
            code = int(ended.code or 0)
        sys.stderr.flush()
        return Said(code, text.read_text())


def called(call: Callable[[], Any]) -> Said:
    """A call from Python that raises."""
    with _recorded() as text:
        try:
            call()
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return Said(None, text.read_text())


def train(*more: Any) -> Said:
    return ran("train", "-c", "config.yaml", "--run-dir", "run", *more)


def trained(slots: str = SLOTS, **files: str | bytes) -> Said:
    """A training where these files are otherwise than they should be."""
    names = {"train": "train.csv", "config": "config.yaml"}
    write({"slots.yaml": slots, **{names[name]: content for name, content in files.items()}})
    return train()


def shared(name: str) -> Path:
    """run, a trained run, or r.export, made of it; both stay as they are."""
    return Path("..").resolve() / "shared" / name


def own_run() -> None:
    shutil.copytree(shared("run"), "run")


def predictor() -> Any:
    from paddlebox.serving import Predictor

    return Predictor(shared("r.export"))


def asked(body: bytes) -> Said:
    """A request over HTTP, and the status and message of its answer."""
    from aiohttp import test_utils

    from paddlebox.serving.counters import Counters, ServeOptions
    from paddlebox.serving.http import Server

    async def talk(one: Any) -> Said:
        server = test_utils.TestServer(Server(one, ServeOptions(), Counters(1), 0).application())
        async with test_utils.TestClient(server) as client:
            headers = {"Content-Type": "application/json"}
            answer = await client.post("/predict", data=body, headers=headers)
            message = (await answer.json())["error"]["message"]
            return Said(answer.status, f"RequestError: {message}\n")

    with predictor() as one:
        return asyncio.run(talk(one))


def in_other_process(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def dataset(table: Any) -> Any:
    import paddlebox

    made = paddlebox.InMemoryDataset(table)
    made.init(slots="slots.yaml", data_format="csv", batch_size=8, thread_num=1)
    return made


@contextmanager
def opened(folder: str = "store") -> Iterator[Any]:
    import paddlebox
    from paddlebox.config import TableConfig

    table = paddlebox.Table(TableConfig(embedx_dim=4), folder=folder, mem_budget_bytes=8 << 20)
    try:
        yield table
    finally:
        table.close()


# ---- data


@mistake("nowhere/*.csv", "expected one or more", "no file matches", "correct the path", 3)
def train_files_that_match_nothing() -> Said:
    return train("-o", "data.train_files=[nowhere/*.csv]")


@mistake("train.csv", "expected a file", "no such file", "correct the path", 3)
def a_relative_path_from_another_folder() -> Said:
    Path("sub").mkdir()
    os.chdir("sub")
    return ran(
        "train", "-c", "../config.yaml", "--run-dir", "run", "-o", "data.slots=../slots.yaml"
    )


@mistake("slots.yaml", "expected a YAML file", "No such file", "correct the path", 2)
def slots_yaml_from_another_folder() -> Said:
    Path("sub").mkdir()
    os.chdir("sub")
    return ran("train", "-c", "../config.yaml", "--run-dir", "run")


@mistake("train.csv", "a header", "no first line", "write it again", 3)
def an_empty_file() -> Said:
    return trained(train="")


@mistake("train.csv", "column 'click'", "looks like data", "csv: {header: false}", 3)
def a_file_without_a_header() -> Said:
    return trained(train=ROWS)


@mistake("train.csv", "column 'click'", "';' occurs", 'csv: {delimiter: ";"}', 3)
def another_delimiter() -> Said:
    return trained(train=(HEADER + ROWS).replace(",", ";"))


@mistake("train.csv:12", "expected 4", "3 cells", "correct or remove these lines", 3)
def a_row_with_fewer_columns() -> Said:
    return trained(train=HEADER + ROWS.replace("0,u0,2,2.5\n", "0,u0,2\n"))


@mistake("train.csv:2: slot 'click'", "label in [0, 1]", "'2'", "write labels as 0, 1", 3)
def labels_of_1_and_2() -> Said:
    lines = ROWS.splitlines()
    return trained(train=HEADER + "".join(f"{2 - int(line[0])}{line[1:]}\n" for line in lines))


@mistake("train.csv:3: slot 'click'", "label in [0, 1]", "'yes'", "write labels as 0, 1", 3)
def a_label_of_words() -> Said:
    lines = ROWS.splitlines()
    words = {"0": "no", "1": "yes"}
    return trained(train=HEADER + "".join(f"{words[line[0]]}{line[1:]}\n" for line in lines))


@mistake("train.csv:2: slot 'price'", "finite number", "'nan'", 'csv: {null: ["nan"]}', 3)
def nan_in_a_dense_column() -> Said:
    return trained(train=HEADER + "1,u1,2,nan\n" + ROWS)


@mistake("train.csv:2: slot 'price'", "finite number", "''", "default: VALUE", 3)
def empty_cells_in_a_dense_column() -> Said:
    return trained(train=HEADER + "1,u1,2,\n" + ROWS)


@mistake("train.csv:2: slot 'price'", "1e+15", "1e+30", "clip: [low, high]", 3)
def huge_values_in_a_dense_column() -> Said:
    return trained(train=HEADER + "1,u1,2,1e30\n" + ROWS)


@mistake("train.csv:2: slot 'item'", "decimal feasign", "'shoe'", "hash: true", 3)
def strings_in_a_sparse_slot_without_hash() -> Said:
    return trained(train=HEADER + "1,u1,shoe,1\n" + ROWS)


@mistake("train.csv:2: slot 'item'", "decimal feasign", "'-1'", "hash: true", 3)
def negative_ids() -> Said:
    return trained(train=HEADER + "1,u1,-1,1\n" + ROWS)


@mistake("train.csv", "column 'item'", "click, user, items, price", "did you mean 'items'?", 3)
def a_column_that_is_not_in_the_file() -> Said:
    return trained(train=HEADER.replace("item", "items") + ROWS)


@mistake("train.csv", "end-of-stream", "damaged gzip", "fetch or write the file again", 3)
def a_truncated_gzip_file() -> Said:
    return trained(train=gzip.compress((HEADER + ROWS).encode())[:-20])


@mistake("train.csv", "UTF-8", "UTF-16", "iconv", 3)
def a_file_in_utf_16() -> Said:
    return trained(train=(HEADER + ROWS).encode("utf-16"))


@mistake("train.csv", "data.format parquet", "magic bytes not found", "correct data.format", 3)
def a_csv_file_as_parquet() -> Said:
    return trained(config=CONFIG.replace("csv\n", "parquet\n", 1))


@mistake("train.csv", "column 'price'", "click, user, item", "column: NAME", 3)
def a_parquet_file_without_a_column() -> Said:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"click": [0.0, 1.0], "user": ["a", "b"], "item": [1, 2]}), "train.csv")
    return trained(config=CONFIG.replace("csv\n", "parquet\n", 1))


@mistake("column 'item'", "an integer type", "found string", "hash: true", 3)
def strings_of_parquet_without_hash() -> Said:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"click": [0.0, 1.0], "user": ["a", "b"], "item": ["x", "y"], "price": [1.0, 2.0]}
    pq.write_table(pa.table(columns), "train.csv")
    return trained(config=CONFIG.replace("csv\n", "parquet\n", 1))


@mistake("train.csv:1", "a count of values", "click,user", "correct data.format", 3)
def a_csv_file_as_multislot() -> Said:
    return trained(config=CONFIG.replace("csv\n", "multislot\n", 1))


@mistake("slot 'user'", "max_length", "none", "in slots.yaml", 2)
def a_history_without_max_length() -> Said:
    return train("-o", "model={type: din, history: {user: item}}")


@mistake("sequence 'usr'", "sparse slot", "is no", "did you mean 'user'?", 2)
def a_history_that_is_no_slot() -> Said:
    return train("-o", "model={type: din, history: {usr: item}}")


# ---- command lines


@mistake("RUN_DIR", "expected the folder", "found none", "name it", 2)
def no_run_dir() -> Said:
    return ran("evaluate")


@mistake("empty", "expected the --run-dir", "holds no config", "-c CONFIG", 4)
def a_folder_that_is_no_run() -> Said:
    Path("empty").mkdir()
    return ran("evaluate", "empty")


@mistake("-o", "KEY=VALUE", "runs/r", "write RUN_DIR before -o", 2)
def overrides_before_the_run_dir() -> Said:
    return ran("evaluate", "-o", "data.batch_size=8", "runs/r")


@mistake("-o 'data.batch_size'", "key.path=value", "'data.batch_size'", "as in", 2)
def an_override_without_a_value() -> Said:
    return train("-o", "data.batch_size")


@mistake("--treshold", "expected those above", "unknown argument", "did you mean '--threshold'?", 2)
def an_argument_with_a_typo() -> Said:
    return ran("evaluate", "run", "--treshold", "1")


@mistake("config.yaml", "the --run-dir of a training run", "a file", "-c config.yaml", 2)
def a_config_without_its_option() -> Said:
    Path("config.yaml").touch()
    return ran("train", "config.yaml")


@mistake("--as-served", "expected those above", "unknown argument", "--threshold SCORE uses", 2)
def an_argument_that_was_removed() -> Said:
    return ran("evaluate", "run", "--as-served")


@mistake("--threshold", "a number", "'high'", "write for example", 2)
def a_threshold_that_is_no_number() -> Said:
    return ran("export", "run", "--out", "r.export", "--threshold", "high")


@mistake("data.test_files", "files to evaluate on", "found none", "--files", 2)
def evaluation_without_test_files() -> Said:
    return ran("evaluate", shared("run"), "-o", "data.test_files=[]")


@mistake("--files", "a file", "nothing is at 'typo.csv' in", "correct the path", 3)
def files_that_are_not_there() -> Said:
    return ran("evaluate", shared("run"), "--files", "typo.csv")


@mistake("-o data.test_files", "a file", "nothing is at 'typo.csv' in", "correct the path", 3)
def files_of_an_override_that_are_not_there() -> Said:
    return ran("evaluate", shared("run"), "-o", "data.test_files=[typo.csv]")


@mistake("run/store", "expected one", "no version has been committed", "train until", 4)
def evaluation_before_any_commit() -> Said:
    assert trained(train=HEADER + "2,u1,1,1\n").code == 3
    return ran("evaluate", "run")


@mistake("train.csv", "expected an export file", "no export file has", "paddlebox export", 4)
def a_file_that_is_no_export() -> Said:
    return ran("export", "train.csv", "--show")


@mistake("nothing.export", "an export file", "found none", "paddlebox export", 4)
def an_export_that_is_not_there() -> Said:
    return ran("export", "nothing.export", "--show")


@mistake("empty", "a folder that contains a store", "found none", "give the --run-dir", 4)
def applying_a_folder_that_is_no_run() -> Said:
    Path("empty").mkdir()
    shutil.copy(shared("r.export"), "r.export")
    return ran("export", "r.export", "--apply", "empty")


@mistake("--init-from run", "another run", "--run-dir itself", "choose another", 2)
def a_run_that_starts_from_itself() -> Said:
    own_run()
    return train("--init-from", "run")


@mistake("--init-from nowhere", "expected a run's folder", "no store", "give the --run-dir", 4)
def a_run_that_starts_from_none() -> Said:
    return train("--init-from", "nowhere")


@mistake("table.embedx_dim", "was 4", "now 8", "--init-from run", 2)
def another_embedx_dim() -> Said:
    own_run()
    return train("-o", "table.embedx_dim=8", "data.train_files=[train.csv, test.csv]")


@mistake("model.type", 'was "deepfm"', 'now "fm"', "--init-from run", 2)
def another_model() -> Said:
    own_run()
    return train("-o", "model={type: fm}", "data.train_files=[train.csv, test.csv]")


@mistake("slots.yaml item", "was trained with", "no longer there", "put these values back", 2)
def another_slot() -> Said:
    own_run()
    write({"slots.yaml": SLOTS.replace("  - {name: item, type: sparse}\n", "")})
    return train("-o", "data.train_files=[train.csv, test.csv]")


@mistake("run/store", "expected none", "process", "wait for it", 6)
def a_run_dir_that_another_process_trains_in() -> Said:
    own_run()
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from paddlebox.store.version_store import VersionStore\n"
        "with VersionStore.open_writer(Path('run/store')):\n"
        "    print('locked', flush=True)\n    sys.stdin.read()\n"
    )
    with in_other_process(code) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        try:
            return train("-o", "data.train_files=[train.csv, test.csv]")
        finally:
            other.communicate()


@mistake("train.csv/run", "expected a folder", "found a file", "another --run-dir", 4)
def a_run_dir_inside_a_file() -> Said:
    return ran("train", "-c", "config.yaml", "--run-dir", "train.csv/run")


@mistake("run/store", "expected one of 1", "no version '99'", "expected one of", 4)
def a_version_that_is_not_there() -> Said:
    own_run()
    return train("--from", "99")


# ---- serving


@mistake("nothing.export", "an export file", "found none", "paddlebox export", 4)
def serving_a_file_that_is_not_there() -> Said:
    return ran("serve", "nothing.export", "--port", "0")


@mistake("--port", "expected 0 to 65535", "'http'", "correct it", 2)
def a_port_that_is_no_number() -> Said:
    return ran("serve", shared("r.export"), "--port", "http")


@mistake("paddlebox serve", "expected aiohttp", "found none", "pip install", 2)
def aiohttp_is_missing() -> Said:
    import importlib.util

    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name == "aiohttp" else find(name, *rest)
    try:
        return ran("serve", shared("r.export"), "--port", "0")
    finally:
        importlib.util.find_spec = find


@mistake("slot 'price'", "a finite number", "found none", "send a number")
def a_field_that_is_missing() -> Said:
    with predictor() as one:
        return called(lambda: one.predict([{"user": "u1", "item": 2}]))


@mistake("instance 1", "no slot reads", "'prise'", "did you mean 'price'?")
def a_field_that_no_slot_reads() -> Said:
    with predictor() as one:
        return called(lambda: one.predict([GOOD, {**GOOD, "prise": 1}]))


@mistake("slot 'price'", "finite number", "'cheap'", "send a number")
def a_string_for_a_number() -> Said:
    with predictor() as one:
        return called(lambda: one.predict([{**GOOD, "price": "cheap"}]))


@mistake("instances", "a list of instances", "found one", "write [instance]")
def an_instance_that_is_not_in_a_list() -> Said:
    with predictor() as one:
        return called(lambda: one.predict(GOOD))


@mistake("instances", "a list of instances", "found one", "write [instance]")
def an_empty_instance_that_is_not_in_a_list() -> Said:
    with predictor() as one:
        return called(lambda: one.predict({}))


@mistake("field 'item'", "an integer", "the float 19.0", "send 19")
def a_float_for_an_id() -> Said:
    with predictor() as one:
        return called(lambda: one.predict([{**GOOD, "item": 19.0}]))


@mistake("field 'item'", "an integer", "the float nan", "leave the field out, or send None")
def nan_for_an_id() -> Said:
    with predictor() as one:
        return called(lambda: one.predict([{**GOOD, "item": float("nan")}]))


@mistake("slot 'price'", "a finite number", "'nan'", "send a number")
def nan_for_a_number_without_a_default() -> Said:
    with predictor() as one:
        return called(lambda: one.predict([{**GOOD, "price": float("nan")}]))


@mistake("the body", "an object with a member 'instances'", "an array", '{"instances": [', 422)
def a_request_that_is_a_list() -> Said:
    return asked(b'[{"user": "u1"}]')


@mistake("the body", "JSON in UTF-8", "enclosed in double quotes", '{"instances": [', 400)
def a_request_that_is_no_json() -> Said:
    return asked(b"{'instances': []}")


@mistake("slot 'price'", "a finite number", "'cheap'", "send a number", 422)
def a_request_with_a_string_for_a_number() -> Said:
    return asked(json.dumps({"instances": [{**GOOD, "price": "cheap"}]}).encode())


@mistake("paddlebox", "needs Paddle 3.3", "found none", "pip install paddlepaddle", 1)
def paddle_is_missing() -> Said:
    code = (
        "import sys\nfrom paddlebox.launch.cli import train_main\n"
        "class Absent:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'paddle': raise ModuleNotFoundError('none', name=name)\n"
        "sys.meta_path.insert(0, Absent)\n"
        "sys.exit(train_main(['-c', 'config.yaml', '--run-dir', 'run']))"
    )
    done = in_other_process(code)
    said, _ = done.communicate()
    return Said(done.returncode, said)


# ---- from Python


@mistake("begin_pass", "load_into_memory", "no pass is loaded", "is missing")
def begin_pass_before_a_load() -> Said:
    with opened() as table:
        return called(dataset(table).begin_pass)


@mistake("load_into_memory", "set_filelist", "nothing to load", "is missing")
def a_load_without_files() -> Said:
    with opened() as table:
        return called(dataset(table).load_into_memory)


@mistake("end_pass", "begin_pass", "no pass is open", "is missing")
def end_pass_without_begin_pass() -> Said:
    with opened() as table:
        return called(dataset(table).end_pass)


@mistake("begin_pass", "end_pass", "open already", "is missing")
def begin_pass_twice() -> Said:
    with opened() as table:
        made = dataset(table)
        made.set_filelist(["train.csv"])
        made.load_into_memory()
        made.begin_pass()
        said = called(made.begin_pass)
        made.abandon_pass()
        return said


@mistake("set_use_var", "expected variables", "'user' (str)", "paddle.static.InputSpec")
def names_in_set_use_var() -> Said:
    with opened() as table:
        return called(lambda: dataset(table).set_use_var(["user"]))


@mistake("input 0", "expected int64", "paddle.int32", "paddle.cast(")
def ids_of_int32() -> Said:
    import paddle

    import paddlebox

    ids = paddle.zeros([2, 1], "int32")
    return called(lambda: paddlebox.ops.pull_box_sparse([ids], size=7))


@mistake("input 0", "(B, n)", "(2,)", "reshape it")
def ids_without_a_second_axis() -> Said:
    import paddle

    import paddlebox

    ids = paddle.zeros([2], "int64")
    return called(lambda: paddlebox.ops.pull_box_sparse([ids, ids], size=7))


@mistake("store", "expected it closed", "in this process already", "close it first")
def a_table_opened_twice() -> Said:
    with opened():
        return called(lambda: opened().__enter__())


def made() -> dict[str, Named]:
    """The mistakes, by name, and what each error names."""
    return {name: named for name, (named, _) in _NAMED.items()}


def say(where: str) -> None:
    """Makes all of them, and prints what was said of each, as JSON: {name: [exit code, text]}."""
    from paddlebox.config import TrainerConfig
    from paddlebox.launch import cpu

    settings = TrainerConfig()
    cpu.apply(settings.program, settings.dense_threads)
    cpu.apply = lambda *_: []  # once in a process, before Paddle
    folder = Path(where).resolve()
    said = {}
    for number, name in enumerate(["shared", *_NAMED]):
        own = folder / (name if not number else str(number))
        own.mkdir()
        os.chdir(own)
        write({"slots.yaml": SLOTS, "config.yaml": CONFIG})
        write({"train.csv": HEADER + ROWS, "test.csv": HEADER + ROWS})
        if not number:
            for done in (train(), ran("export", "run", "--out", "r.export")):
                assert done.code == 0, done.text
        else:
            one = _NAMED[name][1]()
            said[name] = [one.code, one.text]
    print(json.dumps(said))
