"""BoxWrapper: PaddleBox's names over saves; merging models."""

from __future__ import annotations

from pathlib import Path

import pytest

import paddlebox
from paddlebox.errors import ConfigError, PassError, StoreError
from paddlebox.saves import Saver, chain_of, donefile, open_save
from tests.saves.common import (
    FIRST_DAY,
    apply,
    base_of,
    config,
    feasigns,
    open_table,
    train,
)


def test_the_saves_of_two_days_by_paddleboxs_names(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with open_table(tmp_path / "store") as table:
        box = paddlebox.BoxWrapper(table, extra={"slots.yaml": b"slots: []"})
        assert not box.load_ssd2mem("20240101")
        train(table, feasigns(1, 50), 1)
        assert box.load_ssd2mem("20240101")
        base = box.save_base(f"{out}/20240101/0/", f"{out}/20240101/base", "20240101")
        assert base == f"{out}/20240101/base"
        assert open_save(out / "20240101" / "0").meta["kind"] == "batch"
        train(table, feasigns(30, 50), 2)
        delta = open_save(box.save_delta(f"{out}/20240101/delta-2/"))
        assert apply(chain_of(delta)) == base_of(table)
        assert delta.file("slots.yaml") == b"slots: []"
        assert delta.dense()["w"].tolist() == [2, 2, 2]
        assert box.shrink_table()
        assert not box.shrink_table()  # a day ends once
        box.shrink_resource()
        train(table, feasigns(60, 10), 3, day=FIRST_DAY + 1)
        last = open_save(box.save_delta(f"{out}/20240102/delta-3"))
        assert apply(chain_of(last)) == base_of(table)
        last_save = box.last_save(str(out))
        assert last_save is not None
        assert last_save.name == "20240102/delta-3"
        with pytest.raises(PassError, match="flip_phase: the wrapper has no dataset"):
            box.flip_phase()
        with pytest.raises(ValueError, match="a save is named <day>/<name>"):
            box.save_delta(f"{out}/delta-4")
        box.finalize()


def test_the_date_of_a_base_decides_which_rows_are_unseen_too_long(tmp_path: Path) -> None:
    with open_table(None, config(delta_keep_days=3)) as table:
        train(table, feasigns(1, 10), 1)
        box = paddlebox.BoxWrapper(table)
        box.save_base("", f"{tmp_path}/20240104/base", "20240104")
        box.save_base("", f"{tmp_path}/20240105/base", "20240105")
        with pytest.raises(ValueError, match="expected YYYYMMDD"):
            box.save_base("", f"{tmp_path}/20240106/base", "2024-01-06")
    saves = [open_save(tmp_path / done.name) for done in donefile.read(tmp_path, "base")]
    assert [save.meta["rows"] for save in saves] == [10, 0]


def test_dataset_calls_reach_the_dataset() -> None:
    with open_table(None) as table:
        dataset = paddlebox.InMemoryDataset(table, seed=1)
        box = paddlebox.BoxWrapper(table, dataset)
        box.set_phase(0)
        box.flip_phase()
        assert dataset.options.phase == 1
        box.set_test_mode(True)
        assert dataset.options.load.test
        box.set_date("20240102")
        assert dataset._day == FIRST_DAY + 1


def test_a_merged_chain_is_a_base_that_deltas_go_on_from(tmp_path: Path) -> None:
    with open_table(None) as table:
        box = paddlebox.BoxWrapper(table)
        saver = Saver(table, tmp_path)
        train(table, feasigns(1, 300), 1)
        saver.base()
        table.life.shrink(FIRST_DAY, min_score=0.6)
        train(table, feasigns(100, 400), 2)
        delta = saver.delta("20240101/delta-2")
        assert delta.meta["deleted"] > 0
        merged = open_save(box.merge_model(str(delta.folder), f"{tmp_path}/20240101/merged"))
        assert apply([merged]) == apply(chain_of(delta)) == base_of(table)
        assert (merged.meta["kind"], merged.meta["deleted"]) == ("base", 0)
        train(table, feasigns(1, 5), 3)
        following = saver.delta("20240101/delta-3")
        assert following.meta["rows"] == 5
        assert [save.name for save in chain_of(following)] == [merged.name, "20240101/delta-3"]


def test_of_several_models_the_last_ones_rows_win(tmp_path: Path) -> None:
    saves = []
    for number, first in ((1, 1), (2, 6)):
        with open_table(None) as table:
            train(table, feasigns(first, 10), number)
            saves.append(Saver(table, tmp_path / str(number)).base())
            box = paddlebox.BoxWrapper(table)
    paths = [str(save.folder) for save in saves]
    merged = box.merge_multi_models(paths, f"{tmp_path}/out/20240101/both")
    assert apply([open_save(merged)]) == {**apply(saves[:1]), **apply(saves[1:])}
    with pytest.raises(StoreError, match="is done already"):
        box.merge_multi_models(paths, f"{tmp_path}/out/20240101/both")
    other = config().model_copy(update={"embedx_dim": 2})
    with open_table(None, other) as table:
        narrow = Saver(table, tmp_path / "3").base()
    with pytest.raises(ConfigError, match="only saves of one layout go together"):
        box.merge_multi_models([str(narrow.folder), *paths], f"{tmp_path}/out/20240101/three")
