"""Random cases of the layers over columns, sequences and jagged rows, with what float64 numpy makes
of them. The references are written from the formulas in docs/operators.md, one row at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox.compat import layers_sequence as layers
from tests.operators import dense_model
from tests.upstream.sequence_runs import Arrays, Case, Expected, exact

Random = np.random.Generator
Rows = list[list[np.ndarray]]  # [b][s]: the rows of a slot, (n, D)


def floats(random: Random, *shape: int) -> np.ndarray:
    return random.normal(size=shape).astype("f4")


# ---- Columns


def fused_concat(random: Random) -> Case:
    matrices = _matrices(random, int(random.integers(1, 6)), int(random.integers(1, 13)))
    columns = matrices[0].shape[1]
    start = int(random.integers(-2, columns))
    first = max(start, 0)
    length = int(random.integers(-1, columns - first + 1))
    return _columns_case(
        matrices,
        [range(first, first + length if length > 0 else columns)] * len(matrices),
        lambda given: [layers.fused_concat(given, start, length)],
    )


def partial_concat(random: Random, dtype: str | None = None) -> Case:
    matrices, start, length, chosen = _partial(random, dtype)
    return _columns_case(
        matrices,
        [chosen] * len(matrices),
        lambda given: [layers.partial_concat(given, start, length)],
    )


def partial_sum(random: Random, dtype: str | None = None) -> Case:
    matrices, start, length, chosen = _partial(random, dtype)
    parts = [one[:, chosen].astype(np.float64) for one in matrices]
    total: Expected = (np.sum(parts, axis=0), np.sum(np.abs(parts), axis=0))

    def gradients(given: Arrays) -> list[Expected]:
        return [exact(_placed(given[0], chosen, one.shape)) for one in matrices]

    return Case(
        {f"x{i}": one for i, one in enumerate(matrices)},
        lambda given: [layers.partial_sum(list(given.values()), start, length)],
        [total],
        _float_names(matrices),
        gradients,
    )


def fused_seqpool_concat(random: Random) -> Case:
    slots, rows = int(random.integers(1, 6)), int(random.integers(1, 6))
    widths = random.integers(1, 9, 2)
    lists = [[floats(random, rows, int(width)) for _ in range(slots)] for width in widths]
    offsets = [int(random.integers(-1, width)) for width in widths]
    dims = [
        int(random.integers(-1, width - max(offset, 0) + 1))
        for width, offset in zip(widths, offsets, strict=True)
    ]
    offsets, dims = offsets[: random.integers(0, 3)], dims[: random.integers(0, 3)]
    chosen = []
    for i, width in enumerate(widths):
        first = max(offsets[i], 0) if i < len(offsets) else 0
        length = dims[i] if i < len(dims) else 0
        chosen.append(range(first, first + length if length > 0 else int(width)))

    def call(given: list[Any]) -> list[Any]:
        both = [given[:slots], given[slots:]]
        return layers.fused_seqpool_concat(both, offsets or None, dims or None)

    return _columns_case(
        lists[0] + lists[1], [chosen[0]] * slots + [chosen[1]] * slots, call, slots
    )


def _matrices(random: Random, count: int, columns: int, dtype: str = "f4") -> list[np.ndarray]:
    rows = int(random.integers(1, 9))
    return [(random.normal(size=(rows, columns)) * 9).astype(dtype) for _ in range(count)]


def _partial(random: Random, dtype: str | None) -> tuple[list[np.ndarray], int, int, range]:
    """Matrices, start_index, length, and the columns that these mean."""
    matrices = _matrices(
        random, int(random.integers(1, 5)), int(random.integers(1, 13)), dtype or "f4"
    )
    columns = matrices[0].shape[1]
    start = int(random.integers(-columns, columns))
    first = start % columns
    length = int(random.choice([-1, random.integers(1, columns - first + 1)]))
    return matrices, start, length, range(first, columns if length < 0 else first + length)


def _columns_case(
    matrices: list[np.ndarray],
    chosen: Sequence[range],
    call: Callable[[list[Any]], list[Any]],
    groups: int = 1,
) -> Case:
    """Output g has the chosen columns of matrix g, of matrix g + groups and so on."""
    outputs = [
        np.concatenate([matrices[i][:, chosen[i]] for i in range(g, len(matrices), groups)], axis=1)
        for g in range(groups)
    ]

    wanted = _float_names(matrices)
    if len(wanted) > 2:
        del wanted[1]  # as an input that is fed

    def gradients(given: Arrays) -> list[Expected]:
        result = []
        for i in (int(name[1:]) for name in wanted):
            before = sum(len(chosen[j]) for j in range(i % groups, i, groups))
            own = given[i % groups][:, before : before + len(chosen[i])]
            result.append(exact(_placed(own, chosen[i], matrices[i].shape)))
        return result

    return Case(
        {f"x{i}": one for i, one in enumerate(matrices)},
        lambda given: call(list(given.values())),
        [exact(out) for out in outputs],
        wanted,
        gradients,
    )


def _float_names(matrices: list[np.ndarray]) -> list[str]:
    return [f"x{i}" for i, one in enumerate(matrices) if one.dtype.kind == "f"]


def _placed(part: np.ndarray, columns: range, shape: tuple[int, ...]) -> np.ndarray:
    """Zeros, with the part in its columns."""
    whole = np.zeros(shape)
    whole[:, columns] = part
    return whole


# ---- Sequences


def fused_seq_tensor(random: Random) -> Case:
    n, k, length, slots, dim = (int(random.integers(low, 6)) for low in (1, 1, 1, 2, 1))
    ad_slots = int(random.integers(1, slots))
    offset = int(random.choice([0, slots - ad_slots]))
    x = floats(random, n, k, slots, length, dim)
    x *= random.random((n, k, 1, length, 1)) < 0.7  # padded positions
    ad = floats(random, n, k, ad_slots, dim)
    own = np.zeros(slots, bool)
    own[offset : offset + ad_slots] = True

    def by_position(slots_of_x: np.ndarray) -> np.ndarray:
        """(N, K, s, L, E) -> (K, N, L, s, E), in float64."""
        return slots_of_x.transpose(1, 0, 3, 2, 4).astype(np.float64)

    side, session = by_position(x[:, :, ~own]), by_position(x[:, :, own])
    the_ad = np.broadcast_to(ad.transpose(1, 0, 2, 3)[:, :, None], session.shape).astype(np.float64)
    difference = (session - the_ad, np.abs(session) + np.abs(the_ad))
    product = (session * the_ad, np.abs(session * the_ad))
    din = [exact(session), exact(the_ad), difference, product]
    shapes = _seq_tensor_shapes(n, k, length, slots - ad_slots, ad_slots, dim)
    whole_mask = (x != 0).any(axis=(2, 4)).transpose(1, 0, 2).astype(np.float64)
    outputs = [
        (
            np.stack([value for value, _ in din], axis=3).reshape(shapes[0]),
            np.stack([terms for _, terms in din], axis=3).reshape(shapes[0]),
        ),
        exact(whole_mask.reshape(shapes[1])),
        exact(side.reshape(shapes[2])),
        exact(session.reshape(shapes[3])),
    ]

    def gradients(given: Arrays) -> list[Expected]:
        d_x, d_ad, d_difference, d_product = np.moveaxis(
            given[0].reshape(*session.shape[:3], 4, *session.shape[3:]), 3, 0
        )
        of_session = [d_x, d_difference, d_product * the_ad, given[2].reshape(session.shape)]
        of_ad = [d_ad, -d_difference, d_product * session]

        def of_input(own_part: np.ndarray, other_part: np.ndarray) -> np.ndarray:
            result = np.zeros(x.shape)
            result[:, :, own] = own_part.transpose(1, 0, 3, 2, 4)
            result[:, :, ~own] = other_part.transpose(1, 0, 3, 2, 4)
            return result.reshape(n, -1)

        others = given[1].reshape(side.shape)
        terms = sum(map(np.abs, of_session))
        return [
            (of_input(sum(of_session), others), of_input(terms, np.abs(others))),
            (
                sum(of_ad).sum(axis=2).transpose(1, 0, 2, 3).reshape(n, -1),
                sum(map(np.abs, of_ad)).sum(axis=2).transpose(1, 0, 2, 3).reshape(n, -1),
            ),
        ]

    return Case(
        {"x": x.reshape(n, -1), "ad": ad.reshape(n, -1)},
        lambda given: list(
            layers.fused_seq_tensor(
                [given["x"], given["ad"]], k, length, slots, ad_slots, dim, offset
            )
        ),
        outputs,
        ["x", "ad"],
        gradients,
        constant=1,
    )


def _seq_tensor_shapes(
    n: int, k: int, length: int, side: int, own: int, dim: int
) -> list[tuple[int, ...]]:
    if k == 1:
        return [(n, length, 4 * own * dim), (n, length), (n, length, side * dim),
                (n, length, own * dim)]  # fmt: skip
    rows = n * length
    return [(k, rows, 4 * own * dim), (k, n, length), (k, rows, side * dim), (k, rows, own, dim)]


def fused_causal_mask(random: Random) -> Case:
    lengths = random.integers(0, 12, random.integers(0, 8))
    dtype = str(random.choice(["int32", "int64"]))
    offsets = np.array([0, *accumulate(lengths)], dtype)
    if random.random() < 0.5:
        offsets = offsets[:, None]
    return Case(
        {"offsets": offsets},
        lambda given: [layers.fused_causal_mask(given["offsets"])],
        [exact(causal_mask(lengths))],
    )


def causal_mask(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(len(sequence))
    mine = sequence[:, None] == sequence[None, :]
    return (mine & (position[None, :] <= position[:, None])).astype(np.int64)


# ---- Jagged rows


def fused_seqpool_cvm_tradew(random: Random) -> Case:
    counts, weights = int(random.integers(2, 5)), int(random.integers(0, 4))
    trade_id = int(random.integers(-2, weights)) if weights else -1
    pad = float(random.choice([0.0, 0.5]))
    use_cvm = bool(random.integers(0, 2))
    rows = draw_rows(random, counts, weights + int(random.integers(1, 10)))
    arguments: dict[str, Any] = {
        "pad_value": pad,
        "use_cvm": use_cvm,
        "cvm_offset": counts,
        "trade_id": trade_id,
        "trade_num": weights,
    }

    def layer(given: Any, cvm: Any, **slots: Any) -> Any:
        return layers.fused_seqpool_cvm_tradew(given, "SUM", cvm, **arguments, **slots)

    def weight(row: np.ndarray) -> float:
        return float(row[counts + trade_id]) if trade_id >= 0 else 1.0

    cvm = random.integers(0, 2, (len(rows), counts)).astype("f4")
    expected = pooled(rows, counts, weights, use_cvm, pad, weight=weight)

    def gradient(
        instance: np.ndarray, own_cvm: np.ndarray, given: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        value, terms = np.zeros(instance.shape), np.zeros(instance.shape)
        features = given[counts:] if use_cvm else given
        for i, row in enumerate(instance.astype(np.float64)):
            embedding = row[counts + weights :]
            value[i, counts + weights :] = features * weight(row)
            if trade_id < 0:
                value[i, :counts] = own_cvm
                continue
            terms[i, counts + weights :] = np.abs(value[i, counts + weights :])
            value[i, counts + trade_id] = features @ embedding
            terms[i, counts + trade_id] = np.abs(features) @ np.abs(embedding)
        return value, terms

    packed = bool(random.integers(0, 2))
    return _jagged_case(rows, cvm, packed, layer, expected, gradient)


def fusion_seqpool_cvm_concat(random: Random) -> Case:
    pooling = str(random.choice(["SUM", "AVERAGE", "sqrt"]))
    rows = draw_rows(random, 2, int(random.integers(1, 12)))
    packed, use_cvm = bool(random.integers(0, 2)), bool(random.integers(0, 2))
    return fusion_case(random, rows, pooling, packed, use_cvm)


def fusion_case(
    random: Random, rows: Rows, pooling: str, packed: bool = False, use_cvm: bool = True
) -> Case:
    def layer(given: Any, cvm: Any, **slots: Any) -> Any:
        return layers.fusion_seqpool_cvm_concat(given, pooling, cvm, use_cvm, **slots)

    def factor(n: int) -> float:
        return {"SUM": 1.0, "AVERAGE": 1 / max(n, 1), "SQRT": 1 / np.sqrt(max(n, 1))}[
            pooling.upper()
        ]

    cvm = random.integers(0, 2, (len(rows), 2)).astype("f4")
    value, terms = pooled(rows, 2, 0, use_cvm, 0.0, factor=factor)

    def gradient(
        instance: np.ndarray, own_cvm: np.ndarray, given: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        row = (given[2:] if use_cvm else given) * factor(len(instance))
        own = np.concatenate([own_cvm, row])
        of_row = np.concatenate([np.zeros(2), np.abs(row)])
        shape = (len(instance), 1)
        return np.tile(own, shape), np.tile(of_row, shape)

    def concat(given: Any, cvm: Any, **slots: int) -> Any:
        out = layer(given, cvm, **slots)
        return out if packed else [out]

    return _jagged_case(rows, cvm, packed, concat, (value, terms), gradient, one_output=True)


FORMS: dict[str, Callable[..., Any]] = {
    "show_click": ops.fused_seqpool_cvm,
    "conv": ops.fused_seqpool_cvm_with_conv,
    "credit": ops.fused_seqpool_cvm_with_credit,
    "pcoc": ops.fused_seqpool_cvm_with_pcoc,
    "diff_thres": ops.fused_seqpool_cvm_with_diff_thres,
}


def fused_seqpool_cvm(random: Random, form: str | None = None) -> Case:
    """A case of fused_seqpool_cvm or of one of its relatives."""
    form = form or str(random.choice([*FORMS]))

    def one_of(*values: Any) -> Any:
        return values[int(random.integers(0, len(values)))]

    places = one_of(1, 1, 2, 3)
    filters = {
        "need_filter": one_of(False, True),
        "show_coeff": 0.25,
        "clk_coeff": 1.0,
        "threshold": one_of(0.5, 1.1),
    }
    own: dict[str, dict[str, Any]] = {
        "show_click": {
            **filters,
            "cvm_offset": one_of(2, 3),
            "quant_ratio": one_of(0, 16),
            "clk_filter": one_of(False, True),
            "embed_threshold_filter": one_of(False, True),
            "embed_threshold": 1.0,
            "embed_thres_size": one_of(0, 1, 2) if places == 1 else 0,
            "embedx_concate_size": places,
            "embedx_concate_filter": one_of(False, True),
            "fix_ctr_to_click": one_of(False, True),
        },
        "diff_thres": {
            **filters,
            "cvm_offset": 2,
            "quant_ratio": one_of(0, 16),
            "clk_filter": one_of(False, True),
            "xbox_diff_thres_filter": one_of(False, True),
            "threshold_vec": [0.3, 1.4, 0.6, 0.9],
        },
        "conv": {
            **filters,
            "cvm_offset": 3,
            "show_filter": one_of(False, True),
            "embedx_concate_size": places,
        },
        "credit": {"cvm_offset": 4, "show_filter": one_of(False, True)},
        "pcoc": {
            **filters,
            "cvm_offset": one_of(5, 7),
            "max_cvm_offset": 7,
            "quant_ratio": one_of(0, 16),
        },
    }
    c = {"pad_value": one_of(0.0, 0.5), "use_cvm": one_of(False, True), **own[form]}
    counts = c.get("max_cvm_offset", c["cvm_offset"])
    rows = draw_rows(random, counts, int(random.integers(3, 8)), whole=True)
    if "threshold_vec" in c:
        c["threshold_vec"] = c["threshold_vec"][: len(rows[0])]
    model = "show_click" if form == "diff_thres" else form
    value = dense_model.seqpool(model, rows, c)
    # The filters see the absolute values of the weights only, so they leave out the same rows.
    upper = [
        [np.concatenate([one[:, :counts], np.abs(one[:, counts:])], 1) for one in slots]
        for slots in rows
    ]
    terms = np.abs(dense_model.seqpool(model, upper, c))
    head = len(dense_model.head(model, np.ones(counts), c)) if c["use_cvm"] else 0
    blocks = terms.reshape(*terms.shape[:2], c.get("embedx_concate_size", 1), -1)
    blocks[..., :head] += 2  # as in `pooled`
    cvm = random.integers(0, 2, (len(rows), c["cvm_offset"])).astype("f4")
    # A static program declares the mask as an input like the others.
    mask = (
        random.integers(0, 2, len(rows)) if form == "show_click" and one_of(True, False) else None
    )

    def gradients(given: np.ndarray) -> list[list[Expected]]:
        made = dense_model.seqpool_gradient(model, rows, c, cvm, mask, given)
        return [[exact(one) for one in slots] for slots in made]

    def layer(given: Any, cvm: Any, grad_mask: Any = None, **slots: int) -> Any:
        masked = {} if grad_mask is None else {"grad_mask": grad_mask}
        return FORMS[form](given, "SUM", cvm, **c, **masked, **slots)

    return _jagged(rows, cvm, one_of(False, True), layer, (value, terms), gradients, mask=mask)


def draw_rows(random: Random, counts: int, others: int, whole: bool = False) -> Rows:
    """Counts of a row are in (0.1, 1), or small integers; its other columns are normal."""
    instances, slots = int(random.integers(1, 5)), int(random.integers(1, 5))
    most = int(random.choice([2, 6, 30]))
    lengths = random.integers(0, most, (instances, slots))
    return [[_rows(random, int(n), counts, others, whole) for n in of] for of in lengths]


def _rows(random: Random, n: int, counts: int, others: int, whole: bool = False) -> np.ndarray:
    front = random.integers(0, 6, (n, counts)) if whole else random.uniform(0.1, 1, (n, counts))
    return np.concatenate([front, random.normal(size=(n, others))], axis=1).astype("f4")


def pooled(
    rows: Rows,
    counts: int,
    weights: int,
    use_cvm: bool,
    pad: float,
    weight: Callable[[np.ndarray], float] = lambda _: 1.0,
    factor: Callable[[int], float] = lambda _: 1.0,
) -> Expected:
    """(B, S, W): features of the counts, and sums of the columns after counts and weights."""

    def sums(instance: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        total = np.zeros(instance.shape[1] - weights)
        for row in instance.astype(np.float64):
            total[:counts] += of(row[:counts])
            total[counts:] += of(row[counts + weights :] * weight(row))
        return total * factor(len(instance)) + pad

    def features(total: np.ndarray) -> np.ndarray:
        show, click = np.log(total[0] + 1), np.log(total[1] + 1)
        return np.array([show, click - show, *total[2:]]) if use_cvm else total[counts:]

    def terms(instance: np.ndarray) -> np.ndarray:
        absolute = sums(instance, np.abs)
        if not use_cvm:
            return absolute[counts:]
        # The 1 of log(x + 1) is a term too: x + 1 is rounded before the logarithm.
        show, click = (1 + abs(np.log(x + 1)) for x in absolute[:2])
        return np.array([show, click + show, *absolute[2:]])

    value = [[features(sums(one, lambda x: x)) for one in slots] for slots in rows]
    return np.array(value), np.array([[terms(one) for one in slots] for slots in rows])


def _jagged_case(
    rows: Rows,
    cvm: np.ndarray,
    packed: bool,
    layer: Callable[..., Any],
    expected: Expected,
    gradient: Callable[[np.ndarray, np.ndarray, np.ndarray], Expected],
    one_output: bool = False,
) -> Case:
    """gradient(rows of a slot, cvm of its instance, gradient of its features) is that of the
    rows."""

    def gradients(given: np.ndarray) -> list[list[Expected]]:
        return [
            [gradient(one, cvm[b], given[b, s]) for s, one in enumerate(slots)]
            for b, slots in enumerate(rows)
        ]

    return _jagged(rows, cvm, packed, layer, expected, gradients, one_output=one_output)


def _jagged(
    rows: Rows,
    cvm: np.ndarray,
    packed: bool,
    layer: Callable[..., Any],
    expected: Expected,
    gradients: Callable[[np.ndarray], list[list[Expected]]],
    *,
    one_output: bool = False,
    mask: np.ndarray | None = None,
) -> Case:
    """gradients(of the features, (B, S, W)) are those of rows[b][s]."""
    instances, slots = len(rows), len(rows[0])
    groups = [[one for of in rows for one in of]] if packed else list(zip(*rows, strict=True))
    inputs: dict[str, np.ndarray] = {}
    for i, group in enumerate(groups):
        inputs[f"values{i}"] = np.concatenate(group)
        inputs[f"offsets{i}"] = np.array([0, *accumulate(map(len, group))], "i4")
    inputs["cvm"] = cvm
    if mask is not None:
        inputs["mask"] = mask
    wanted = [f"values{i}" for i in range(len(groups))]
    one_output = one_output or packed

    def call(given: dict[str, Any]) -> list[Any]:
        pairs = [(given[name], given[f"offsets{i}"]) for i, name in enumerate(wanted)]
        masks = {"grad_mask": given["mask"]} if mask is not None else {}
        if packed:
            return [layer(pairs[0], given["cvm"], slots=slots, **masks)]
        return list(layer(pairs, given["cvm"], **masks))

    def cut(features: np.ndarray) -> Arrays:
        """(B, S, W) -> the layer's outputs."""
        if one_output:
            return [features.reshape(instances, -1)]
        return [features[:, s] for s in range(slots)]

    def of_inputs(given: Arrays) -> list[Expected]:
        whole = given[0] if one_output else np.stack(given, axis=1)
        made = gradients(whole.reshape(expected[0].shape))
        grouped = [[one for of in made for one in of]] if packed else zip(*made, strict=True)
        return [
            (np.concatenate([v for v, _ in group]), np.concatenate([t for _, t in group]))
            for group in grouped
        ]

    outputs = list(zip(cut(expected[0]), cut(expected[1]), strict=True))
    return Case(inputs, call, outputs, wanted, of_inputs)


LAYERS: dict[str, Callable[[Random], Case]] = {
    "fused_concat": fused_concat,
    "partial_concat": partial_concat,
    "partial_sum": partial_sum,
    "fused_seqpool_concat": fused_seqpool_concat,
    "fused_seq_tensor": fused_seq_tensor,
    "fused_causal_mask": fused_causal_mask,
    "fused_seqpool_cvm_tradew": fused_seqpool_cvm_tradew,
    "fusion_seqpool_cvm_concat": fusion_seqpool_cvm_concat,
    "fused_seqpool_cvm": fused_seqpool_cvm,
}
