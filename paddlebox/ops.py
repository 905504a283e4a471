"""The operators, for dygraph and static programs.

Letters: B = instances, S = sparse slots, D = embedx_dim, nnz = ids in the batch.

Operators whose backward is a push take an *anchor*, a float parameter. Autograd runs a backward
only if an input needs a gradient. The anchor needs one, and its gradient is always zero. Create the
anchor with `create_anchor`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from paddlebox import _native
from paddlebox._call import call, raising_own_errors
from paddlebox.ops_dense import batch_fc, data_norm, mlp, rank_attention
from paddlebox.ops_jagged import (
    jagged_attention,
    jagged_offsets,
    jagged_pack,
    jagged_places,
    jagged_repeat,
    jagged_softmax,
    jagged_sum,
    jagged_unpack,
)
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
    "jagged_attention",
    "jagged_offsets",
    "jagged_pack",
    "jagged_places",
    "jagged_repeat",
    "jagged_softmax",
    "jagged_sum",
    "jagged_unpack",
    "lookup_input",
    "mlp",
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
    """Create the parameter for the input `W` of the operators: float32 (1), zero.

    It stays zero, because its gradient is zero.

    Args:
        name: None generates one.

    Returns: a parameter of dygraph, or a variable of the static program that is being built.
    """
    # It needs an explicit name: in PIR, Paddle's names for unnamed parameters ignore
    # `unique_name.guard`, and an evaluation program would not find the anchor of the trained one.
    attr = paddle.ParamAttr(
        name=name or paddle.utils.unique_name.generate("box_anchor"),
        initializer=paddle.nn.initializer.Constant(0.0),
    )
    create = paddle.create_parameter if paddle.in_dynamic_mode() else paddle.static.create_parameter
    return create([1], "float32", attr=attr)


def pull_box_sparse(
    input: Any,  # noqa: A002  # PaddleBox's name for it
    size: int,
    *,
    anchor: Any | None = None,
) -> Any:
    """Read the rows of feasigns from the only open table.

    Args:
        input: int64 feasigns, whose bits are read as uint64; 0 is padding and its row is zeros.
            Either one tensor (B, ...), or a list with one tensor (B, n_slot) for each slot.
        size: 3 + n + D, the columns [show, click, n further counts (`table.counts`), embed_w,
            embedx...].
        anchor: float parameter; None creates one, which is meant for static programs.

    Returns: for one tensor float32 (..., size). As in PaddleBox, a last dimension of 1 is dropped:
        (B, 1) gives (B, size). For a list, a list in the same order, read by one call.

    Raises: PassError if no pass is open; ValueError for a wrong size, a wrong dtype, or a feasign
        that was not staged for the pass.

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
    """Call a pulling operator once for all slots. Also returns the number of ids of each slot in an
    instance."""
    if anchor is None:
        anchor = create_anchor()
    slots = list(input) if isinstance(input, (list, tuple)) else [input]
    if not slots:
        raise ValueError(f"{op}: the list of slots is empty")
    widths = []
    for position, ids in enumerate(slots):
        if ids.dtype != paddle.int64:
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
    return _call_in_order(op, {"Ids": packed, "W": anchor}, attrs), widths


def _call_in_order(op: str, inputs: dict[str, Any], attrs: dict[str, Any]) -> Any:
    """Call an operator whose place among the pulls and pushes of the program matters.

    In a static program the operator also changes a variable in place, which nothing reads. So the
    executor runs the pulls of a block one after another, and all pushes after all pulls (the
    contract of steps is in ops/table/row_access.h).
    """
    order = None if paddle.in_dynamic_mode() else _order_of_block()
    return call(op, {**inputs, "Order": order}, attrs)[0]


def _order_of_block() -> Any:
    """The variable Order of the block that is being built, which its first operator makes."""
    for op in paddle.pir.get_current_insertion_point().block().ops:
        if op.name().removeprefix("custom_op.").rstrip("_") in _IN_ORDER:
            return op.operand_source(op.num_operands() - 1)
    return paddle.full([1], 0, "int32")


_IN_ORDER = {
    "pull_box_sparse",
    "pull_box_extended_sparse",
    "push_box_sparse",
    "fused_pull_seqpool_cvm",
    "fused_pull_seqpool_cvm_concat",
}


def _parts(out: Any, widths: list[int], size: int) -> list[Any]:
    """Split the result by slot: (B, size) for a slot with one id, (B, n, size) for n ids."""
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
    """`pull_box_sparse` with a second embedding, called expand, in addition to embedx.

    Both embeddings of a row are created together. The shows and clicks to count come from the
    gradient of the first result; with expand_only=False, also from that of the second. expand
    changes only if it gets a gradient other than 0. Its rule is that of `table.embedx`.

    Args:
        input: int64 feasigns, one tensor or a list of slots, as for `pull_box_sparse`.
        size: 3 + n + D, as for `pull_box_sparse`.
        extend_size: E, the table's `expand_dim`.
        dtype: "float32".
        mask: one value for each slot. Bit 0 puts the slot into the first result, bit 1 into the
            second. Empty: every slot is in both.
        offset: 0. PaddleBox's other values drop columns of counts; slice the result instead.
        expand_only: whether the second result has only the E columns of expand. False puts the
            columns of the first result before them.
        anchor: as for `pull_box_sparse`.

    Returns: (out, extended). For one tensor a pair of tensors, of which one that the mask leaves
        out is None. For a list a pair of lists with the slots that the mask selects, in order.

    Raises: ValueError for sizes that differ from the table's (the extend_size of rows without an
        expand part is 0), a wrong mask or a wrong dtype; PassError if no pass is open, or if
        extend_size is 0.

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
    """`pull_box_sparse` for a list of slots with one size each, the form of HeterPS programs.

    HeterPS has tables of different widths for the slots. Here one table holds the rows of all
    slots, so every size must be 3 + n + D. For a narrower slot, slice the result.

    Args:
        ids: one int64 tensor (B, n_slot) for each slot.
        size: 3 + n + D for each slot.
        is_distributed, is_sparse: accepted for compatibility with HeterPS, without effect.
        anchor: as for `pull_box_sparse`.

    Returns: a list in the order of ids, as from `pull_box_sparse`.

    Raises: ValueError if the sizes differ from each other, or, when the program runs, from the
        table's 3 + n + D; also the errors of `pull_box_sparse`.

    Source of the signature: PaddleBox, pull_gpups_sparse_op.
    """
    del is_distributed, is_sparse
    if not ids or len(ids) != len(size):
        raise ValueError(
            f"pull_gpups_sparse: {len(ids)} slots and {len(size)} sizes, expected one size per slot"
        )
    for slot, columns in enumerate(size):
        if columns != size[0]:
            raise ValueError(
                f"pull_gpups_sparse: slot {slot} has size {columns}, slot 0 has {size[0]}, "
                "expected the same: one table holds both; pull its 3 + embedx_dim columns and slice"
            )
    return list(pull_box_sparse(ids, size[0], anchor=anchor))


def push_box_sparse(ids: Any, grad: Any) -> Any:
    """Apply gradients to rows of the open pass, as the backward of `pull_box_sparse` does.

    Args:
        ids: int64 (B, ...) feasigns.
        grad: float32, in the shape that `pull_box_sparse` returns for ids. The first 2 + n columns
            are the show, click and further counts of each id. The other columns are the gradient of
            a mean loss; the operator multiplies them by B.

    Returns: int64 (1), the number of ids, padding included. Fetch it in a static program, because
        Paddle may prune the push otherwise.

    Raises: PassError if no pass is open; ValueError for a wrong shape or dtype, or a feasign that
        was not staged for the pass; TrainingError for a gradient that is not finite.
    """
    return _call_in_order("push_box_sparse", {"Ids": ids, "Grad": grad}, {})


def continuous_value_model(rows: Any, show_click: Any, use_cvm: bool = True) -> Any:
    """CVM: turns the counts of rows into features, and sets the counts that the push adds.

    Columns 0 and 1 of the gradient of pulled rows are not derivatives but shows and clicks. So
    every program with `pull_box_sparse` needs this operator, or a `push_box_sparse` with counts.
    Paddle's `paddle.static.nn.continuous_value_model` is the same operator, but cannot be called in
    PIR programs.

    Args:
        rows: (N, 3 + D) float32, as pulled, or summed over a slot.
        show_click: (N, 2) float32, the show and click of each row. They become columns 0 and 1 of
            the gradient.
        use_cvm: columns 0 and 1 become log(show + 1), log(click + 1) - log(show + 1); otherwise
            they are dropped.

    Returns: float32 (N, 3 + D), or (N, 1 + D) without use_cvm.

    Raises: ValueError of Paddle if rows are not a matrix. Paddle does not check show_click.
    """
    return paddle._C_ops.cvm(rows, show_click, use_cvm)


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
    """Pull, sum-pool by slot, and CVM, in one kernel. The backward merges gradients and pushes.

    Example of ids and offsets for B = 2, S = 2:

        ids      7 9 | 4 |   | 7
        offsets  0     2   3   3   4

    Args:
        ids: (nnz) int32 row ids of the open pass, or int64 feasigns.
        offsets: (B * S + 1) int32. Slot s of instance b has the ids [offsets[b * S + s],
            offsets[b * S + s + 1]). If instances share L lists, (L + 1 + B * S) int32: the offsets
            of the lists, then the list of each slot of each instance (ops/row/lists.h).
        show_click: (B, 2 + n) float32, the counts that the push adds to the row of each id. n is
            the number of `table.counts`; a static program takes it from this shape, so declare
            2 + n, not -1. A show of -w is that of a late line of weight w: `table.show_scale`
            divides by w, too, but the row counts no show.
        plan: int32, the batch's dedup plan (ops/row/plan.h); a tensor of one word if there is none.
            It may hold factors of the ids, by which their weights are multiplied in the sum
            (docs/data.md, weighted ids and pooling).
        anchor: float parameter.
        slots: S.
        embedx_dim: D.
        use_cvm: columns 0 and 1 of a slot are log(show + 1), log(click + 1) - log(show + 1), and n
            columns of log(c + 1) - log(click + 1) for the further counts c follow; otherwise all
            counts are dropped.
        table: name of the table; empty for the only open one.
        dense: (B, W) float32 features. The kernel writes them after the slots of each instance,
            which saves a copy of the slots. They get no gradient.

    Returns: float32 (B, S * width), width = 3 + n + D with use_cvm, else 1 + D. With dense (B,
        S * width + W).

    Raises: PassError if no pass is open; ValueError for a wrong shape or dtype, or a feasign that
        was not staged for the pass.
    """
    inputs = {"Ids": ids, "Offsets": offsets, "ShowClick": show_click, "Plan": plan}
    op = "fused_pull_seqpool_cvm"
    if dense is not None:
        op, inputs["Dense"] = f"{op}_concat", dense
    attrs = {"table": table, "slots": slots, "embedx_dim": embedx_dim, "use_cvm": use_cvm}
    return _call_in_order(op, {**inputs, "W": anchor}, attrs)


def _side_rows(op: str, ids: Any, size: int, table: str) -> Any:
    if ids.dtype != paddle.int64:
        raise ValueError(f"{op}: ids have dtype {ids.dtype}, expected int64 row numbers")
    out = call(op, {"Id": ids}, {"table": table, "size": size})[0]
    out.stop_gradient = True
    return out


def pull_cache_value(
    id: Any,  # noqa: A002  # PaddleBox's name for it
    size: int,
    table: str = "",
) -> Any:
    """Read rows of a replica cache by number. Side tables are read-only: there is no gradient.

    Args:
        id: int64 (...) row numbers.
        size: number of columns of the cache.
        table: name of the cache; empty for the only one of the pass.

    Returns: float32 (..., size). As in PaddleBox, a last dimension of 1 is dropped: (N, 1) ids give
        (N, size).

    Raises: PassError if no pass with such a cache is open; ValueError for a wrong size or dtype, or
        an id without a row, such as an id from another pass.

    Source: PaddleBox, pull_cache_value over GpuReplicaCache.
    """
    return _side_rows("pull_cache_value", id, size, table)


def lookup_input(
    input: Any,  # noqa: A002  # PaddleBox's name for it
    size: int,
    table: str = "",
) -> Any:
    """Read rows of an input table by the row numbers that `InputTable.rows_of` returns for keys.

    Arguments, result and errors are those of `pull_cache_value`, except for an id without a row: it
    reads row 0, which is zeros, and `end_pass` adds it to `InputTable.misses`.

    Source: PaddleBox, lookup_input over InputTable.
    """
    return _side_rows("lookup_input", input, size, table)


def _adopt_paddles_helper() -> None:
    """Make Paddle's `paddle.incubate.layers._pull_box_sparse` call `pull_box_sparse`.

    Paddle still ships this helper, but not its operator. It fails with a list of slots ("Input Ids
    expects only one input") and in PIR, and Paddle would run the pulls and pushes that it builds in
    any order.
    """
    layers = paddle.incubate.layers

    @functools.wraps(layers._pull_box_sparse)
    def helper(
        input: Any,  # noqa: A002  # Paddle's name for it
        size: int,
        dtype: str = "float32",
        is_distributed: bool = False,
        is_sparse: bool = False,
    ) -> Any:
        del is_distributed, is_sparse
        if dtype != "float32":
            raise ValueError(f"paddlebox.ops.pull_box_sparse gives float32 rows, not {dtype}")
        rows = pull_box_sparse(input, size)
        return rows[0] if isinstance(rows, list) and len(rows) == 1 else rows

    layers._pull_box_sparse = layers.nn._pull_box_sparse = helper


_adopt_paddles_helper()
