"""A config says what it seems to say, and a mistake in one is named where it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paddlebox.config import (
    Config,
    Format,
    KeySpace,
    ModelType,
    OptimizerType,
    Program,
    Rule,
    load_config,
    load_slots,
    parse_bytes,
)
from paddlebox.config.models import DnnConfig
from paddlebox.errors import ConfigError, PaddleBoxError

ROOT = Path(__file__).resolve().parents[2]
MINIMAL = """
name: small
data: {format: multislot, slots: slots.yaml, train_files: [a.txt]}
model: {type: dnn}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def error_of(folder: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(write(folder, text), overrides)
    return str(caught.value)


def test_minimal_config_has_the_documented_defaults(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MINIMAL))
    assert config.seed == 1
    assert config.table.embedx_dim == 8
    assert config.table.embedx_threshold == 10.0
    assert config.table.embed.rule is Rule.ADAGRAD
    assert config.table.embed.initial_range == 0.0
    assert config.table.embedx.initial_range == 1e-4
    assert config.table.embedx.initial_g2sum == 3.0
    assert config.hbm.budget_bytes == 2 << 30
    assert config.mem.budget_bytes == 1 << 30
    assert config.data.format is Format.MULTISLOT
    assert config.data.train_files == ("a.txt",)
    assert config.data.key_space is KeySpace.PER_SLOT
    assert config.data.batch_size == 0  # auto
    assert not config.model.use_cvm
    assert isinstance(config.model, DnnConfig)
    assert config.model.hidden == (400, 400, 400)
    assert config.optimizer.type is OptimizerType.ADAM
    assert config.trainer.program is Program.PIR
    assert config.checkpoint.keep_versions == 2


def test_learning_rate_follows_the_rule_unless_given(tmp_path: Path) -> None:
    adam = load_config(write(tmp_path, MINIMAL), ["table.embedx.rule=adam"]).table
    assert adam.embedx.learning_rate == 0.001
    assert adam.embed.learning_rate == 0.05
    given_too = ["table.embedx={rule: adam, learning_rate: 0.5}"]
    assert load_config(write(tmp_path, MINIMAL), given_too).table.embedx.learning_rate == 0.5


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("1E3", 1e3), ("2", 2.0), (".5", 0.5), ("+1.5e-2", 0.015)]
)
def test_numbers_in_every_notation_are_numbers(tmp_path: Path, text: str, value: float) -> None:
    config = load_config(write(tmp_path, MINIMAL + f"optimizer: {{learning_rate: {text}}}\n"))
    assert config.optimizer.learning_rate == value
    assert isinstance(config.optimizer.learning_rate, float)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("sede: 3", "sede: unknown key; did you mean seed?"),
        ("mem: {buget_bytes: 3}", "mem.buget_bytes: unknown key; did you mean mem.budget_bytes?"),
        (
            "table: {embed: {rul: adam}}",
            "table.embed.rul: unknown key; did you mean table.embed.rule?",
        ),
        ("batch_size: 3", "batch_size: unknown key; did you mean data.batch_size?"),
        ("trainer: {zzzzz: 3}", "legal here: program, epochs, dense_threads"),
        ("seed: '1'", "seed: expected an integer, found '1' (str)"),
        ("seed: true", "seed: expected an integer, found True (bool)"),
        ("seed: 1.0", "seed: expected an integer, found 1.0 (float)"),
        ("seed: 010", "seed: expected an integer, found '010' (str)"),
        ("seed: 1:30", "seed: expected an integer, found '1:30' (str)"),
        ("seed:", "seed: expected an integer, found nothing (null)"),
        ("seed: -1", "seed: expected at least 0, found -1 (int)"),
        ("mem: 3", "mem: expected a section with keys of its own, found 3 (int)"),
        ("table: {show_scale: on}", "table.show_scale: expected true or false, found 'on' (str)"),
        ("optimizer: {learning_rate: .nan}", "optimizer.learning_rate: expected a finite number"),
        ("trainer: {program: PIR}", "expected 'pir' or 'dygraph', found 'PIR' (str)"),
        (
            "mem: {budget_bytes: 64MB}",
            "mem.budget_bytes: expected bytes, as a number and one of B, KiB",
        ),
        (
            "mem: {budget_bytes: 1023KiB}",
            "mem.budget_bytes: expected at least 1048576, found 1047552",
        ),
        (
            "table: {embed: {initial_range: 0.1}}",
            "table.embed: initial_range is 0.1, but embed_w starts",
        ),
        (
            "table: {embedx: {l1: 0.5}}",
            "table.embedx: l1 is set, but the rule adagrad does not",
        ),
        ("1: 2", "the top level: the key 1 is not a string; quote it"),
        ("name: again", "key 'name' is already given in line 2"),
        ("seed: [", "config.yaml:"),
    ],
)
def test_a_mistake_is_named_with_its_path(tmp_path: Path, extra: str, expected: str) -> None:
    assert expected in error_of(tmp_path, MINIMAL + extra + "\n")


def test_a_key_whose_work_another_key_or_a_tool_does_names_it(tmp_path: Path) -> None:
    said = error_of(tmp_path, MINIMAL + "feeder: {cache_dir: c}\n", "trainer.visualdl=true")
    assert "feeder.cache_dir: unknown key; set XDG_CACHE_HOME" in said
    assert "trainer.visualdl (from -o): unknown key; set trainer.trackers: [visualdl]" in said
    more = "extra_tables: {wide: {slot_learning_rates: {a: 2}}}\nmetrics: [{cmatch_rank: ['1']}]\n"
    said = error_of(tmp_path, MINIMAL + more, "trainer.trace=t.json")
    assert "wide.slot_learning_rates: unknown key; give slots a learning_rate_factor in" in said
    assert 'metrics[0].cmatch_rank: unknown key; set mask: {box_cmatch_rank: ["222_1"]}' in said
    assert "trainer.trace (from -o): unknown key; use paddlebox train --trace FILE" in said


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "{type: dcn, cros_layers: 2}",
            "model.cros_layers: unknown key; did you mean model.layers",
        ),
        ("{type: dnn, low_rank: 2}", "model.low_rank: unknown key of dnn; it is a key of dcn_v2"),
        ("{type: dpfm}", "found 'dpfm'; did you mean deepfm?"),
        ("{hidden: [2]}", "model.type: is required, but not given"),
        ("3", "model: expected a section with keys of its own, found 3 (int)"),
        ("{type: dnn, hidden: [a]}", "model.hidden[0]: expected an integer, found 'a' (str)"),
        (
            "{type: dcn_v2, low_rank: 0, experts: 2}",
            "model: experts is 2, which needs a low_rank",
        ),
    ],
)
def test_a_model_has_keys_of_its_own(tmp_path: Path, model: str, expected: str) -> None:
    assert expected in error_of(tmp_path, MINIMAL.replace("{type: dnn}", model))


def test_a_wrong_item_of_a_list_is_named_by_its_index(tmp_path: Path) -> None:
    text = MINIMAL.replace("[a.txt]", "[a.txt, 3]")
    assert "data.train_files[1]: expected a string, found 3 (int)" in error_of(tmp_path, text)
    text = MINIMAL.replace("[a.txt]", "a.txt")
    assert "data.train_files: expected a list, as in [a, b]" in error_of(tmp_path, text)


def test_all_mistakes_are_listed_at_once(tmp_path: Path) -> None:
    message = error_of(tmp_path, "model: {type: dnn}\nsede: 1\n")
    for part in ("3 errors", "name: is required", "data: is required", "sede: unknown key"):
        assert part in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [("[1, 2]", "expected a mapping"), ("", "is required"), ("a: b: c", ":1:")],
)
def test_a_file_that_is_not_a_config_is_an_error(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in error_of(tmp_path, text)


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"not UTF-8 text: .* at byte 9"):
        load_config(tmp_path / "latin.yaml")
    with pytest.raises(ConfigError, match="nested too deeply"):
        load_config(write(tmp_path, "a: " + "[" * 20_000))


def test_overrides_are_yaml_and_the_last_one_wins(tmp_path: Path) -> None:
    config = load_config(
        write(tmp_path, MINIMAL),
        [
            "data.batch_size=64",
            "data.batch_size=128",
            "data.train_files=[x=1.txt, 'y.txt']",
            "optimizer.learning_rate=1e-4",
            "mem.budget_bytes=8MiB",
            "model={type: deepfm, hidden: []}",
            "data.key_space=per_slot",
        ],
    )
    assert config.data.batch_size == 128
    assert config.data.train_files == ("x=1.txt", "y.txt")
    assert config.optimizer.learning_rate == 1e-4
    assert config.mem.budget_bytes == 8 << 20
    assert config.model.type is ModelType.DEEPFM
    assert config.model.hidden == ()
    assert config.data.key_space is KeySpace.PER_SLOT


def test_an_empty_override_gives_a_key_or_a_section_its_default(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    plain = load_config(path)
    set_before = ["data.date=20240101", "data.files_per_day=1", "optimizer={learning_rate: 0.5}"]
    assert load_config(path, set_before) != plain
    emptied = ["data.date=", "data.files_per_day= ", "optimizer="]
    assert load_config(path, [*set_before, *emptied]) == plain
    assert load_config(path, emptied) == plain  # the file has none of them


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("data.batch_size", "expected key.path=value"),
        ("=3", "expected key.path=value"),
        ("data..batch_size=3", "expected key.path=value"),
        ("name.x=3", "name is a value, not a section"),
        (
            "data.bach_size=3",
            "data.bach_size (from -o): unknown key; did you mean data.batch_size?",
        ),
        ("dat.batch_size=3", "dat (from -o): unknown key; did you mean data?"),
        ("data.batch_size=x", "data.batch_size (from -o): expected an integer, found 'x' (str)"),
        (
            "data.batch_size=null",
            "data.batch_size (from -o): expected an integer, found nothing (null)",
        ),
        ("data.bach_size=", "data.bach_size (from -o): unknown key; did you mean data.batch_size?"),
        ("data.slots=", "data.slots (from -o): "),
        ("data.train_files=[", "-o data.train_files:1:"),
    ],
)
def test_a_mistaken_override_is_named(tmp_path: Path, override: str, expected: str) -> None:
    message = error_of(tmp_path, MINIMAL, override)
    assert expected in message


def test_config_errors_are_value_errors() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ConfigError, PaddleBoxError)


def test_config_is_frozen(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MINIMAL))
    with pytest.raises(ValidationError, match="frozen"):
        config.data.batch_size = 3


def test_fingerprint_depends_on_values_and_not_on_how_they_are_written(tmp_path: Path) -> None:
    first = load_config(write(tmp_path, MINIMAL))
    other = """
model: {hidden: [400, 400, 400], type: dnn}
mem: {budget_bytes: 1073741824}
data: {train_files: [a.txt], slots: slots.yaml, format: multislot}
table: {embedx_threshold: 10}
name: "small"
"""
    second = load_config(write(tmp_path, other))
    assert first == second
    assert first.fingerprint() == second.fingerprint()
    third = load_config(write(tmp_path, MINIMAL), ["seed=2"])
    assert third.fingerprint() != first.fingerprint()


def test_a_config_written_out_in_full_reads_back_the_same(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MINIMAL), ["table.embedx.rule=adam"])
    again = load_config(write(tmp_path, config.canonical_json()))  # JSON is YAML
    assert again == config


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("64MiB", 64 << 20),
        ("1.5GiB", 3 << 29),
        ("0B", 0),
        (" 2 TiB ", 2 << 40),
        (17, 17),
        (1.5, 1.5),
    ],
)
def test_byte_sizes_are_powers_of_two(value: object, expected: object) -> None:
    assert parse_bytes(value) == expected


@pytest.mark.parametrize("text", ["64", "64MB", "-1MiB", "MiB", "1e3KiB", "1.0001B", "", "1 2MiB"])
def test_a_value_that_is_not_a_byte_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="bytes"):
        parse_bytes(text)


@given(st.integers(0, 2**50), st.sampled_from(["B", "KiB", "MiB", "GiB"]))
def test_a_byte_size_is_its_number_times_its_unit(count: int, unit: str) -> None:
    scale = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
    assert parse_bytes(f"{count}{unit}") == count * scale


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_any_float_that_python_prints_is_read_back(value: float) -> None:
    from paddlebox.config.load import parse_yaml

    assert parse_yaml(repr(value), "here") == value


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_config_loads_and_fits_its_slots(path: Path) -> None:
    config = load_config(path)
    assert config.name == path.stem
    slots = load_slots(ROOT / config.data.slots)
    slots.check_format(config.data.format)
    assert slots.sparse


def test_importing_config_imports_no_paddle() -> None:
    code = (
        "import sys, paddlebox.config; sys.exit('paddle' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_config_type_is_exported() -> None:
    assert Config.model_config["extra"] == "forbid"


def test_a_date_is_text_or_a_number_and_real(tmp_path: Path) -> None:
    text = MINIMAL.replace("[a.txt]", "[a.txt], date: 20240229, files_per_day: 2")
    assert load_config(write(tmp_path, text)).data.date == "20240229"
    assert load_config(write(tmp_path, text), ['data.date="20240301"']).data.date == "20240301"
    assert "data.date (from -o): expected YYYYMMDD, found '20230229'" in error_of(
        tmp_path, text, "data.date=20230229"
    )
    assert "date, the day of the first files, is not" in error_of(tmp_path, text, "data.date=''")
    assert "the files are trained once" in error_of(tmp_path, text, "trainer.epochs=2")


def test_life_settings_are_those_of_paddlebox(tmp_path: Path) -> None:
    life = load_config(write(tmp_path, MINIMAL)).table.life
    assert life.model_dump() == {
        "show_click_decay_rate": 0.98,
        "delete_threshold": 0.8,
        "delete_after_unseen_days": 30,
        "base_threshold": 1.5,
        "delta_threshold": 0.25,
        "delta_keep_days": 16,
    }
    found = error_of(tmp_path, MINIMAL, "table.life.show_click_decay_rate=1.5")
    assert "table.life.show_click_decay_rate" in found


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("{default: {embedx_dim: 4}}", "extra_tables.default has the same name as `table`"),
        ("{wide: {name: other}}", "the key is the name: leave it out"),
        ("{" + ", ".join(f"t{n}: {{}}" for n in range(64)) + "}", "expected fewer than 64"),
    ],
)
def test_every_table_has_a_name_of_its_own(tmp_path: Path, extra: str, expected: str) -> None:
    assert expected in error_of(tmp_path, f"{MINIMAL}extra_tables: {extra}\n")


def test_a_custom_layer_may_read_slots_in_order(tmp_path: Path) -> None:
    model = "{type: custom, layer: 'a.py:Net', in_order: [history], settings: {a: [1, b]}}"
    config = load_config(
        write(tmp_path, MINIMAL), [f"model={model}", "security.allow_commands=true"]
    )
    assert config.model.sequences == ("history",)
    assert config.fingerprint() != load_config(write(tmp_path, MINIMAL)).fingerprint()


@pytest.mark.parametrize(
    "override",
    [
        "data.train_files=['s3://name:hunter2@bucket/part-*']",
        "checkpoint.copy_to='s3://:hunter2@bucket/copies'",
        "data.pipe_command='curl https://me:hunter2@host/x | zcat'",
    ],
)
def test_a_password_in_a_uri_is_refused_and_not_repeated(tmp_path: Path, override: str) -> None:
    said = error_of(tmp_path, MINIMAL, override)
    assert f"{override.partition('=')[0]}: found a URI with a password in it" in said
    assert "hunter2" not in said
    for sound in ("hdfs://user@host:8020/x", "s3://bucket/a:b@c", "file:///a@b"):
        config = load_config(write(tmp_path, MINIMAL), [f"checkpoint.copy_to={sound!r}"])
        assert config.checkpoint.copy_to == sound
