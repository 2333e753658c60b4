"""The pattern of each kind of operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from partita.graph import patterns_contractions as contractions
from partita.graph import patterns_lookups as lookups
from partita.graph import patterns_norms as norms
from partita.graph import patterns_pointwise as points
from partita.graph import patterns_views as views
from partita.graph.formula import Call, kind_of
from partita.graph.graph import Graph
from partita.graph.operator import Operator
from partita.graph.pattern import Pattern

Maker: TypeAlias = Callable[[Call], Pattern | None]
ATTENTIONS: Final = tuple(
    f"{room}._scaled_dot_product_{kind}_attention{on}"
    for room, kind, on in (
        ("aten", "flash", ""),
        ("aten", "flash", "_for_cpu"),
        ("aten", "efficient", ""),
        ("aten", "cudnn", ""),
        ("aten", "fused", "_overrideable"),
        ("partita", "dropout", ""),
    )
)
LOSSES: Final = ("mse_loss", "huber_loss", "smooth_l1_loss", "binary_cross_entropy")

CONTRACTIONS: Final[dict[str, Maker]] = {
    "aten.mm": contractions.product, "aten.bmm": contractions.product,
    "aten.addmm": contractions.product_and_sum, "aten.baddbmm": contractions.product_and_sum,
    "aten.convolution": contractions.convolution, "aten.convolution_backward": contractions.convolution_backward,
    "transformers.grouped_mm_fallback": contractions.grouped_product,
    "transformers.grouped_mm_fallback_backward": contractions.grouped_product_backward,
    "aten._grouped_mm": contractions.grouped_product,
    **{f"partita.{kind}_layer{way}": contractions.recurrence for kind in ("lstm", "gru") for way in ("", "_backward")},
    **dict.fromkeys(ATTENTIONS, contractions.attention),
    **{f"{kind}_backward": contractions.attention_backward for kind in ATTENTIONS},
}  # fmt: skip
NORMS: Final[dict[str, Maker]] = {
    "aten.native_layer_norm": norms.layer_norm, "aten.native_layer_norm_backward": norms.layer_norm_backward,
    "aten._fused_rms_norm": norms.layer_norm, "aten._fused_rms_norm_backward": norms.layer_norm_backward,
    "aten.native_batch_norm": norms.batch_norm, "aten.native_batch_norm_backward": norms.batch_norm_backward,
    "aten._native_batch_norm_legit": norms.batch_norm, "aten._native_batch_norm_legit_functional": norms.batch_norm,
    "aten._native_batch_norm_legit_no_training": norms.batch_norm, "aten.cudnn_batch_norm": norms.batch_norm,
    "aten._batch_norm_with_update_functional": norms.batch_norm,
    "aten.native_group_norm": norms.group_norm, "aten.native_group_norm_backward": norms.group_norm_backward,
    "aten._softmax": norms.softmax, "aten._log_softmax": norms.softmax, "aten._safe_softmax": norms.softmax,
    "aten._softmax_backward_data": norms.softmax_backward, "aten._log_softmax_backward_data": norms.softmax_backward,
    **dict.fromkeys((*norms.MONOIDS, *norms.WHOLE), norms.reduction),
}  # fmt: skip
VIEWS: Final[dict[str, Maker]] = {
    **dict.fromkeys(views.RESHAPES, views.reshape),
    **dict.fromkeys(("aten.t", "aten.transpose", "aten.permute"), views.permuted),
    **dict.fromkeys(("aten.unsqueeze", "aten.squeeze"), views.unsqueezed),
    **dict.fromkeys((*views.SPLITS, "aten.slice", "aten.select"), views.chosen),
    **dict.fromkeys(("aten.slice_backward", "aten.select_backward"), views.put_back),
    **dict.fromkeys(("aten.cat", "aten.stack"), views.joined),
    **dict.fromkeys(views.MOVED, views.moved),
    "aten.expand": views.expanded,
}
LOOKUPS: Final[dict[str, Maker]] = {
    "aten.embedding": lookups.embedding, "aten.embedding_dense_backward": lookups.embedding_backward,
    "aten.index": lookups.index, "aten.index_put": lookups.index_put,
    **dict.fromkeys(("aten.gather", "aten.scatter", "aten.scatter_add"), lookups.gather),
    **dict.fromkeys(("aten.nll_loss_forward", "aten.nll_loss2d_forward"), lookups.likelihood),
    **dict.fromkeys(("aten.nll_loss_backward", "aten.nll_loss2d_backward"), lookups.likelihood_backward),
    **{f"aten.{loss}{way}": lookups.difference for loss in LOSSES for way in ("", "_backward")},
    **{f"aten.{kind}_pool2d{way}": lookups.pooling for kind in ("avg", "max") for way in ("", "_backward")},
    "aten.max_pool2d_with_indices": lookups.pooling, "aten.max_pool2d_with_indices_backward": lookups.pooling,
    **{f"aten.{kind}{way}": lookups.resized for way in ("", "_backward")
       for kind in ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "upsample_nearest2d", "upsample_bilinear2d",
                    "upsample_bicubic2d")},
}  # fmt: skip
POINTS: Final[dict[str, Maker]] = {
    **dict.fromkeys(points.POINTWISE, points.pointwise),
    **dict.fromkeys(points.SIZED, points.filled),
    **dict.fromkeys(
        ("aten._assert_async", "aten._assert_tensor_metadata", "aten._assert_scalar"), points.assertion
    ),
}  # fmt: skip
PATTERNS: Final[dict[str, Maker]] = POINTS | VIEWS | LOOKUPS | NORMS | CONTRACTIONS


def pattern_of(operator: Operator, graph: Graph) -> Pattern | None:
    """The pattern of an operator of `graph`; None where its kind has none, so that only samples divide or nothing."""
    call = Call(operator, graph)
    make = PATTERNS.get(call.kind)
    return make(call) if make else None


def shares_memory(operator: Operator, graph: Graph) -> bool:
    """Whether the operator only looks at its first input's memory in another way."""
    kind = kind_of(operator.target)
    return kind in views.SAME_MEMORY or (kind in views.MAYBE_SAME and views.is_alias(Call(operator, graph)))


def views_of(graph: Graph, leaf: str) -> frozenset[str]:
    """A leaf's name and those of the operators that only look at its memory, or at one of these."""
    found = {leaf}
    for operator in graph.operators:
        first = next(operator.reads(), None)
        if first is not None and first.name in found and shares_memory(operator, graph):
            found.add(operator.name)
    return frozenset(found)
