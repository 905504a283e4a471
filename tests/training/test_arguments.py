"""Functions of the Python API take paths as text, and configs as dicts or files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from paddlebox.api.embeddings import embedding, embeddings
from paddlebox.config import Config, DataConfig
from paddlebox.errors import ConfigError
from paddlebox.saves import Saver, chain_of, load_save, open_save
from paddlebox.saves.load import merge_saves
from paddlebox.serving import Predictor
from paddlebox.serving.follow import Follower
from paddlebox.serving.source import RunSource
from paddlebox.serving.writer import Writer, export
from paddlebox.store.copies import restore
from paddlebox.store.run_config import continuing, of_newest
from paddlebox.store.table import Table
from paddlebox.tools.diagnose.cli import diagnose
from paddlebox.tools.doctor.cli import examine
from paddlebox.tools.new_model.cli import write_model
from paddlebox.tools.report.run import read_run
from paddlebox.tools.upkeep import report
from paddlebox.tools.upkeep.life import life
from paddlebox.tools.upkeep.verify import repair, verify
from paddlebox.training.evaluation import evaluate
from paddlebox.training.run import train
from tests.support.configs import config_fields, make_config, slots_fields

CONFIG: Any = make_config(data={"test_files": ["test.csv"]})
NO_TABLES: Any = SimpleNamespace(members=())
WITH_A_CONFIG: dict[str, Callable[[Any], Any]] = {
    "train": lambda config: train(config, "run"),
    "evaluate": lambda config: evaluate(config, "run"),
    "diagnose": lambda config: diagnose(config, "run"),
    "Config.model_validate": Config.model_validate,
}
WITH_A_PATH: dict[str, Callable[[Any], Any]] = {
    "train": lambda path: train(CONFIG, path),
    "evaluate": lambda path: evaluate(CONFIG, path),
    "diagnose": lambda path: diagnose(CONFIG, path),
    "continuing": lambda path: continuing(CONFIG, path),
    "of_newest": of_newest,
    "RunSource": RunSource,
    "Predictor": Predictor,
    "Writer": Writer,
    "Follower": lambda path: Follower(path, "file"),
    "export": lambda path: export("run", path),
    "open_save": open_save,
    "chain_of": chain_of,
    "load_save": lambda path: load_save(path, NO_TABLES),
    "merge_saves": lambda path: merge_saves([path], "out", "1/base"),
    "Saver": lambda path: Saver(NO_TABLES, path),
    "Table": lambda path: Table({}, folder=path or 1),
    "restore": lambda path: restore("copies", path),
    "stat": report.stat,
    "digest": report.digest,
    "lookup": lambda path: report.lookup(path, [1]),
    "embedding": lambda path: embedding(path, "item", [1]),
    "embeddings": lambda path: embeddings("run", "item", path),
    "verify": verify,
    "repair": repair,
    "life": life,
    "read_run": read_run,
    "examine": lambda path: examine(path, 0),
    "write_model": lambda path: write_model("mine", path),
}


@pytest.mark.parametrize("called", WITH_A_CONFIG)
def test_a_wrong_config_is_an_error_like_that_of_a_file(called: str) -> None:
    misspelled = config_fields(data={"train_fles": ["a"]})
    with pytest.raises(
        ConfigError,
        match=r"^[cC]onfig: data.train_fles: unknown key; did you mean data.train_files\?",
    ):
        WITH_A_CONFIG[called](misspelled)
    with pytest.raises(
        ConfigError, match=r"^[cC]onfig: (data.train_files: found a URI with|expected)"
    ):
        WITH_A_CONFIG[called](config_fields(data={"train_files": ("s3://a:secret@b/c",)}))
    with pytest.raises(ConfigError, match=r"^[cC]onfig: expected a .*found .*list"):
        WITH_A_CONFIG[called]([])
    if not called.startswith("Config"):
        with pytest.raises(ConfigError, match=r"none.yaml: cannot be read"):
            WITH_A_CONFIG[called]("none.yaml")


def test_a_section_refuses_wrong_values_as_a_config_file_does() -> None:
    with pytest.raises(ConfigError, match=r"DataConfig: format: .*found 'cvs'.*did you mean csv\?"):
        DataConfig(format="cvs", slots="slots.yaml")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"Config: model.hiden: unknown key; did you mean model.hi"
    ):
        Config(**config_fields(model={"hiden": [1]}))
    with pytest.raises(
        ConfigError, match=r"Config: 3 errors\n  seed: expected an integer, found '1'"
    ):
        Config.model_validate_json('{"name": "a", "seed": "1"}')


@pytest.mark.parametrize("called", WITH_A_PATH)
@pytest.mark.parametrize("path", [None, "", 1], ids=repr)
def test_what_is_no_path_is_refused_with_the_name_of_the_argument(called: str, path: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"^\w+: expected a path, such as .*, found (None|'' |1 )"
    ):
        WITH_A_PATH[called](path)


def test_a_run_goes_from_dict_to_prediction_with_paths_as_text(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("click,user\n" + "1,a\n0,b\n" * 4)
    slots = slots_fields(click="label", user={"hash": True})
    (tmp_path / "slots.yaml").write_text(yaml.safe_dump({"slots": slots}))
    files = [f"{tmp_path}/train.csv"]
    fields = config_fields(
        data={"slots": f"{tmp_path}/slots.yaml", "train_files": files, "test_files": files},
        mem={"budget_bytes": "4MiB"},
        hbm={"budget_bytes": "16MiB"},
        model={"hidden": [2]},
    )
    run, out = f"{tmp_path}/run", f"{tmp_path}/served"
    before = yaml.safe_dump(fields)
    assert train(fields, run)["samples"] == 8
    assert yaml.safe_dump(fields) == before  # the dict is the caller's
    (tmp_path / "run.yaml").write_text(before)
    assert evaluate(f"{tmp_path}/run.yaml", run, slots={"slots": slots})["samples"] == 8
    export(run, out)
    with Predictor(out, follow_s=0) as predictor:
        assert predictor.predict([{"user": "a"}]).shape == (1,)
