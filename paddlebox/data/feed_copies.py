"""Copies the arrays of feeds to a GPU, while the steps before theirs run."""

from __future__ import annotations

from typing import Any

import numpy as np

from paddlebox._native import core
from paddlebox.data.batches import Feed


class SentFeed(dict[str, Any]):
    """A feed whose inputs of a program are on the GPU too: name -> the array that was copied, and
    the tensor. They stay there as long as the feed or its tensors live."""

    sent: dict[str, tuple[np.ndarray, Any]]


class FeedCopies:
    """Sends feeds to a device of Paddle. Any thread may call it. A static program must have run
    before its feed is dropped: the memory is used again."""

    def __init__(self, device: str, gpu: int) -> None:
        self._copies = core.FeedCopies(device, gpu)

    def __call__(self, feed: Feed) -> SentFeed:
        arrays = {name: array for name, array in feed.items() if name.startswith("box_")}
        tensors = self._copies.send([(n, np.ascontiguousarray(a)) for n, a in arrays.items()])
        found = SentFeed(feed)
        found.sent = {name: (arrays[name], tensor) for name, tensor in tensors}
        return found


def on_device(feed: Feed) -> Feed:
    """The feed with tensors in place of the arrays that were sent and are still in it."""
    sent = feed.sent if isinstance(feed, SentFeed) else {}
    return {
        name: sent[name][1].get_tensor() if name in sent and sent[name][0] is array else array
        for name, array in feed.items()
    }
