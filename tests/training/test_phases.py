"""Join and update over one table: against a slow plain model, killed in either of them, and what
is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlebox.config import Config, Phase, load_config
from paddlebox.errors import ConfigError
from paddlebox.ranks import World, check_config
from paddlebox.store.group import ONE_RANK
from tests.conftest import ROOT, tool
from tests.operators.row_model import Row
from tests.support import processes
from tests.support.configs import config_fields, write_config, write_slots
from tests.support.marks import long

SCRIPT = (Path(__file__).parent / "phases_small.py").read_text()
# search id, rank, click, user, ads, place. Views: 5 has rows 1 and 4, 7 has 3, 9 has 0, 2 and 5.
ROWS = [
    (9, 1, 1, 11, [21], 31),
    (5, 2, 0, 12, [22, 23], 32),
    (9, 3, 0, 11, [22], 33),
    (7, 1, 1, 13, [21, 23], 31),
    (5, 1, 1, 12, [24], 31),
    (9, 2, 0, 11, [23], 32),
]
D, WIDE, RATE = 2, 3, 0.1  # embedx_dim, output_dim, of SGD
WIDTH = 3 + D


def log_key(search: int, rank: int) -> str:
    return f"{'k' * 11}{222:03x}{rank:02x}{search:016x}"


def run(folder: Path, overrides: list[str], *kill: Any, config: str = "") -> Any:
    """What phases_small.py prints, or the return code where that is not 0."""
    arguments = [config or str(folder / "config.yaml"), str(folder / "run"), json.dumps(overrides)]
    done = processes.run(["-c", SCRIPT, *arguments, *map(str, kill)])
    if done.returncode:
        print(done.stderr)
        return done.returncode
    return json.loads(done.stdout.splitlines()[-1])


def write(folder: Path) -> None:
    lines = [
        f"1 {log_key(search, rank)} 1 {click} 1 {user} {len(ads)} {' '.join(map(str, ads))} "
        f"1 {place}\n"
        for search, rank, click, user, ads, place in ROWS
    ]
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text("".join(lines))
    write_slots(folder, click="label", user="sparse", ad="sparse", place="sparse")
    usual: dict[str, Any] = {"hidden": [], "use_cvm": True}
    attends = {"type": "rank_attention", "output_dim": WIDE, "enable_input_bp": True}
    sgd = {"type": "sgd", "learning_rate": RATE, "averaging": 0.0}
    write_config(
        folder,
        table={
            "embedx_dim": D,
            "embedx_threshold": 0.0,
            "embedx": {"initial_range": 0.0},
            "embed": {"learning_rate": 0.05, "initial_g2sum": 3.0},
            "life": {"base_threshold": 0.0},
        },
        data={
            "format": "multislot",
            "train_files": [f"{folder}/?.txt"],
            "files_per_pass": 1,
            "batch_size": 16,
            "key_space": "shared",
            "logkey": True,
            "pv_batch_size": 2,
        },
        model=None,
        phases={
            "join": {"model": {**usual, **attends}, "optimizer": sgd},
            "update": {
                "model": {**usual, "type": "dnn", "slots": ["user", "ad"]},
                "optimizer": sgd,
            },
        },
    )


class Plain:
    """Both phases in float64 loops. N = 3 slots * WIDTH: what a network reads of an instance."""

    def __init__(self, dense: dict[str, np.ndarray]) -> None:
        shapes = {array.shape: array.astype(np.float64) for n, array in dense.items()
                  if n.startswith("join/") and "pooled" not in n}  # fmt: skip
        n = 3 * WIDTH
        self.pairs = shapes[9 * n, WIDE]
        self.join, self.join_bias = shapes[n + WIDE, 1], shapes[1,]
        of_update = {a.shape: a.astype(np.float64) for name, a in dense.items()
                     if not name.startswith("join/") and "pooled" not in name}  # fmt: skip
        self.update, self.update_bias = of_update[n, 1], of_update[1,]
        self.rows: dict[int, Row] = {}

    def features(self, batch: list[int], read: int) -> np.ndarray:
        x = np.zeros((len(batch), 3 * WIDTH))
        for b, number in enumerate(batch):
            for slot, feasigns in enumerate(self.slots(number)[:read]):
                total = np.sum([self.row(f).pulled() for f in feasigns], axis=0)
                show, click = np.log(total[0] + 1), np.log(total[1] + 1)
                total[:2] = show, click - show
                x[b, slot * WIDTH : (slot + 1) * WIDTH] = total
        return x

    def row(self, feasign: int) -> Row:
        return self.rows.setdefault(feasign, Row(D))

    @staticmethod
    def slots(number: int) -> list[list[int]]:
        _, _, _, user, ads, place = ROWS[number]
        return [[user], ads, [place]]

    def push(self, batch: list[int], dx: np.ndarray, read: int, counted: tuple[int, ...]) -> None:
        """dx: (B, N) of the mean loss. counted: slots whose shows count."""
        for slot in range(read):
            merged: dict[int, np.ndarray] = {}
            for b, number in enumerate(batch):
                own = np.zeros(3 + D)
                own[:2] = 1, ROWS[number][2]
                own[2:] = dx[b, slot * WIDTH + 2 : (slot + 1) * WIDTH] * len(batch)
                for feasign in self.slots(number)[slot]:
                    merged[feasign] = merged.get(feasign, 0) + own
            for feasign, own in merged.items():
                row = self.row(feasign)
                before = row.show, row.click
                row.push(own[0], own[1], own[2:], np.zeros(D))
                if slot not in counted:
                    row.show, row.click = before

    def join_step(self, batch: list[int]) -> float:
        x = self.features(batch, 3)
        attended = np.zeros((len(batch), WIDE))
        pairs = []
        for i, number in enumerate(batch):
            for k, other in enumerate(batch):
                if ROWS[number][0] == ROWS[other][0]:
                    at = (ROWS[number][1] - 1) * 3 + ROWS[other][1] - 1
                    block = slice(at * x.shape[1], (at + 1) * x.shape[1])
                    attended[i] += x[k] @ self.pairs[block]
                    pairs.append((i, k, block))
        inputs = np.concatenate([x, attended], axis=1)
        loss, dz = self.loss(inputs @ self.join + self.join_bias, batch)
        d_inputs = dz @ self.join.T
        dx, d_attended = d_inputs[:, : x.shape[1]].copy(), d_inputs[:, x.shape[1] :]
        d_pairs = np.zeros_like(self.pairs)
        for i, k, block in pairs:
            d_pairs[block] += np.outer(x[k], d_attended[i])
            dx[k] += self.pairs[block] @ d_attended[i]
        self.join -= RATE * inputs.T @ dz
        self.join_bias -= RATE * dz.sum(0)
        self.pairs -= RATE * d_pairs
        self.push(batch, dx, read=3, counted=(2,))  # update does not read place
        return loss

    def update_step(self, batch: list[int]) -> float:
        x = self.features(batch, 2)
        loss, dz = self.loss(x @ self.update + self.update_bias, batch)
        dx = dz @ self.update.T
        self.update -= RATE * x.T @ dz
        self.update_bias -= RATE * dz.sum(0)
        self.push(batch, dx, read=2, counted=(0, 1))
        return loss

    @staticmethod
    def loss(z: np.ndarray, batch: list[int]) -> tuple[float, np.ndarray]:
        y = np.array([[ROWS[number][2]] for number in batch])
        p = 1 / (1 + np.exp(-z))
        loss = -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))
        return float(loss), (p - y) / len(batch)


@pytest.mark.parametrize("program", ["pir", long("dygraph")])
def test_both_phases_agree_with_a_plain_model_and_shows_count_once(
    tmp_path: Path, program: str
) -> None:
    write(tmp_path)
    found = run(tmp_path, [f"trainer.program={program}"])
    before, after = (
        {name: np.array(values).reshape(shape) for name, (shape, values) in found[when].items()}
        for when in ("before", "after")
    )
    plain = Plain(before)
    for line in found["lines"]:
        losses = [plain.join_step([1, 4, 3]), plain.join_step([0, 2, 5])]
        assert line["phases"]["join"]["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
        assert line["loss"] == pytest.approx(plain.update_step(list(range(6))), rel=1e-5)
        assert line["phases"]["update"]["loss"] == line["loss"]
        assert [line["phases"][p]["batches"] for p in ("join", "update")] == [2, 1]
        assert line["samples"] == line["phases"]["join"]["samples"] == 6
    wanted = Plain(after)
    for name in ("pairs", "join", "join_bias", "update", "update_bias"):
        np.testing.assert_allclose(
            getattr(plain, name), getattr(wanted, name), rtol=2e-4, atol=1e-6
        )
    assert set(found["rows"]) == set(map(str, plain.rows))
    for feasign, row in plain.rows.items():
        words = found["rows"][str(feasign)]
        assert words[1:3] == [row.show, row.click], feasign
        expected = [row.w, row.w_state, *row.v, row.v_state]
        np.testing.assert_allclose(words[6:], expected, rtol=2e-4, atol=1e-6)
    occurrences = [f for n in range(len(ROWS)) for slot in Plain.slots(n) for f in slot]
    for feasign in plain.rows:  # two passes, each of which counts once
        assert found["rows"][str(feasign)][1] == 2 * occurrences.count(feasign)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    options = ["--pages", "900", "--parts", "3", "--out", str(folder)]
    done = processes.run(["datasets/page_views/prepare.py", *options])
    assert done.returncode == 0, done.stderr
    return folder


def of_pages(pages: Path) -> list[str]:
    return [
        f"data.train_files=[{pages}/train-*.csv]",
        f"data.test_files=[{pages}/test.csv]",
        *("data.batch_size=64", "data.pv_batch_size=20", "phases.join.model.dropout=0.2"),
        *("phases.update.model.dropout=0.2", "trainer.dense_threads=1", "data.date=20240101"),
        *("data.files_per_day=1", "table.life.delete_threshold=0"),
    ]


CONFIG = "configs/join_update_page_views.yaml"


@pytest.fixture(scope="module")
def undisturbed(pages: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(tmp_path_factory.mktemp("undisturbed"), of_pages(pages), config=CONFIG)


@pytest.mark.slow
@pytest.mark.parametrize("phase", [Phase.UPDATE, long(Phase.JOIN)])
def test_a_run_killed_in_a_phase_ends_as_one_that_never_was(
    tmp_path: Path, pages: Path, undisturbed: Any, phase: Phase
) -> None:
    assert run(tmp_path, of_pages(pages), 2, phase.value, config=CONFIG) == -9
    resumed = run(tmp_path, of_pages(pages), config=CONFIG)
    assert resumed["summary"]["resumed_after_pass"] == 1
    for digest in ("sparse_digest", "dense_digest"):
        assert resumed["summary"][digest] == undisturbed["summary"][digest]
    assert resumed["after"] == undisturbed["after"]
    for one, other in zip(resumed["lines"], undisturbed["lines"], strict=True):
        for name in ("loss", "metrics"):
            assert one[name] == other[name]
            for of in ("join", "update"):
                assert one["phases"][of][name] == other["phases"][of][name]


@pytest.mark.slow
def test_each_phase_has_its_metrics_and_its_evaluation(undisturbed: Any, pages: Path) -> None:
    tested, lines = undisturbed["tested"], undisturbed["lines"]
    assert len(lines) == 3
    for line in lines:
        assert line["metrics"] == line["phases"]["update"]["metrics"]
        assert line["metrics"]["auc"] != line["phases"]["join"]["metrics"]["auc"]
        assert line["phases"]["join"]["metrics"]["size"] == line["samples"] == 720
    assert tested["join"]["size"] == tested["update"]["size"] == 540
    assert tested["join"]["auc"] != tested["update"]["auc"]
    assert any(name.startswith("join/") for name in undisturbed["after"])


@pytest.mark.long
def test_a_metric_is_measured_in_the_phase_that_it_names(tmp_path: Path) -> None:
    write(tmp_path)
    specs = (
        "metrics=[{name: pages, method: wuauc, group: box_search_id, phase: join}, "
        '{name: first, mask: {box_cmatch_rank: ["222_1"]}, phase: update}, '
        "{name: broken, method: nan_inf}]"
    )
    line = run(tmp_path, [specs])["lines"][0]
    join, update = (line["phases"][phase]["metrics"] for phase in ("join", "update"))
    assert (join["pages"]["groups"], join["pages"]["size"]) == (2, 5)  # search 7 has clicks alone
    assert update["first"]["size"] == 3
    assert join["broken"] == update["broken"] == {"nan": 0, "inf": 0, "rate": 0, "size": 6}
    assert "first" not in join
    assert "pages" not in update
    assert line["metrics"] == update


DNN, RANKED = {"type": "dnn", "hidden": [4]}, {"type": "rank_attention", "hidden": [4]}
PHASES = {"join": {"model": RANKED}, "update": {"model": DNN}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"phases": PHASES, "data": {"logkey": False}}, r"set data\.logkey: true"),
        ({"phases": {"join": PHASES["join"]}}, "expected both, join and update, found join"),
        ({"phases": {**PHASES, "joint": PHASES["join"]}}, "found join, update, joint"),
        ({"phases": PHASES, "model": RANKED}, r"set phases\.update\.model"),
        ({"phases": PHASES, "model": {"hidden": [8]}}, r"set phases\.update\.model"),
        ({"phases": {**PHASES, "update": PHASES["join"]}}, r"phases\.update\.model\.type rank_att"),
        ({"model": RANKED}, r"model\.type rank_attention needs page views"),
        (
            {"phases": {**PHASES, "join": {"model": {"type": "custom", "layer": "a.py:A"}}}},
            r"phases\.join\.model\.layer needs security\.allow_commands",
        ),
        ({"model": DNN, "metrics": [{"name": "m", "phase": "join"}]}, "needs a config with phases"),
    ],
)
def test_phases_that_make_no_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    from paddlebox.config.check import validate

    with pytest.raises(ConfigError, match=message):
        whole = config_fields(data={"logkey": True, **fields.get("data", {})}, model=None)
        validate(Config, {**whole, **fields, "data": whole["data"]}, "a config")


@pytest.mark.parametrize("share", ["bytes", "instance", "ins_id"])
def test_several_ranks_do_not_share_the_instances_of_a_page_view(share: str) -> None:
    config = load_config(ROOT / CONFIG, [f"data.share={share}"])
    check_config(config, ONE_RANK)
    with pytest.raises(ConfigError, match=rf"data\.share {share} with phases: ranks would share"):
        check_config(config, World(0, 2))


def test_a_config_with_phases_is_read_back_from_what_it_was_written_as() -> None:
    config = load_config(ROOT / CONFIG)
    assert Config.model_validate_json(config.canonical_json(), strict=False) == config
    assert config.model == config.phases["update"].model
    join = config.of_phase(Phase.JOIN)
    assert (join.model, join.phases) == (config.phases["join"].model, {})


def test_an_export_of_one_phase_takes_no_version_of_the_other() -> None:
    from paddlebox.serving.gate import check_same_phase

    update = load_config(ROOT / CONFIG, ["phases.join.model={type: dnn}"])
    join, file = update.of_phase(Phase.JOIN), Path("model")
    for one in (update, join):
        check_same_phase(file, one, one)
    for old, new in ((update, join), (join, update)):
        with pytest.raises(ConfigError, match="model: serves one phase of the run"):
            check_same_phase(file, old, new)
    alone = load_config(ROOT / CONFIG, []).of_phase(Phase.UPDATE)
    check_same_phase(file, alone, update)  # a run that has got a join phase


def test_slots_that_a_model_cannot_read_are_refused(tmp_path: Path) -> None:
    from paddlebox.training.opening import read_slots

    write(tmp_path)
    path = tmp_path / "config.yaml"
    with pytest.raises(ConfigError, match=r"no sparse slot .* did you mean 'user'"):
        read_slots(load_config(path, ["phases.update.model.slots=[usr]"]))


@pytest.mark.long
def test_update_serves_and_reads_the_slots_that_it_was_trained_on(
    tmp_path: Path, pages: Path, undisturbed: Any
) -> None:
    from paddlebox.serving import Predictor
    from paddlebox.training.metrics import PassMetrics

    whole = [*of_pages(pages), "table.life.base_threshold=0", "phases.join.model={type: dnn}"]
    trained = run(tmp_path, whole, config=CONFIG)
    with open(pages / "test.csv") as file:
        names, *lines = (line.strip().split(",") for line in file)
    labels = np.array([int(line[0]) for line in lines])
    fields = [dict(zip(names[2:], line[2:], strict=True)) for line in lines]
    for phase in ("update", "join"):
        export = ("export", tmp_path / "run", "--out", tmp_path / phase, "--phase", phase)
        assert tool(*export).returncode == 0
        with Predictor(tmp_path / phase, follow_s=0) as predictor:
            predictions = predictor.predict(fields)
            elsewhere = predictor.predict([{**one, "position": "p9"} for one in fields])
        assert (predictions == elsewhere).all() == (phase == "update")  # join reads positions
        metrics = PassMetrics()
        metrics.add(predictions, labels)
        for name in ("auc", "logloss", "predicted_ctr"):
            assert metrics.compute()[name] == pytest.approx(
                trained["tested"][phase][name], abs=1e-5
            )


@pytest.mark.slow
def test_two_ranks_end_both_phases_as_one_does(tmp_path: Path, pages: Path) -> None:
    overrides = [*of_pages(pages), "data.files_per_pass=3", "data.files_per_day=3"]
    overrides += ["phases.join.model.dropout=0", "phases.update.model.dropout=0"]
    alone = run(tmp_path / "alone", overrides, config=CONFIG)
    halved = ["data.batch_size=32", "data.pv_batch_size=10", "data.test_files=[]"]
    done = processes.run([
        *("-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir"),
        *(str(tmp_path / "log"), "tools/train.py", "-c", CONFIG),
        *("--run-dir", str(tmp_path / "run"), "-o", *overrides, *halved),
    ])  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "run/metrics.jsonl").read_text()
    line, other = json.loads(text), alone["lines"][0]
    for phase in ("join", "update"):
        one, two = other["phases"][phase], line["phases"][phase]
        assert one["samples"] == two["samples"] == 3 * 720
        assert two["loss"] == pytest.approx(one["loss"], rel=0.02)  # other batches, as many of them
    sent, steps = line["ranks"], sum(of["batches"] for of in line["phases"].values())
    assert sent["bytes_per_step"] == sum(sent["sent_bytes"].values()) / steps
    channels = [set(sent[what]) for what in ("seconds", "waiting_seconds", "waits")]
    assert channels[0] == channels[1] == channels[2] >= {"ask", "step", "dense"}
