"""Does HSTU learn what a user's events determine, and how much faster is it without padding?

    python benchmarks/sequences.py
    python benchmarks/sequences.py --quick

Quality. Users are drawn whose clicks follow a function of their earlier events
(peers/planted_users.py), so that the AUC of the function is the best possible one:

  decay       the clicks in the category of the event less the events without one, with weights
              that decay with time
  transition  the category of the last event and that of this one
  repeat      whether the item was shown 10 or more events ago
  match       the number of clicks in the category, which DIN can represent, too

HSTU trains users, DIN trains the same events one by one, each with the user's earlier events:
items, categories and whether they were clicked. Each model has the same trials, namely learning
rates and epochs. The trial that is best on half of the held-out users is measured on the other
half.

Speed. The same HSTU, with the same inputs and parameters, without padding and in Paddle's operators
with padding to the longest user; the mean length is a quarter of it. The subjects take turns.

MovieLens. The configs hstu_movielens and din_movielens are trained and evaluated unchanged, with
the same seeds, on the rows in $PADDLEBOX_DATA. The interval of the mean difference of their AUC is
Student's, over the seeds.

Serving. A user with 500 events and 50 candidates: the whole history is sent, or one new event after
those that the Predictor keeps.

Sharing. Instances like those of KuaiRand, in the order of users and times, each with the last 50
videos that the user clicked: the rows of the table that the batches of configs/din_kuairand.yaml
read with data.dedup_slots, and without it. They are compared with the sharing of equal lists alone,
which is what data.dedup_slots does if the model pools the history. The number of users in a batch
of 1024 instances varies. The times are those of the fused pull, on one thread.

Goals: HSTU is at most 0.01 below the best possible AUC, and at least 0.01 above DIN, or, where DIN
can represent the function, at most 0.003 below it. The numbers of parameters differ by at most
10 %. Without padding, there are at least 2 times the events/s, with at most half of the memory. On
MovieLens, HSTU is not below DIN. The predictions of both ways differ by at most 1e-6. With 16 users
in a batch, the sharing of equal lists alone reads at least 2 times the rows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import report
import zoo_claims
from peers import growing_histories, planted_users, served_users
from peers.planted_users import FORMS
from peers.turns import Subject

ABOVE = {form: -0.003 if form == "match" else 0.01 for form in FORMS}
HSTU = {"type": "hstu", "width": 32, "heads": 2, "head_dim": 16, "layers": 2, "hidden": [64],
        "use_cvm": False}  # fmt: skip
DIN = {"type": "din", "attention_hidden": [64, 32], "hidden": [64, 32], "use_cvm": False}
MODELS = {"hstu": HSTU, "din": DIN}
SHARING_BATCH, GOAL_USERS = 1024, 16
SPEED = {"type": "hstu", "width": 64, "heads": 2, "head_dim": 32, "layers": 2, "hidden": [64],
         "time_buckets": 64}  # fmt: skip


def trial(options: argparse.Namespace, form: str, name: str, rate: float) -> dict[str, Any]:
    model = dict(MODELS[name])
    if name == "hstu":
        model["max_length"] = options.most
    else:
        model["history"] = {"h_item": "item", "h_category": "category", "h_action": "asked"}
    settings = {
        "form": form,
        "model": model,
        "optimizer": {"type": "adam", "learning_rate": rate, "averaging": 0.999},
        "users": options.users,
        "held_out": options.held_out,
        "most": options.most,
        "batch": options.batch,
        "epochs": options.epochs,
        "seed": options.seed,
    }
    subject = Subject("planted_models", name, settings, {})
    try:
        return dict(subject.ask("train"))
    finally:
        subject.close()


def best_trial(options: argparse.Namespace, form: str, name: str) -> dict[str, Any]:
    """The trial, with its epoch, that is best on the first half of the held-out users."""
    found = []
    for rate in options.rates:
        one = trial(options, form, name, rate)
        epoch = max(range(len(one["epochs"])), key=lambda e: one["epochs"][e][0])
        chosen, auc = one["epochs"][epoch]
        found.append({"rate": rate, "epoch": epoch + 1, "chosen_by": chosen, "auc": auc, **one})
        print(
            f"{form:10} {name:5} rate {rate:g}: AUC {auc:.4f}, {one['seconds']:.0f} s", flush=True
        )
    best = max(found, key=lambda one: one["chosen_by"])
    return {**best, "trials": found}


def quality(options: argparse.Namespace) -> tuple[dict[str, Any], list[report.Goal]]:
    figures: dict[str, Any] = {}
    goals = []
    for form in options.forms:
        users = planted_users.plant(form, options.held_out, options.most, 3)
        bound = planted_users.auc(users.p, users.click)
        found = {name: best_trial(options, form, name) for name in MODELS}
        figures[form] = {"bound": bound, "events": len(users.click), **found}
        hstu, din = found["hstu"], found["din"]
        print(f"{form:10} bound {bound:.4f}  HSTU {hstu['auc']:.4f}  DIN {din['auc']:.4f}")
        goals += [
            report.at_most(f"{form}: best AUC less that of HSTU", bound - hstu["auc"], 0.01),
            report.at_least(
                f"{form}: AUC of HSTU less that of DIN", hstu["auc"] - din["auc"], ABOVE[form]
            ),
        ]
        counts = hstu["parameters"] / din["parameters"]
        goals.append(report.at_most(f"{form}: difference of the parameters", abs(counts - 1), 0.1))
    return figures, goals


def speed(options: argparse.Namespace) -> tuple[dict[str, Any], list[report.Goal]]:
    settings = {
        "users": options.speed_users,
        "most": options.speed_most,
        "features": 40,
        "model": {**SPEED, "max_length": options.speed_most},
        "batches": 2,
        "threads": options.threads,
    }
    subjects = {name: Subject("padded_hstu", name, settings, {}) for name in ("jagged", "padded")}
    figures: dict[str, Any] = {name: {"rate": []} for name in subjects}
    try:
        for name, subject in subjects.items():
            figures[name]["resident_bytes"] = subject.ask("resident")
            figures[name]["first_loss"] = subject.ask("first_loss")
            figures[name]["mean_length"] = subject.ask("mean_length")
        losses = [figures[name]["first_loss"] for name in subjects]
        if abs(losses[0] - losses[1]) > 1e-5 * abs(losses[0]):
            raise RuntimeError(f"the subjects differ: losses {losses[0]!r} and {losses[1]!r}")
        for _ in range(options.turns):
            for name, subject in subjects.items():
                found = subject.ask("turn")
                figures[name]["rate"].append(found["rate"])
                grown = found["peak_bytes"] - figures[name]["resident_bytes"]
                figures[name]["step_bytes"] = grown
    finally:
        for subject in subjects.values():
            subject.close()
    for name, one in figures.items():
        rate = report.spread(one["rate"])["median"]
        of_users = f"{one['mean_length']:.1f} of {options.speed_most} events a user"
        print(f"{name}: {rate:,.0f} events/s, {one['step_bytes'] / 1e6:,.0f} MB, {of_users}")
    jagged, padded = figures["jagged"], figures["padded"]
    memory = jagged["step_bytes"] / padded["step_bytes"]
    return figures, [
        report.at_least(
            "events/s without padding, times those with it",
            report.ratios(jagged["rate"], padded["rate"]),
            2.0,
        ),
        report.at_most("memory of the steps without padding, of that with it", memory, 0.5),
    ]


def interval(differences: list[float]) -> tuple[float, float]:
    """Student's 95 % interval of a mean. differences: at least two."""
    from scipy import stats  # comes with scikit-learn

    n = len(differences)
    half = float(stats.t.ppf(0.975, n - 1) * np.std(differences, ddof=1) / np.sqrt(n))
    mean = float(np.mean(differences))
    return mean - half, mean + half


def movielens(options: argparse.Namespace) -> tuple[dict[str, Any], list[report.Goal]]:
    name = "MovieLens: AUC of HSTU less that of DIN"
    found: dict[str, Any] = {model: [] for model in MODELS}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        try:
            data = zoo_claims.prepared(folder, "movielens", "")
        except report.UnavailableError as error:
            return {}, [report.not_measured(report.at_least(name, [], 0.0), str(error))]
        for seed in range(1, options.seeds + 1):
            for model, aucs in found.items():
                config = report.ROOT / "configs" / f"{model}_movielens.yaml"
                run_dir = folder / f"{model}-{seed}"
                aucs += zoo_claims.run(config, data, "movielens", seed, run_dir)
            print(
                f"movielens  seed {seed}  HSTU {found['hstu'][-1]:.4f}  DIN {found['din'][-1]:.4f}"
            )
    above = [h - d for h, d in zip(found["hstu"], found["din"], strict=True)]
    low, high = interval(above)
    mean = float(np.mean(above))
    print(f"movielens  HSTU less DIN {mean:.4f}, 95 % interval {low:.4f} to {high:.4f}")
    figures = {**found, "above": mean, "interval": [low, high]}
    return figures, [report.at_least(name, mean, 0.0)]


def served_model(folder: Path, history: int) -> Path:
    """An export of a model that was trained for one pass on planted users."""
    kinds = {"click": "label", "user": "sparse", "item": "sparse", "category": "sparse"}
    slots = [{"name": name, "type": kind} for name, kind in kinds.items()]
    (folder / "slots.yaml").write_text(json.dumps({"slots": slots}))
    served_users.write(folder / "train.csv", planted_users.plant("decay", 200, 40, 1))
    config = {
        "name": "served",
        "data": {
            "format": "csv",
            "slots": str(folder / "slots.yaml"),
            "train_files": [str(folder / "train.csv")],
            "sequences": {"user": "user", "max_length": 2 * history},
        },
        "model": {**SPEED, "max_length": 2 * history, "slots": ["item", "category"]},
        "table": {"embedx_threshold": 0.0},
        "hbm": {"budget_bytes": "64MiB"},
        "mem": {"budget_bytes": "64MiB"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    run, model = folder / "run", folder / "model.pbx"
    zoo_claims.tool("tools/train", "-c", folder / "config.json", "--run-dir", run)
    zoo_claims.tool("tools/export", run, "--out", model)
    return model


def serving(options: argparse.Namespace) -> tuple[dict[str, Any], list[report.Goal]]:
    with tempfile.TemporaryDirectory() as made:
        settings = {
            "model": str(served_model(Path(made), options.history)),
            "history": options.history,
            "candidates": options.candidates,
            "seed": options.seed,
        }
        subject = Subject("served_users", "own", settings, {})
        try:
            difference = subject.ask("difference")
            taken = subject.ask("turn", requests=options.requests)
        finally:
            subject.close()
    figures: dict[str, Any] = {"difference": difference}
    for name, times in taken.items():
        figures[name] = {f"p{p}_ms": float(np.percentile(times, p)) for p in (50, 99)}
        print(f"{name:12} p50 {figures[name]['p50_ms']:.2f} ms, p99 {figures[name]['p99_ms']:.2f}")
    return figures, [report.at_most("incremental and whole histories differ by", difference, 1e-6)]


def check_users(parser: argparse.ArgumentParser, users_of_batch: list[int]) -> None:
    for users in users_of_batch:
        if not 1 <= users <= SHARING_BATCH:
            parser.error(
                f"--users-of-batch {users}: expected 1 to {SHARING_BATCH}, the instances of a batch"
            )
    if GOAL_USERS not in users_of_batch:
        parser.error(f"--users-of-batch: expected {GOAL_USERS} among them")


def sharing(options: argparse.Namespace) -> tuple[dict[str, Any], list[report.Goal]]:
    figures: dict[str, Any] = {}
    for users in options.users_of_batch:
        figures[f"{users} users a batch"] = rows_read(options, users)
    of_goal = figures[f"{GOAL_USERS} users a batch"]["rows"]
    times = of_goal["equal lists"] / of_goal["dedup_slots"]
    name = f"rows of equal lists alone, over dedup_slots, {GOAL_USERS} users a batch"
    return figures, [report.at_least(name, times, 2.0)]


def rows_read(options: argparse.Namespace, users: int) -> dict[str, Any]:
    """Rows that are read for an instance, and milliseconds of the pull of a batch."""
    from paddlebox.config import load_config

    dedup = load_config(growing_histories.CONFIG).data.dedup_slots
    ways: dict[str, tuple[Any, tuple[str, ...]]] = {
        "off": ("off", ("history",)),
        "equal lists": (dedup, ()),
        "dedup_slots": (dedup, ("history",)),
    }
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "train.csv"
        per_user = SHARING_BATCH // users
        growing_histories.write(path, users * options.batches, per_user, 7000, options.seed)
        pulls = {
            name: growing_histories.Pulls(name.replace(" ", "_"), path, SHARING_BATCH, *way)
            for name, way in ways.items()
        }
        if pulls["off"].pulled() != pulls["dedup_slots"].pulled():
            raise RuntimeError("the pulls of shared histories differ")
        rows = {name: one.rows / one.instances for name, one in pulls.items()}
        taken: dict[str, list[float]] = {"off": [], "dedup_slots": []}
        for _ in range(options.turns):
            for name, of_way in taken.items():
                of_way.append(pulls[name].milliseconds())
        for one in pulls.values():
            one.close()
    counts = ", ".join(f"{name} {count:.1f}" for name, count in rows.items())
    spread = {name: report.spread(of_way) for name, of_way in taken.items()}
    medians = ", ".join(f"{name} {float(np.median(of)):.2f}" for name, of in taken.items())
    print(f"{users:3} users a batch: rows of an instance: {counts}; ms of a pull: {medians}")
    return {"rows": rows, "pull_ms": spread}


PARTS = {
    "speed": speed,
    "quality": quality,
    "movielens": movielens,
    "serving": serving,
    "sharing": sharing,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", "--trial", action="store_true", help="a trial: 300 users, 1 rate"
    )
    parser.add_argument("--forms", nargs="+", choices=[*FORMS], default=[*FORMS])
    parser.add_argument("--users", type=int, default=5000, help="users to train")
    parser.add_argument("--held-out", type=int, default=2000, help="users of each held-out half")
    parser.add_argument("--most", type=int, default=40, help="most events of a user")
    parser.add_argument("--batch", type=int, default=512, help="events of a batch")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--rates", type=float, nargs="+", default=[4e-3, 8e-3])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speed-users", type=int, default=32, help="users of a batch")
    parser.add_argument("--speed-most", type=int, default=256, help="most events of a user")
    parser.add_argument("--threads", type=int, default=1, help="threads of the dense part")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=10, help="seeds of the MovieLens configs")
    parser.add_argument("--history", type=int, default=500, help="events of the served user")
    parser.add_argument("--candidates", type=int, default=50)
    parser.add_argument("--requests", type=int, default=200, help="timed requests of each kind")
    parser.add_argument(
        "--users-of-batch", type=int, nargs="+", default=[4, 16, 64, 256], help="users that share"
    )
    parser.add_argument("--batches", type=int, default=8, help="batches of users that share")
    parser.add_argument("--only", choices=[*PARTS], help="one of the parts")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/sequences.json"))
    options = parser.parse_args()
    if options.quick:
        options.users, options.held_out, options.epochs, options.rates = 300, 300, 2, [3e-3]
        options.turns, options.seeds, options.requests = 3, 2, 20
        options.users_of_batch, options.batches = [GOAL_USERS], 2
    if options.only in (None, "sharing"):
        check_users(parser, options.users_of_batch)
    figures: dict[str, Any] = {}
    goals: list[report.Goal] = []
    for name, part in PARTS.items():
        if options.only in (None, name):
            figures[name], more = part(options)
            goals += more
    settings = json.loads(json.dumps(vars(options), default=str))
    return report.write(options.out, settings, figures, goals)


if __name__ == "__main__":
    report.run(main)
