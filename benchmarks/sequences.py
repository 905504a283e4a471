"""Does HSTU learn what a user's events determine, and how much faster is it without padding?

    python benchmarks/sequences.py
    python benchmarks/sequences.py --quick

Quality. Users are drawn whose clicks follow a function of their earlier events
(peers/planted_users.py), so that the AUC of the function is the best possible one:

  decay       the clicks in the category of the event, with weights that decay with time
  transition  the category of the last event and that of this one
  repeat      whether the item was shown 10 or more events ago
  match       the number of clicks in the category, which DIN can represent, too

HSTU trains users, DIN trains the same events one by one, each with the user's earlier events:
items, categories and whether they were clicked. Each model has the same trials, namely learning
rates and epochs. The trial that is best on half of the held-out users is measured on the other
half.

Speed. The same HSTU, with the same inputs and parameters, without padding and in Paddle's operators
with padding to the longest user; the mean length is a quarter of it. The subjects take turns.

Goals: HSTU is at most 0.01 below the best possible AUC, and at least 0.01 above DIN, or, where DIN
can represent the function, at most 0.003 below it. The numbers of parameters differ by at most
10 %. Without padding, there are at least 2 times the events/s, with at most half of the memory.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import report
from peers import planted_users
from peers.planted_users import FORMS
from peers.turns import Subject

MEASURES = report.TRAINING
ABOVE = {form: -0.003 if form == "match" else 0.01 for form in FORMS}
HSTU = {"type": "hstu", "width": 32, "heads": 2, "head_dim": 16, "layers": 2, "hidden": [64],
        "use_cvm": False}  # fmt: skip
DIN = {"type": "din", "attention_hidden": [64, 32], "hidden": [64, 32], "use_cvm": False}
MODELS = {"hstu": HSTU, "din": DIN}
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
        print(f"{name}: {rate:,.0f} events/s, {one['step_bytes'] / 1e6:,.0f} MB")
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", "--trial", action="store_true", help="a trial: 300 users, 1 rate"
    )
    parser.add_argument("--forms", nargs="+", choices=[*FORMS], default=[*FORMS])
    parser.add_argument("--users", type=int, default=3000, help="users to train")
    parser.add_argument("--held-out", type=int, default=1000, help="users of each held-out half")
    parser.add_argument("--most", type=int, default=40, help="most events of a user")
    parser.add_argument("--batch", type=int, default=512, help="events of a batch")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-3, 4e-3])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speed-users", type=int, default=32, help="users of a batch")
    parser.add_argument("--speed-most", type=int, default=256, help="most events of a user")
    parser.add_argument("--threads", type=int, default=1, help="threads of the dense part")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", choices=["quality", "speed"], help="one of the two parts")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/sequences.json"))
    options = parser.parse_args()
    if options.quick:
        options.users, options.held_out, options.epochs, options.rates = 300, 300, 2, [3e-3]
        options.turns = 3
    figures: dict[str, Any] = {}
    goals: list[report.Goal] = []
    for name, part in (("speed", speed), ("quality", quality)):
        if options.only in (None, name):
            figures[name], more = part(options)
            goals += more
    settings = json.loads(json.dumps(vars(options), default=str))
    return report.write(options.out, settings, figures, goals)


if __name__ == "__main__":
    report.run(main)
