"""The operators, callable alike in dygraph, static PIR and static old-IR programs.

Letters: B = instances, S = sparse slots, D = embedx_dim, nnz = ids in the batch.

Every forward takes an *anchor*, a float parameter with a gradient: autograd calls the backward, and
with it the push, because of it. Its own gradient is zero. Make it with `create_anchor`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from paddlebox import _native
from paddlebox._call import call, raising_own_errors
from paddlebox.ops_dense import batch_fc, data_norm, rank_attention
from paddlebox.ops_seqpool import (
    fused_seqpool_cvm,
    fused_seqpool_cvm_with_conv,
    fused_seqpool_cvm_with_credit,
    fused_seqpool_cvm_with_diff_thres,
    fused_seqpool_cvm_with_pcoc,
)

__all__ = [
    "batch_fc",
    "continuous_value_model",
    "create_anchor",
    "data_norm",
    "fused_pull_seqpool_cvm",
    "fused_seqpool_cvm",
    "fused_seqpool_cvm_with_conv",
    "fused_seqpool_cvm_with_credit",
    "fused_seqpool_cvm_with_diff_thres",
    "fused_seqpool_cvm_with_pcoc",
    "lookup_input",
    "paddle",
    "pull_box_extended_sparse",
    "pull_box_sparse",
    "pull_cache_value",
    "pull_gpups_sparse",
    "push_box_sparse",
    "raising_own_errors",
    "rank_attention",
]

paddle = _native.paddle


def create_anchor(name: str | None = None) -> Any:
    """A parameter of one zero, float32, for the operators' `W`. Optimizers leave it at zero."""
    # A name of our own: in PIR Paddle numbers its unnamed ones past `unique_name.guard`, so that a
    # program for evaluation would not find the anchor of the one that was trained.
    attr = paddle.ParamAttr(
        name=name or paddle.utils.unique_name.generate("box_anchor"),
        initializer=paddle.nn.initializer.Constant(0.0),
    )
    create = paddle.create_parameter if paddle.in_dynamic_mode() else paddle.static.create_parameter
    return create([1], "float32", attr=attr)


def _run(op: str, inputs: dict[str, Any], attrs: dict[str, Any], output: str, dtype: str) -> Any:
    """Calls or appends the custom operator; inputs and attributes in the order of its
    declaration."""
    return call(op, inputs, attrs, [output], dtype)[0]


def pull_box_sparse(
    input: Any,  # noqa: A002  # PaddleBox's name for it
    size: int,
    *,
    anchor: Any | None = None,
) -> Any:
    """Rows of feasigns, from the one open table.

    Args:
        input: int64 feasigns (as bits; 0 is padding and reads as zeros), one tensor (B, ...) or a
            list of them, one a slot, each (B, n_slot).
        size: 3 + D, the columns [show, click, embed_w, embedx...].
        anchor: float parameter; one is created when it is not given (static programs).

    Returns: float32 (..., size) for one tensor, a last dimension of 1 dropped as in PaddleBox: (B,
    1)
        gives (B, size). For a list, a list in the same order: the slots are packed into one call.

    Raises: PassError without an open pass; ValueError for a wrong size, dtype, or a feasign that
        was not staged with the pass.

    Source of layout and padding: PaddleBox, pull_box_sparse_op.
    """
    attrs = {"size": size, "is_distributed": False, "is_sparse": False}
    out, widths = _pull_slots("pull_box_sparse", input, attrs, anchor)
    return _parts(out, widths, size) if isinstance(input, (list, tuple)) else out


def _pull_slots(
    op: str,
    input: Any,  # noqa: A002
    attrs: dict[str, Any],
    anchor: Any | None,
) -> tuple[Any, list[int]]:
    """One call of a pulling operator over all slots, and how many ids an instance has of each."""
    if anchor is None:
        anchor = create_anchor()
    slots = list(input) if isinstance(input, (list, tuple)) else [input]
    if not slots:
        raise ValueError(f"{op}: the list of slots is empty")
    widths = []
    for position, ids in enumerate(slots):
        if ids.dtype not in (paddle.int64, paddle.base.core.VarDesc.VarType.INT64):
            raise ValueError(
                f"{op}: input {position} has dtype {ids.dtype}, expected int64 feasigns: "
                "cast it, paddle.cast(ids, 'int64')"
            )
        if len(slots) > 1 and (len(ids.shape) != 2 or ids.shape[1] < 1):
            raise ValueError(
                f"{op}: input {position} of the list has shape {tuple(ids.shape)}, "
                "expected (B, n) with n known: reshape it"
            )
        widths.append(int(ids.shape[-1]))
    packed = slots[0] if len(slots) == 1 else paddle.concat(slots, axis=1)
    return _run(op, {"Ids": packed, "W": anchor}, attrs, "Out", "float32"), widths


def _parts(out: Any, widths: list[int], size: int) -> list[Any]:
    """What belongs to each slot: (B, size) for one id, (B, n, size) for n."""
    if len(widths) == 1:
        return [out]
    return [
        paddle.reshape(part, [-1, size]) if width == 1 else part
        for part, width in zip(paddle.split(out, widths, axis=1), widths, strict=True)
    ]


def pull_box_extended_sparse(
    input: Any,  # noqa: A002  # PaddleBox's name for it
    size: int,
    extend_size: int = 64,
    dtype: str = "float32",
    mask: Sequence[int] = (),
    offset: int = 0,
    expand_only: bool = True,
    *,
    anchor: Any | None = None,
) -> Any:
    """`pull_box_sparse` with a second embedding, expand, beside embedx.

    Args:
        input: int64 feasigns, one tensor or a list of slots, as of `pull_box_sparse`.
        size: 3 + D. extend_size: E, the table's `expand_dim`. dtype: "float32".
        mask: one a slot: bit 0, it is in the first result; bit 1, in the second. Empty: both.
        offset: 0; PaddleBox's other values leave columns of counts out, which a slice does as well.
        expand_only: the second result holds E columns; otherwise the first result's before them.
        anchor: as of `pull_box_sparse`.

    Returns: (out, extended): for one tensor a pair of tensors; for a list a pair of lists that hold
        the slots of the mask's bits, in order.

    Both parts of a row are created together. Show and click are counted through the first result;
    expand moves only where a gradient that is not 0 reaches it. The rule is `table.expand`.

    Raises: ValueError for sizes that are not the table's, a wrong mask or dtype; PassError where
        the table's rows have no expand part, or no pass is open.

    Source of the signature: PaddleBox, fluid.contrib.layers._pull_box_extended_sparse.
    """
    if dtype != "float32" or offset != 0:
        raise ValueError(
            f"pull_box_extended_sparse: dtype {dtype!r} and offset {offset}, expected 'float32', 0"
        )
    listed = isinstance(input, (list, tuple))
    slots = len(input) if listed else 1
    bits = list(mask) or [3] * slots
    if len(bits) != slots or not all(bit in (1, 2, 3) for bit in bits):
        raise ValueError(
            f"pull_box_extended_sparse: mask {bits}, expected 1, 2 or 3 for each of {slots} slots"
        )
    width = size + extend_size
    out, widths = _pull_slots("pull_box_extended_sparse", input, {"size": width}, anchor)
    parts = _parts(out, widths, width)
    first = [part[..., :size] for part, bit in zip(parts, bits, strict=True) if bit & 1]
    begin = size if expand_only else 0
    second = [part[..., begin:] for part, bit in zip(parts, bits, strict=True) if bit & 2]
    if listed:
        return first, second
    return (first or [None])[0], (second or [None])[0]


def pull_gpups_sparse(
    ids: list[Any],
    size: list[int],
    is_distributed: bool = False,
    is_sparse: bool = False,
    *,
    anchor: Any | None = None,
) -> list[Any]:
    """`pull_box_sparse` of a list of slots, with a size for each, as HeterPS programs write it.

    HeterPS gives slots tables of different widths. Here one table holds the rows of all slots, so
    every size must be its 3 + D: for a narrower slot take the columns of the result that it needs.

    Args:
        ids: int64 (B, n_slot), one a slot. size: as many. is_distributed, is_sparse: accepted as
            HeterPS has them. anchor: as of `pull_box_sparse`.

    Returns: a list in the order of ids, as `pull_box_sparse` gives it.

    Raises: ValueError where sizes differ from each other or from the table's columns (the latter
        when the program runs), and what `pull_box_sparse` raises.

    Source of the signature: PaddleBox, pull_gpups_sparse_op.
    """
    del is_distributed, is_sparse
    if not ids or len(ids) != len(size):
        raise ValueError(
            f"pull_gpups_sparse: {len(ids)} slots and {len(size)} sizes, expected one size a slot"
        )
    for slot, columns in enumerate(size):
        if columns != size[0]:
            raise ValueError(
                f"pull_gpups_sparse: slot {slot} has size {columns}, slot 0 has {size[0]}, "
                "expected the same: one table holds both; pull its 3 + embedx_dim columns and slice"
            )
    return list(pull_box_sparse(ids, size[0], anchor=anchor))


def push_box_sparse(ids: Any, grad: Any) -> Any:
    """Applies gradients to rows of the open pass: what the backward of `pull_box_sparse` does.

    Args:
        ids: int64 (B, ...) feasigns.
        grad: float32, of the shape that `pull_box_sparse` gives for ids. Columns 0 and 1 are the
        show
            and click counts of each id; the rest is the gradient of a mean loss, scaled here by B.

    Returns: int64 (1), the ids pushed. In a static program fetch it, or the push may be pruned.
    """
    return _run("push_box_sparse", {"Ids": ids, "Grad": grad}, {}, "Count", "int64")


def continuous_value_model(rows: Any, show_click: Any, use_cvm: bool = True) -> Any:
    """CVM: the counts of rows as features, and, backwards, the counts that a push adds to them.

    Every program over `pull_box_sparse` needs it, or a `push_box_sparse` with counts of its own:
    columns 0 and 1 of the pulled rows' gradient are not derivatives but shows and clicks. Paddle's
    `paddle.static.nn.continuous_value_model` is the same operator, but builds in old IR only.

    Args:
        rows: (N, 3 + D) float32, as pulled or summed over a slot.
        show_click: (N, 2) float32, show and click of each; becomes columns 0 and 1 of the gradient.
        use_cvm: columns 0 and 1 become log(show + 1), log(click + 1) - log(show + 1); without it
            they are left out.

    Returns: float32 (N, 3 + D), or (N, 1 + D) without use_cvm.
    """
    if paddle.framework.in_dynamic_or_pir_mode():
        return paddle._C_ops.cvm(rows, show_click, use_cvm)
    return paddle.static.nn.continuous_value_model(rows, show_click, use_cvm)


def fused_pull_seqpool_cvm(
    ids: Any,
    offsets: Any,
    show_click: Any,
    plan: Any,
    anchor: Any,
    *,
    slots: int,
    embedx_dim: int,
    use_cvm: bool = True,
    table: str = "",
    dense: Any | None = None,
) -> Any:
    """Pull, sum-pool by slot, and CVM, in one kernel; its backward merges and applies the push.

    Args:
        ids: (nnz) int32 row ids of the open pass, or int64 feasigns.
        offsets: (B * S + 1) int32; slot s of instance b has the ids [offsets[b*S+s],
        offsets[b*S+s+1]). Where instances share L lists, (L + 1 + B * S): the offsets of the lists,
        then the list of each slot of each instance (see ops/row/lists.h). show_click: (B, 2)
        float32, the counts that the push adds to each id's row. plan: int32, the batch's dedup plan
        (see ops/row/plan.h), or one word for none. anchor: float parameter. slots: S.
        embedx_dim: D. use_cvm: columns 0 and 1 of a slot are log(show + 1), log(click + 1) -
        log(show + 1); without it they are left out.
        table: name of the table; empty for the only open one.
        dense: (B, W) float32 features that are written behind the slots of each instance, so that
            joining them copies no slots; they take no gradient.

            ids      7 9 | 4 |   | 7        B = 2, S = 2
            offsets  0     2   3   3   4

    Returns: float32 (B, S * width), width = 3 + D with use_cvm, else 1 + D; with dense (B, S *
        width + W).
    """
    inputs = {"Ids": ids, "Offsets": offsets, "ShowClick": show_click, "Plan": plan}
    op = "fused_pull_seqpool_cvm"
    if dense is not None:
        op, inputs["Dense"] = f"{op}_concat", dense
    attrs = {"table": table, "slots": slots, "embedx_dim": embedx_dim, "use_cvm": use_cvm}
    return _run(op, {**inputs, "W": anchor}, attrs, "Out", "float32")


def _side_rows(op: str, ids: Any, size: int, table: str) -> Any:
    if ids.dtype not in (paddle.int64, paddle.base.core.VarDesc.VarType.INT64):
        raise ValueError(f"{op}: ids have dtype {ids.dtype}, expected int64 row numbers")
    out = _run(op, {"Id": ids}, {"table": table, "size": size}, "Out", "float32")
    out.stop_gradient = True
    return out


def pull_cache_value(
    id: Any,  # noqa: A002  # PaddleBox's name for it
    size: int,
    table: str = "",
) -> Any:
    """Rows of a replica cache, by number. Without a gradient: side tables are read only.

    Args:
        id: int64 (...) row numbers.
        size: the cache's columns. table: its name; empty for the only one of the pass.

    Returns: float32 (..., size); of (N, 1) ids (N, size), as in PaddleBox.

    Raises: PassError when no such cache is open in a pass; ValueError for a wrong size or dtype, or
        an id without a row, as one of another pass may be.

    Source: PaddleBox, pull_cache_value over GpuReplicaCache.
    """
    return _side_rows("pull_cache_value", id, size, table)


def lookup_input(
    input: Any,  # noqa: A002  # PaddleBox's name for it
    size: int,
    table: str = "",
) -> Any:
    """Rows of an input table, by the row numbers that `InputTable.rows_of` made of keys.

    Arguments, result and errors as of `pull_cache_value`, but that an id without a row reads row 0,
    which is zeros, and is counted in `InputTable.misses`.

    Source: PaddleBox, lookup_input over InputTable.
    """
    return _side_rows("lookup_input", input, size, table)


def _adopt_paddles_helper() -> None:
    """Makes Paddle's own `paddle.incubate.layers._pull_box_sparse` work beyond one tensor in old
    IR.

    Paddle still ships that helper for an operator that it no longer has. It builds ours from one
    tensor in an old-IR program; a list of slots ends in "Input Ids expects only one input", and PIR
    in an error inside Paddle. Both now go to `pull_box_sparse`.
    """
    layers = paddle.incubate.layers
    stock = layers._pull_box_sparse

    @functools.wraps(stock)
    def helper(
        input: Any,  # noqa: A002  # Paddle's name for it
        size: int,
        dtype: str = "float32",
        is_distributed: bool = False,
        is_sparse: bool = False,
    ) -> Any:
        single = not isinstance(input, (list, tuple)) or len(input) == 1
        if single and not paddle.framework.in_dynamic_or_pir_mode():
            return stock(input, size, dtype, is_distributed, is_sparse)
        if dtype != "float32":
            raise ValueError(f"paddlebox.ops.pull_box_sparse gives float32 rows, not {dtype}")
        return pull_box_sparse(input, size)

    layers._pull_box_sparse = layers.nn._pull_box_sparse = helper


_adopt_paddles_helper()
