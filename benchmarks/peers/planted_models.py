"""Trains a model on planted users (planted_users.py), through the operators of a run. See `turns`.

Rows: the items, then the categories, then no click, click and "not yet" as actions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from peers import planted_users, turns
from peers.planted_users import CATEGORIES, ITEMS, Users

ROWS = ITEMS + CATEGORIES + 3
_ACTIONS = ITEMS + CATEGORIES
DIM = 8
EVENT = {"item": "sparse", "category": "sparse"}
HISTORY = {"h_item": "item", "h_category": "category", "h_action": "asked"}

Feed = dict[str, np.ndarray]


class _Feeds:
    """The batches of a model. A batch is an array of numbers of its units."""

    def __init__(self, users: Users) -> None:
        self.users = users
        self.place = np.arange(len(users.item)) - np.repeat(
            users.offsets[:-1], np.diff(users.offsets)
        )

    def common(self, events: np.ndarray, ids: np.ndarray, offsets: np.ndarray) -> Feed:
        label = self.users.click[events, None].astype(np.float32)
        return {
            "box_ids": ids.astype(np.int32),
            "box_offsets": offsets.astype(np.int32),
            "box_show_click": np.concatenate([np.ones_like(label), label], axis=1),
            "box_plan": np.zeros(1, np.int32),
            "box_dense": np.zeros((len(events), 0), np.float32),
            "box_label": label,
        }


class _OfUsers(_Feeds):
    """Whole users; a batch has about `size` events."""

    def __init__(self, users: Users, size: int) -> None:
        super().__init__(users)
        self.units = len(users.offsets) - 1
        self.per_batch = max(1, round(size * self.units / len(users.item)))

    def feed(self, chosen: np.ndarray) -> tuple[Feed, np.ndarray]:
        users = self.users
        lengths = np.diff(users.offsets)[chosen]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        events = np.arange(offsets[-1]) + np.repeat(users.offsets[chosen] - offsets[:-1], lengths)
        ids = np.stack([users.item[events], ITEMS + users.category[events]], axis=1)
        feed = self.common(events, ids.reshape(-1), np.arange(ids.size + 1))
        feed["box_seq_offsets"] = offsets.astype(np.int32)
        feed["box_seq_time"] = users.time[events, None]
        feed["box_seq_position"] = self.place[events, None].astype(np.int32)
        feed["box_train_mask"] = np.ones((len(events), 1), np.float32)
        return feed, events


class _OfInstances(_Feeds):
    """Single events, each with the user's earlier events, the latest first."""

    def __init__(self, users: Users, size: int, most: int) -> None:
        super().__init__(users)
        self.units, self.per_batch = len(users.item), size
        from paddlebox.data.positions import Positions

        self.positions = Positions(slots_of("din", most), tuple(HISTORY))

    def feed(self, events: np.ndarray) -> tuple[Feed, np.ndarray]:
        users, earlier = self.users, self.place[events]
        owner = np.repeat(events, earlier)
        starts = np.cumsum(earlier) - earlier
        history = owner - 1 - (np.arange(len(owner)) - np.repeat(starts, earlier))
        parts = [users.item[history], ITEMS + users.category[history]]
        parts.append(_ACTIONS + users.click[history].astype(int))
        # The ids of an instance: 3 of the event, then 3 lists of its history.
        each = np.stack([np.ones_like(earlier)] * 3 + [earlier] * 3, axis=1)
        offsets = np.concatenate([[0], np.cumsum(each.reshape(-1))])
        ids = np.empty(offsets[-1], np.int64)
        begin = offsets[:-1].reshape(-1, 6)
        ids[begin[:, 0]] = users.item[events]
        ids[begin[:, 1]] = ITEMS + users.category[events]
        ids[begin[:, 2]] = _ACTIONS + 2
        within = np.arange(len(owner)) - np.repeat(starts, earlier)
        for number, part in enumerate(parts):
            ids[np.repeat(begin[:, 3 + number], earlier) + within] = part
        cells, lengths = self.positions.part(offsets.astype(np.int32))
        feed = self.common(events, ids, cells)
        return feed | {"box_dense": lengths}, events


def slots_of(model: str, most: int) -> Any:
    from paddlebox.config import Slots

    slots: list[dict[str, Any]] = [{"name": "click", "type": "label"}]
    slots += [{"name": name, "type": "sparse"} for name in EVENT]
    if model == "din":
        slots.append({"name": "asked", "type": "sparse"})
        slots += [{"name": name, "type": "sparse", "max_length": most} for name in HISTORY]
    return Slots.model_validate({"slots": slots}, strict=False)


def _batches(feeds: Any, order: np.ndarray) -> Iterator[tuple[Feed, np.ndarray]]:
    for begin in range(0, feeds.units, feeds.per_batch):
        yield feeds.feed(order[begin : begin + feeds.per_batch])


class Trainer:
    """One model on one form. settings: form, model, users, held_out, most, batch, seed."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from paddlebox.config import Config
        from paddlebox.launch import cpu

        self.settings = settings
        self.config = Config.model_validate(
            {
                "name": "planted",
                "seed": settings["seed"],
                "data": {
                    "format": "csv",
                    "slots": "slots.yaml",
                    "train_files": ["none"],
                    "sequences": {"user": "user" if settings["model"]["type"] == "hstu" else ""},
                },
                "model": settings["model"],
                "table": {
                    "embedx_dim": DIM,
                    "embedx_threshold": 0.0,
                    "embed": {"learning_rate": 0.05, "initial_g2sum": 3.0},
                    "embedx": {"initial_range": 0.3, "learning_rate": 0.05},
                },
                "optimizer": settings["optimizer"],
            },
            strict=False,
        )
        cpu.apply(self.config.trainer.program, dense_threads=1)

    def train(self) -> dict[str, Any]:
        """Train for `epochs`, and evaluate each epoch on the held-out users.

        Returns: for each epoch the AUC on each half of the held-out users; the number of dense
            parameters; seconds of training.
        """
        from paddlebox.store.files import AVERAGE_SUFFIX
        from paddlebox.store.table import Table, sorted_unique_keys
        from paddlebox.training.runner import build_runner

        s = self.settings
        trained, chosen, tested = (
            self._feeds(planted_users.plant(s["form"], count, s["most"], seed))
            for count, seed in ((s["users"], 1), (s["held_out"], 2), (s["held_out"], 3))
        )
        random, seconds, epochs = np.random.default_rng(s["seed"]), 0.0, []
        with Table(self.config.table, mem_budget_bytes=1 << 20) as table:
            runner = build_runner(self.config, slots_of(s["model"]["type"], s["most"]))
            staged = table.stage(sorted_unique_keys(np.arange(1, ROWS + 1, dtype=np.uint64)))
            table.begin(staged)
            for _ in range(s["epochs"]):
                begin = time.perf_counter()
                for feed, _ in _batches(trained, random.permutation(trained.units)):
                    runner.train_step(feed)
                seconds += time.perf_counter() - begin
                epochs.append([self._auc(runner, feeds) for feeds in (chosen, tested)])
            averaged = runner.dense_state().items()  # of each parameter, and of statistics
            parameters = sum(
                a.size for n, a in averaged if n.endswith(AVERAGE_SUFFIX) and "batch_norm" not in n
            )
            table.end()
            table.commit()
        return {"epochs": epochs, "parameters": int(parameters), "seconds": seconds}

    def _feeds(self, users: Users) -> Any:
        size, most = self.settings["batch"], self.settings["most"]
        if self.settings["model"]["type"] == "hstu":
            return _OfUsers(users, size)
        return _OfInstances(users, size, most)

    def _auc(self, runner: Any, feeds: Any) -> float:
        logits = np.empty(len(feeds.users.item))
        for feed, events in _batches(feeds, np.arange(feeds.units)):
            logits[events] = runner.evaluate_step(feed)[1].reshape(-1)
        return planted_users.auc(logits, feeds.users.click)


if __name__ == "__main__":
    turns.serve({"hstu": Trainer, "din": Trainer})
