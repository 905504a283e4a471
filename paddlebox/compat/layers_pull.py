"""PaddleBox's `_pull_box_sparse`, with the arguments that skip columns and set the batch size."""

from __future__ import annotations

from typing import Any

from paddlebox import _native, ops
from paddlebox._call import call

paddle = _native.paddle


def pull_box_sparse(
    input: Any,  # noqa: A002  # PaddleBox's name for it
    size: int,
    dtype: str = "float32",
    offset: int = 0,
    slot_idx: int = -1,
    *,
    anchor: Any | None = None,
) -> Any:
    """`paddlebox.ops.pull_box_sparse` with PaddleBox's signature.

    Args:
        input: int64 feasigns: one tensor (B, ...), or a list with one tensor (B, n_slot) for each
            slot.
        size: number of columns of the result. The table's rows have offset + size columns, [show,
            click, embed_w, embedx...].
        dtype: "float32".
        offset: number of columns at the front to leave out. The push takes 1 for them, so with
            offset 1 each occurrence of a feasign counts as a show.
        slot_idx: the slot whose first dimension scales the gradient of the rows. All slots have the
            same B here, so this has an effect only if it is above the number of slots: the gradient
            is then not scaled.
        anchor: float parameter; None creates one, which is meant for static programs.

    Returns: as `paddlebox.ops.pull_box_sparse`, with `size` columns.

    Raises: ValueError for another dtype, or a negative offset; and the errors of
        `paddlebox.ops.pull_box_sparse`.
    """
    if dtype != "float32" or offset < 0:
        raise ValueError(
            f"pull_box_sparse: dtype {dtype!r} and offset {offset}, expected 'float32' and at "
            "least 0"
        )
    listed = isinstance(input, (list, tuple))
    slots = list(input) if listed else [input]
    anchor = ops.create_anchor() if anchor is None else anchor
    if slot_idx > len(slots):
        rows = [_unscaled(ids, size + offset, anchor) for ids in slots]
    else:
        found = ops.pull_box_sparse(input, size + offset, anchor=anchor)
        rows = found if listed else [found]
    if offset:
        rows = [call("box_skip_columns", {"X": r}, {"offset": offset}, ["Out"])[0] for r in rows]
    return rows if listed else rows[0]


def _unscaled(ids: Any, columns: int, anchor: Any) -> Any:
    """The rows of a slot. Its first dimension is 1 for the pull, which scales the gradient."""
    rows = ops.pull_box_sparse(paddle.reshape(ids, [1, -1]), columns, anchor=anchor)
    if len(ids.shape) > 1 and ids.shape[-1] == 1:
        shape = paddle.shape(ids)[:-1]
    else:
        shape = paddle.shape(ids)
    whole = paddle.concat([paddle.cast(shape, "int32"), paddle.full([1], columns, "int32")])
    return paddle.reshape(rows, whole)
