"""A mistake in the config, in slots.yaml or in what is typed beside them gives one error, once,
that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddlebox.config import Format, load_slots
from paddlebox.errors import ConfigError
from paddlebox.launch.cli import train_main
from tests.e2e.mistakes import Named, Said, check

CONFIG = """\
name: mine
data:
  format: csv
  slots: slots.yaml
  train_files: [train.csv]
  test_files: [test.csv]
model:
  type: deepfm
"""
SLOTS = """\
slots:
  - {name: click, type: label}
  - {name: age, type: dense}
  - {name: user, type: sparse, hash: true}
  - {name: item, type: sparse}
"""
DATA = "  slots: slots.yaml\n"  # keys of data stand before it
MODEL = "model:\n  type: deepfm\n"
AGES = "  - {name: ages, type: sparse, bucket: {of: AGE, boundaries: [18, 30]}}\n"

# What is written in place of what, and the four things that the error names.
IN_CONFIG = {
    "a key with a typo": (
        *(DATA, f"  batchsize: 64\n{DATA}"),
        Named("data.batchsize", "data.batch_size?", "unknown key", "did you mean"),
    ),
    "a section with a typo": (
        *("model:", "modle:"),
        Named("modle", "did you mean model?", "unknown key", "did you mean"),
    ),
    "no section": (
        *(MODEL, ""),
        Named("model", "is required", "not given", "docs/config.md describes the keys"),
    ),
    "a number in quotes": (
        *(DATA, f'  batch_size: "512"\n{DATA}'),
        Named("data.batch_size", "an integer", "'512' (str)", "write 512, without quotes"),
    ),
    "a number with a zero before it": (
        *(DATA, f"  batch_size: 0512\n{DATA}"),
        Named("data.batch_size", "an integer", "'0512' (str)", "write 512"),
    ),
    "a decimal comma": (
        *(MODEL, f"optimizer:\n  learning_rate: 0,001\n{MODEL}"),
        Named("optimizer.learning_rate", "a number", "'0,001' (str)", "write 0.001"),
    ),
    "yes for true": (
        *(DATA, f"  shuffle: yes\n{DATA}"),
        Named("data.shuffle", "true or false", "'yes' (str)", "write true"),
    ),
    "a unit of 1000": (
        *(MODEL, f"mem: {{budget_bytes: 4GB}}\n{MODEL}"),
        Named("mem.budget_bytes", "a number and one of B, KiB", "'4GB'", "did you mean 4GiB?"),
    ),
    "a value out of range": (
        *(MODEL, f"optimizer: {{learning_rate: -0.1}}\n{MODEL}"),
        Named("optimizer.learning_rate", "more than 0.0", "-0.1", "docs/config.md describes"),
    ),
    "a tab": (
        *("  type", "\ttype"),
        Named("config.yaml:8:1", "expected spaces", "found a tab", "replace the tab"),
    ),
    "no space after a colon": (
        *("name: mine", "name:mine"),
        Named("config.yaml:2:5", "`key: value`", "a colon", "look at this line and the one before"),
    ),
    "a bracket that is not closed": (
        *("[train.csv]", "[train.csv"),
        Named("config.yaml:6", "expected ',' or ']'", "got ':'", "close the [ of line 5"),
    ),
    "a section given twice": (
        *(MODEL, f"{MODEL}data: {{format: csv}}\n"),
        Named("key 'data'", "each key once", "already given in line 2", "take one of them out"),
    ),
    "a format that there is not": (
        *("format: csv", "format: tsv"),
        Named("data.format", "'multislot'", "'tsv'", "did you mean csv?"),
    ),
    "a list for a text": (
        *("slots.yaml", "[slots.yaml]"),
        Named("data.slots", "a string", "['slots.yaml'] (list)", "without brackets"),
    ),
    "a text for a list": (
        *("[train.csv]", "train.csv"),
        Named("data.train_files", "a list", "'train.csv' (str)", "write [train.csv]"),
    ),
    "a model with a typo": (
        *("deepfm", "depfm"),
        Named("model.type", "one of lr, fm", "'depfm'", "did you mean deepfm?"),
    ),
    "a key of another model": (
        *(MODEL, f"{MODEL}  low_rank: 3\n"),
        Named("model.low_rank", "of dcn_v2", "unknown key of deepfm", "it is a key of"),
    ),
    "a model without its history": (
        *("deepfm", "din"),
        Named("model.history", "is required", "not given", "docs/config.md describes the keys"),
    ),
    "a password in a URI": (
        *("[train.csv]", '["s3://ann:hidden@bucket/a.csv"]'),
        Named("data.train_files", "expected one without", "a URI with a password", "Remove"),
    ),
    "files and a template": (
        *(DATA, f'{DATA}  path_template: "log/{{date}}"\n  from_hour: 20240101\n'),
        Named(
            "data",
            "one of train_files, path_template with from_hour, and stream",
            "train_files and path_template",
            "take one out",
        ),
    ),
    "neither files nor a template": (
        *("  train_files: [train.csv]\n", ""),
        Named(
            "data",
            "one of train_files, path_template with from_hour, and stream",
            "found none",
            "name files",
        ),
    ),
    "a day that there is not": (
        *(DATA, f"{DATA}  date: 20240231\n"),
        Named("date", "YYYYMMDD", "'20240231'", "give a day that exists"),
    ),
    "epochs over days": (
        *(MODEL, f"{MODEL}trainer: {{epochs: 2}}\n"),
        Named("trainer.epochs", "trained once", "epochs 2", "take one of them out"),
    ),
    "a space in the name": (
        *("name: mine", "name: my run"),
        Named("name", "letters, digits", "'my run'", "docs/config.md describes the keys"),
    ),
    "a file that follows no saves": (
        *(MODEL, f"{MODEL}publish: {{file: a.export}}\n"),
        Named("publish.file", "needs save.out", "found none", "set save.out"),
    ),
}

IN_SLOTS = {
    "no label": (
        *("  - {name: click, type: label}\n", ""),
        Named("slots.yaml: slots", "a slot of type label", "found none", "add the column"),
    ),
    "one name for two slots": (
        *("name: item", "name: user"),
        Named("slots.yaml: slots", "each name once", "found user twice", "rename one"),
    ),
    "a type that there is not": (
        *("type: dense", "type: numeric"),
        Named(
            *("slots[1].type of 'age'", "'label', 'dense', 'sparse', 'weight', 'count' or 'late'"),
            *("'numeric'", "write one of these"),
        ),
    ),
    "a key with a typo": (
        *("age, type", "age, typ"),
        Named("slots[1].typ of 'age'", "slots[1].type?", "unknown key", "did you mean"),
    ),
    "a space in a name": (
        *("name: age", "name: my age"),
        Named("slots[1]: slot name", "no space", "'my age'", "column: 'my age'"),
    ),
    "a key of another type": (
        *("type: dense", "type: dense, hash: true"),
        Named("slot 'age' has hash", "for sparse slots", "type dense", "take hash out"),
    ),
    "a bucket of a slot that there is not": (
        *(SLOTS, SLOTS + AGES.replace("AGE", "agee")),
        Named("slot 'ages': bucket.of", "a dense slot", "'agee'", "did you mean 'age'?"),
    ),
    "boundaries out of order": (
        *(SLOTS, SLOTS + AGES.replace("AGE", "age").replace("18, 30", "30, 18")),
        Named("slot 'ages': bucket.boundaries", "ascending numbers", "[30, 18]", "sort them"),
    ),
    "ids of a slot that there is not": (
        *(SLOTS, f"{SLOTS}  - {{name: seen, type: sparse, shares: itm}}\n"),
        Named("slot 'seen': shares", "a sparse slot that is read", "'itm'", "did you mean 'item'?"),
    ),
    "a default of another type": (
        *("hash: true", "default: nobody"),
        Named("slot 'user': default", "a feasign", "'nobody'", "needs hash: true"),
    ),
    "a delimiter of two characters": (
        *(SLOTS, f'{SLOTS}csv: {{delimiter: "::"}}\n'),
        Named("csv: delimiter", "one character", "'::'", 'such as ";"'),
    ),
    "a list without its key": (
        *("slots:\n", ""),
        Named("slots.yaml", "a mapping", "found list", "write it below a key"),
    ),
    "a column where the format has none": (
        *("type: dense", "type: dense, column: Age"),
        Named(
            "slot 'age' has a column",
            "formats criteo_tsv, csv, parquet, arrow and orc",
            "found data.format multislot",
            "take column out",
        ),
    ),
}

# Arguments beside -c config.yaml.
TYPED = {
    "a config that is not there": (
        ["-c", "none.yaml"],
        Named("none.yaml", "a YAML file", "No such file", "correct the path"),
    ),
    "an override with a typo": (
        ["-o", "data.batchsize=64"],
        Named("data.batchsize (from -o)", "data.batch_size?", "unknown key", "did you mean"),
    ),
    "an override of the wrong type": (
        ["-o", "data.batch_size=1,5"],
        Named("data.batch_size (from -o)", "an integer", "'1,5'", "docs/config.md"),
    ),
    "an hour that is none": (
        ["--backfill", "2024010100"],
        Named("--backfill", "expected FROM..TO", "'2024010100'", "write for example"),
    ),
}


def trained(folder: Path, capfd: pytest.CaptureFixture[str], *more: str) -> Said:
    code = train_main(["-c", "config.yaml", "--run-dir", "run", *more])
    assert not (folder / "run").exists()
    return Said(code, capfd.readouterr().err)


@pytest.mark.parametrize(("old", "new", "named"), IN_CONFIG.values(), ids=IN_CONFIG)
def test_a_mistake_in_the_config_gives_one_error_that_names_all_four(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    old: str,
    new: str,
    named: Named,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert old in CONFIG
    (tmp_path / "config.yaml").write_text(CONFIG.replace(old, new, 1))
    if "epochs" in new:
        days = f"{DATA}  date: 20240201\n  files_per_day: 1\n"
        (tmp_path / "config.yaml").write_text(CONFIG.replace(old, new).replace(DATA, days))
    check(trained(tmp_path, capfd), named.ending_with(2))


@pytest.mark.parametrize(("arguments", "named"), TYPED.values(), ids=TYPED)
def test_a_mistake_beside_the_config_gives_one_error_that_names_all_four(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    named: Named,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)
    check(trained(tmp_path, capfd, *arguments), named.ending_with(2))


@pytest.mark.parametrize(("old", "new", "named"), IN_SLOTS.values(), ids=IN_SLOTS)
def test_a_mistake_in_slots_yaml_gives_one_error_that_names_all_four(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, named: Named
) -> None:
    monkeypatch.chdir(tmp_path)
    assert old in SLOTS
    (tmp_path / "slots.yaml").write_text(SLOTS.replace(old, new, 1))
    data_format = Format.MULTISLOT if "multislot" in named.found else Format.CSV
    with pytest.raises(ConfigError) as raised:
        load_slots("slots.yaml").check_format(data_format)
    check(Said(None, f"ConfigError: {raised.value}"), named)
