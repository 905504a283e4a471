"""CPU versions of PaddleBox's fused_seqpool_cvm and its variants: pooling of jagged rows with CVM.

`paddlebox.ops` exports them. docs/operators.md has the formulas, and the differences from PaddleBox
with their reasons.

Letters: B = instances, S = slots, D = columns of a row, nnz = rows in the batch, W = features of a
slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paddlebox import _native
from paddlebox._call import call

paddle = _native.paddle

Jagged = tuple[Any, Any]


def fused_seqpool_cvm(
    input: Jagged | Sequence[Jagged],  # noqa: A002  # PaddleBox's name for it
    pool_type: str,
    cvm: Any,
    pad_value: float = 0.0,
    use_cvm: bool = True,
    need_filter: bool = False,
    embed_threshold_filter: bool = False,
    show_coeff: float = 0.2,
    clk_coeff: float = 1.0,
    threshold: float = 0.96,
    embed_threshold: float = 0.0,
    cvm_offset: int = 2,
    quant_ratio: int = 0,
    clk_filter: bool = False,
    embed_thres_size: int = 0,
    embedx_concate_size: int = 1,
    embedx_concate_filter: bool = False,
    fill_zero: bool = True,  # noqa: ARG001  # has no effect in PaddleBox either
    fix_ctr_to_click: bool = False,
    grad_mask: Any | None = None,
    *,
    slots: int | None = None,
) -> Any:
    """Sum the rows of each slot, and turn their shows and clicks into features.

    docs/operators.md explains the arguments that are not listed here.

    Args:
        input: a list with one pair (values, offsets) for each slot, values (nnz_s, D) float32 and
            offsets (B + 1) int32. Or one pair for all slots, values (nnz, D) and offsets
            (B * S + 1): slot s of instance b has the rows [offsets[b * S + s],
            offsets[b * S + s + 1]).
        pool_type: "SUM".
        cvm: (B, cvm_offset) float32, the counts that become the first columns of the gradient of
            the rows.
        grad_mask: (B) int64. An instance with 0 sends no gradient.
        slots: S, if input is one pair.

    Returns: for a list, a list of float32 (B, W), one for each slot; for one pair, (B, S * W).

    Raises: ValueError for arguments of a wrong form, shape or value.
    """
    return _seqpool(
        "show_click",
        input,
        pool_type,
        cvm,
        slots,
        grad_mask=grad_mask,
        pad_value=pad_value,
        use_cvm=use_cvm,
        cvm_offset=cvm_offset,
        drop_count=clk_filter,
        click_not_ctr=fix_ctr_to_click,
        thresholds=[threshold] if need_filter else [],
        show_coeff=show_coeff,
        click_coeff=clk_coeff,
        embed_threshold=embed_threshold if embed_threshold_filter else 0.0,
        embed_thres_size=embed_thres_size,
        quant_ratio=_quant(quant_ratio, need_filter),
        embedx_concate_size=embedx_concate_size,
        embedx_concate_filter=embedx_concate_filter,
    )


def fused_seqpool_cvm_with_diff_thres(
    input: Jagged | Sequence[Jagged],  # noqa: A002
    pool_type: str,
    cvm: Any,
    pad_value: float = 0.0,
    use_cvm: bool = True,
    need_filter: bool = False,
    show_coeff: float = 0.2,
    clk_coeff: float = 1.0,
    threshold: float = 0.96,
    cvm_offset: int = 2,
    quant_ratio: int = 0,
    clk_filter: bool = False,
    xbox_diff_thres_filter: bool = False,
    threshold_vec: Sequence[float] = (),
    *,
    slots: int | None = None,
) -> Any:
    """`fused_seqpool_cvm` with one threshold for each slot.

    With xbox_diff_thres_filter, the S values of threshold_vec replace threshold.
    """
    if need_filter and xbox_diff_thres_filter and not threshold_vec:
        raise ValueError(
            "fused_seqpool_cvm_with_diff_thres: threshold_vec is empty, expected one value per slot"
        )
    thresholds = list(threshold_vec) if xbox_diff_thres_filter else [threshold]
    return _seqpool(
        "show_click",
        input,
        pool_type,
        cvm,
        slots,
        pad_value=pad_value,
        use_cvm=use_cvm,
        cvm_offset=cvm_offset,
        drop_count=clk_filter,
        thresholds=thresholds if need_filter else [],
        show_coeff=show_coeff,
        click_coeff=clk_coeff,
        quant_ratio=_quant(quant_ratio, need_filter),
    )


def fused_seqpool_cvm_with_conv(
    input: Jagged | Sequence[Jagged],  # noqa: A002
    pool_type: str,
    cvm: Any,
    pad_value: float = 0.0,
    use_cvm: bool = True,
    need_filter: bool = False,
    show_coeff: float = 0.2,
    clk_coeff: float = 1.0,
    threshold: float = 0.96,
    show_filter: bool = False,
    cvm_offset: int = 3,
    embedx_concate_size: int = 1,
    *,
    slots: int | None = None,
) -> Any:
    """`fused_seqpool_cvm` for rows that start with show, click and conversion."""
    return _seqpool(
        "conv",
        input,
        pool_type,
        cvm,
        slots,
        pad_value=pad_value,
        use_cvm=use_cvm,
        cvm_offset=cvm_offset,
        drop_count=show_filter,
        thresholds=[threshold] if need_filter else [],
        show_coeff=show_coeff,
        click_coeff=clk_coeff,
        embedx_concate_size=embedx_concate_size,
    )


def fused_seqpool_cvm_with_credit(
    input: Jagged | Sequence[Jagged],  # noqa: A002
    pool_type: str,
    cvm: Any,
    pad_value: float = 0.0,
    use_cvm: bool = True,
    show_filter: bool = False,
    cvm_offset: int = 4,
    *,
    slots: int | None = None,
) -> Any:
    """`fused_seqpool_cvm` for rows that start with show, click, conversion and credit.

    Each of the four counts becomes its logarithm.
    """
    return _seqpool(
        "credit",
        input,
        pool_type,
        cvm,
        slots,
        pad_value=pad_value,
        use_cvm=use_cvm,
        cvm_offset=cvm_offset,
        drop_count=show_filter,
    )


def fused_seqpool_cvm_with_pcoc(
    input: Jagged | Sequence[Jagged],  # noqa: A002
    pool_type: str,
    pcoc_cvm: Any,
    pad_value: float = 0.0,
    use_cvm: bool = True,
    need_filter: bool = False,
    show_coeff: float = 0.2,
    clk_coeff: float = 1.0,
    threshold: float = 0.96,
    cvm_offset: int = 7,
    max_cvm_offset: int = 7,
    quant_ratio: int = 0,
    *,
    slots: int | None = None,
) -> Any:
    """`fused_seqpool_cvm` for rows that start with max_cvm_offset counts.

    The counts are show, click, show2, click2 and cvm_offset - 4 predicted clicks; the others are
    not used. pcoc_cvm is (B, cvm_offset) float32, and all of it becomes the gradient of the counts.
    Put the predictions into its columns from 4 on. PaddleBox reads them from a buffer of its feed.
    """
    return _seqpool(
        "pcoc",
        input,
        pool_type,
        pcoc_cvm,
        slots,
        pad_value=pad_value,
        use_cvm=use_cvm,
        cvm_offset=cvm_offset,
        max_cvm_offset=max_cvm_offset,
        thresholds=[threshold] if need_filter else [],
        show_coeff=show_coeff,
        click_coeff=clk_coeff,
        quant_ratio=_quant(quant_ratio, need_filter),
    )


def _seqpool(
    form: str,
    input: Jagged | Sequence[Jagged],  # noqa: A002
    pool_type: str,
    cvm: Any,
    slots: int | None,
    *,
    grad_mask: Any | None = None,
    **attrs: Any,
) -> Any:
    """Call the one operator of all forms: pack the slots, and add defaults for the attributes that
    a form does not have."""
    if pool_type.upper() != "SUM":
        raise ValueError(f"fused_seqpool_cvm: pool_type is {pool_type!r}, expected 'SUM'")
    inputs, attrs_of_slots = _of_slots("fused_seqpool_cvm", input, slots)
    given = {"form": form, **attrs_of_slots, **_DEFAULTS, **attrs}
    given |= {name: float(given[name]) for name, one in _DEFAULTS.items() if type(one) is float}
    given["thresholds"] = [float(value) for value in given["thresholds"]]
    mask = grad_mask if grad_mask is not None else paddle.zeros([0], "int64")
    out = call(
        "box_fused_seqpool_cvm",
        {**inputs, "Cvm": cvm, "GradMask": mask},
        given,
    )[0]
    return _by_slot(out, given)


def _of_slots(
    name: str,
    input: Jagged | Sequence[Jagged],  # noqa: A002
    slots: int | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs of an operator from one pair for all slots, or a list with a pair for each; and
    its attributes that say which."""
    packed = isinstance(input, tuple)
    if packed != (slots is not None):
        raise ValueError(
            f"{name}: expected a list with one (values, offsets) per slot and no slots, or one "
            f"pair and the number of slots; found a {type(input).__name__}, slots = {slots}"
        )
    pairs: list[Any] = [input] if packed else list(input)
    if not pairs or any(not isinstance(p, (tuple, list)) or len(p) != 2 for p in pairs):
        raise ValueError(f"{name}: expected a pair (values, offsets) for each slot")
    widths = {p[0].shape[-1] for p in pairs}
    if len(widths) != 1:
        raise ValueError(
            f"{name}: values have {sorted(widths)} columns, expected one number for all"
        )
    values, offsets = (
        column[0] if len(pairs) == 1 else paddle.concat(list(column), axis=0)
        for column in zip(*pairs, strict=True)
    )
    count = slots if slots is not None else len(pairs)
    return {"Values": values, "Offsets": offsets}, {"slots": count, "slot_major": not packed}


def _by_slot(features: Any, attrs: Mapping[str, Any]) -> Any:
    """Of features (B, S * W), a list with those of each slot (B, W), if slots were given so."""
    if not attrs["slot_major"]:
        return features
    count = attrs["slots"]
    return paddle.split(features, count, axis=1) if count > 1 else [features]


# The attributes after form, slots and slot_major, in the order of the operator's declaration.
_DEFAULTS: dict[str, Any] = {
    "use_cvm": True,
    "cvm_offset": 2,
    "max_cvm_offset": 7,
    "drop_count": False,
    "click_not_ctr": False,
    "pad_value": 0.0,
    "thresholds": [],
    "show_coeff": 0.2,
    "click_coeff": 1.0,
    "embed_threshold": 0.0,
    "embed_thres_size": 0,
    "quant_ratio": 0,
    "embedx_concate_size": 1,
    "embedx_concate_filter": False,
}


def _quant(quant_ratio: int, need_filter: bool) -> int:
    """The ratio to round by. PaddleBox's filters always round, by 128 if no ratio is given."""
    return 128 if need_filter and quant_ratio == 0 else quant_ratio
