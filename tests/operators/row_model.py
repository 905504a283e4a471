"""A plain model of rows, in float64: what the operators must agree with.

Row: show, click, w, g2sum, v (D), g2sum of v, has v. AdaGrad as in docs and ops/rule/adagrad.h.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

LEARNING_RATE, G0, BOUND = 0.05, 3.0, 10.0


@dataclass
class Row:
    dim: int
    show: float = 0.0
    click: float = 0.0
    w: float = 0.0
    w_state: float = 0.0
    v_state: float = 0.0
    v: np.ndarray = field(default_factory=lambda: np.zeros(0))
    has_v: bool = False

    def pulled(self) -> np.ndarray:
        """[show, click, w, v...]; v is zeros before it exists."""
        v = self.v if self.has_v else np.zeros(self.dim)
        return np.concatenate([[self.show, self.click, self.w], v])

    def push(self, show: float, click: float, gradient: np.ndarray, first_v: np.ndarray) -> None:
        """gradient: (1 + D) of the sum loss. first_v: what v is when this push makes it."""
        self.show += show
        self.click += click
        scale = show if show > 0 else 1.0
        scaled = gradient / scale
        self.w -= LEARNING_RATE * scaled[0] * np.sqrt(G0 / (G0 + self.w_state))
        self.w = float(np.clip(self.w, -BOUND, BOUND))
        self.w_state += scaled[0] ** 2
        if self.has_v:
            step = LEARNING_RATE * np.sqrt(G0 / (G0 + self.v_state))
            self.v = np.clip(self.v - step * scaled[1:], -BOUND, BOUND)
            self.v_state += float(np.mean(scaled[1:] ** 2))
        else:
            self.v, self.has_v = first_v.astype(np.float64), True


def pooled(rows: dict[int, Row], ids: list[list[list[int]]], dim: int, use_cvm: bool) -> np.ndarray:
    """ids[b][s]: feasigns. Returns (B, S, width)."""
    out = []
    for instance in ids:
        for slot in instance:
            total = np.zeros(3 + dim)
            for feasign in slot:
                if feasign:
                    total += rows[feasign].pulled()
            if use_cvm:
                show, click = np.log(total[0] + 1), np.log(total[1] + 1)
                total[0], total[1] = show, click - show
                out.append(total)
            else:
                out.append(total[2:])
    return np.array(out).reshape(len(ids), len(ids[0]), -1)
