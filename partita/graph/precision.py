"""A step in half precision: the same operators, most values in a short dtype (ME-11; Micikevicius et al. 2018).

parameters   short, copies of masters that the optimizer keeps wide          buffers, samples   wide
contractions in the short dtype                                              x ~w> (mm) ~~~~    ~ short, - wide
recurrent layers too, whose sums a processor without such a kernel widens    ~(lstm_layer)~
softmax inside in the wide one, results rounded                              -(softmax)-~
norms of rows of what is short, which kernels sum up in fp32                 ~(layer_norm)~
BatchNorm takes activations as they come, weights and statistics wide        ~(batch_norm)~
losses, powers, exponentials, sums of forward in the wide one                ~(log_softmax)---(nll_loss)---
what chooses, such as a router, by values before they are rounded            ~(softmax)-(topk)~
all else in the widest dtype of what it reads
backward: the gradient of a value has the value's dtype                      ~(log_softmax_backward)---

This is a model whose weights are all short (ZeRO's 2 + 2 + 12 bytes a parameter) with torch.autocast's list of what
needs the range of fp32. A cast is an operator of its own, so code, lives, memory and costs follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from partita.graph.graph import TANGENT, Graph, Parameter
from partita.graph.homes import adds
from partita.graph.operator import Operator, Phase, Ref, Symbol, reading
from partita.graph.patterns import shares_memory
from partita.graph.tensor import Tensor

FLOATS: Final = ("float64", "float32")
TF32: Final = "tf32"  # no dtype: what tensor cores round fp32 to that they multiply
CAST: Final = "aten._to_copy.default"
CONTRACTIONS: Final = frozenset((
    "mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "linear", "convolution", "convolution_backward",
))  # fmt: skip
RECURRENT: Final = frozenset(("lstm_layer", "gru_layer", "lstm_layer_backward", "gru_layer_backward"))
ATTENTION: Final = "_scaled_dot_product"
ROWS: Final = "native_layer_norm"
INSIDE: Final = frozenset((
    ROWS, "_fused_rms_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit", "_softmax",
))  # fmt: skip
WIDE: Final = frozenset((
    f"{ROWS}_backward", "_fused_rms_norm_backward", "native_group_norm_backward", "native_batch_norm_backward",
    "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data",
    "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward",
    "nll_loss2d_backward", "mse_loss", "mse_loss_backward", "smooth_l1_loss", "smooth_l1_loss_backward",
    "huber_loss", "huber_loss_backward", "binary_cross_entropy", "binary_cross_entropy_backward",
    "binary_cross_entropy_with_logits", "soft_margin_loss", "exp", "expm1", "log", "log10", "log1p", "log2", "pow",
    "reciprocal", "rsqrt", "sinh", "cosh", "tan", "acos", "asin", "erfinv", "softplus", "logsumexp", "norm",
    "view_as_complex", "view_as_real", "complex", "polar", "ctc_loss", "ctc_loss_backward",
))  # fmt: skip
WIDE_KINDS: Final = (  # which processors, or none, have no kernel for in a short dtype, and their backward
    "linalg_", "_linalg_", "_fft_", "_cdist_", "_pdist_", "avg_pool3d", "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa", "multi_margin_loss", "multilabel_margin_loss", "special_",
)  # fmt: skip
CHOICES: Final = frozenset(
    ("topk", "sort", "argmax", "argmin", "kthvalue", "max", "min")
)  # by differences that rounding hides
FORWARD_WIDE: Final = frozenset(("sum", "prod", "cumsum", "cumprod"))
CHANNELWISE: Final = frozenset((
    "native_batch_norm", "_native_batch_norm_legit_functional", "_native_batch_norm_legit",
    "native_batch_norm_backward",
))  # fmt: skip
ACCUMULATED: Final = "float32"  # in which kernels take weights and statistics of channels beside short activations


def wide_of(graph: Graph) -> str:
    """The dtype of the graph's trainable weights, float32 or float64; "" where they are of several, or short already,
    or the graph sees no operators."""
    found = {p.tensor.dtype for p in graph.trainable}
    return found.pop() if len(found) == 1 and found <= set(FLOATS) and graph.rung != "opaque" else ""


def dtype_rule(target: str, backward: bool, wide: str) -> str:
    """How an operator computes: 'short', 'wide', wide 'inside' with a rounded result, activations as they come and
    'channels' wide, or as it 'follows' from what it reads."""
    name = target.split(".")[1].removesuffix("_")
    if name in CHANNELWISE and wide == ACCUMULATED:
        return "channels"
    if name in CONTRACTIONS or name in RECURRENT or name.startswith(ATTENTION):
        return "short"
    if name in INSIDE:
        return "inside"
    wide_kind = name in WIDE or name.startswith(WIDE_KINDS)
    return "wide" if wide_kind or (name in FORWARD_WIDE and not backward) else "follows"


def shortened(graph: Graph, short: str) -> Graph:
    """The step with its weights in `short`, and casts where dtypes meet; `wide_of(graph)` must be known. In TF32 it is
    the step as it is, but for its `precision`: values stay fp32, products are what tensor cores make of them.

    Casts are called `value:dtype`, in backward `value:dtype:again` where they stand in forward as well. What torch's
    autograd does to a gradient that meets a value of another dtype is read from an operator's twin: exact but where
    one reads values of several dtypes and shapes do not tell them apart.
    """
    if short == TF32:
        return graph.once(("short", TF32, graph.global_batch), lambda: replace(graph, precision=TF32))
    return graph.once(("short", short, graph.global_batch), lambda: _Writer(graph, short, wide_of(graph)).write())


def multiplies_in_tf32(operator: Operator, graph: Graph) -> bool:
    """Whether a step in TF32 has an operator's products computed so: PyTorch's setting is of cuBLAS's alone, and
    convolutions, recurrent layers and attention, which have settings and kernels of their own, go as they do without
    it."""
    return graph.precision == TF32 and _name(operator) in CONTRACTIONS and "convolution" not in operator.target


def recurrent(operator: Operator) -> bool:
    """Whether it is a recurrent layer, which cuDNN computes in TF32 unless it is told not to, as convolutions
    (`torch.backends.cudnn.rnn.fp32_precision`)."""
    return _name(operator) in RECURRENT


@dataclass
class _Writer:
    """Lives for one call of `shortened`. `specs` are new ones, by the old names and by those of casts."""

    graph: Graph
    short: str
    wide: str
    specs: dict[Ref, Tensor] = field(default_factory=dict)
    body: list[Operator] = field(default_factory=list)
    made: dict[tuple[Ref, str, Phase], Ref] = field(default_factory=dict)
    rounded: dict[Ref, Ref] = field(default_factory=dict)
    groups: dict[Ref, str] = field(default_factory=dict)
    views: dict[object, Ref] = field(default_factory=dict)

    def write(self) -> Graph:
        graph = self.graph
        for operator in graph.operators[: graph.forward_length]:
            self._forward(operator)
        loss = self._cast(
            self.rounded.get(graph.loss, graph.loss), self.wide, graph.operators[graph.forward_length - 1]
        )
        readers, seed = _readers(graph), Ref(TANGENT)
        if loss != self.rounded.get(graph.loss, graph.loss) and graph.forward_length < len(graph.operators):
            self.rounded[seed] = self._cast(seed, self.short, graph.operators[graph.forward_length])
        wanted = {ref: name for name, ref in graph.gradients}
        parameters = tuple(self._parameter(p) for p in graph.parameters)
        for operator in graph.operators[graph.forward_length :]:
            self._backward(operator, readers, wanted)
        return replace(
            graph, operators=tuple(self.body), parameters=parameters, loss=loss, repeats=(), precision=self.short,
            weight=graph.weight and self.rounded.get(graph.weight, graph.weight),
            gradients=tuple((name, self.rounded.get(ref, ref)) for name, ref in graph.gradients),
        )  # fmt: skip

    def _parameter(self, parameter: Parameter) -> Parameter:
        return replace(parameter, tensor=self.spec(Ref(parameter.name)))

    def spec(self, ref: Ref) -> Tensor:
        if ref not in self.specs:
            tensor = self.graph.tensor(ref)
            owned = ref.name in {p.name for p in self.graph.parameters}
            self.specs[ref] = replace(tensor, dtype=self.short) if owned and tensor.dtype == self.wide else tensor
        return self.specs[ref]

    def _floats(self, operator: Operator) -> list[Ref]:
        return [ref for ref in dict.fromkeys(operator.reads()) if self.spec(ref).dtype in (self.short, self.wide)]

    def _forward(self, operator: Operator) -> None:
        read = reading(operator, lambda ref: self.rounded.get(ref, ref))
        rule, floats = dtype_rule(operator.target, False, self.wide), self._floats(read)
        before = self.spec(floats[0]).dtype if floats else self.wide
        if _name(operator) == ROWS and self._sums_inside(before):
            rule = "short"
        if read is not operator and _name(operator) in CHOICES:
            rule, read, floats = "inside", operator, self._floats(operator)
        self._emit(read, rule, floats)
        first = operator.result(0)
        if rule == "inside" and self.spec(first).dtype == self.wide != before:
            self.rounded[first] = self._cast(first, before, operator)

    def _backward(self, operator: Operator, readers: dict[Ref, set[str]], wanted: dict[Ref, str]) -> None:
        """`groups` tells which twin's derivative a value is part of; there it stays as it is made."""
        group = "" if adds(operator) else operator.twin
        read = reading(operator, partial(self._taken, group))
        if adds(operator) and {self.groups.get(ref) for ref in operator.reads()} != {operator.twin}:
            read = self._summed(read)
        rule = dtype_rule(operator.target, True, self.wide)
        if _name(operator) == f"{ROWS}_backward" and self._sums_inside(self.spec(_second(read)).dtype):
            rule = "short"
        self._emit(read, rule, self._floats(read))
        for index, tensor in enumerate(operator.outputs):
            ref = operator.result(index)
            if tensor is None or tensor.dtype != self.wide:
                continue
            self.groups[ref] = group
            others = readers.get(ref, set())
            leaves = ref in wanted or others - {group}
            goal = self.spec(Ref(wanted[ref])).dtype if ref in wanted else self._goal(ref, group, others)
            if leaves and goal and goal != self.spec(ref).dtype:
                self.rounded[ref] = self._cast(ref, goal, operator)

    def _sums_inside(self, rows: str) -> bool:
        """Whether kernels take a norm's rows of that dtype as they come, and sum them up in the wide one."""
        return rows == self.short and self.wide == ACCUMULATED

    def _taken(self, group: str, ref: Ref) -> Ref:
        """What a derivative of `group` reads for a value."""
        return ref if group and self.groups.get(ref) == group else self.rounded.get(ref, ref)

    def _summed(self, operator: Operator) -> Operator:
        """A sum of gradients of a value with all of them in its dtype, the shortest: what is wide has come through an
        addition that widened the value, and has no operator of its own there."""
        floats = self._floats(operator)
        if self.short not in {self.spec(ref).dtype for ref in floats}:
            return operator
        cast = {ref: self._cast(ref, self.short, operator) for ref in floats}
        return reading(operator, lambda ref: cast.get(ref, ref))

    def _goal(self, ref: Ref, twin: str, readers: set[str]) -> str:
        """The dtype of what a value is the gradient of: of what its twin reads, by shape where dtypes differ, and of
        these of what another of its `readers` has made, as far as this is known."""
        if twin not in self.graph.index:
            return ""
        floats = self._floats(self.graph.operators[self.graph.index[twin]])
        given = {one: self.spec(self.rounded.get(one, one)) for one in floats}
        dtypes = {spec.dtype for spec in given.values()}
        alike = {one: spec for one, spec in given.items() if spec.shape == self.spec(ref).shape}
        if len(dtypes) > 1 and alike:
            made = [spec for one, spec in alike.items() if one.name in readers]
            dtypes = {spec.dtype for spec in made or alike.values()}
        return "" if not dtypes else dtypes.pop() if len(dtypes) == 1 else self.wide

    def _emit(self, operator: Operator, rule: str, floats: list[Ref]) -> None:
        """The operator, what it reads cast as its rule says; the specs of what it makes."""
        apart = 1 if rule == "channels" else 0  # dimensions of what is wide, whatever the rest is
        large = {self.spec(ref).dtype for ref in floats if len(self.spec(ref).shape) > apart}
        goal = {"short": self.short, "wide": self.wide, "inside": self.wide}.get(rule, "")
        mixed = not goal and len(large) > 1
        cast = {
            ref: self._cast(ref, goal or self.wide, operator)
            for ref in floats
            if (goal or (mixed and self.spec(ref).shape) or len(self.spec(ref).shape) == apart > 0)
            and not self._statistic(ref)
        }
        told = any(isinstance(a, Symbol) and a.value == self.wide for a in _literals(operator))
        found = large or {self.spec(ref).dtype for ref in floats}
        dtype = goal or (self.short if found == {self.short} and not told else self.wide)
        outputs = []
        for index, tensor in enumerate(operator.outputs):
            if tensor is not None and tensor.dtype == self.wide:
                statistic = rule == "short" and index and _leaves_statistics(operator)
                tensor = replace(tensor, dtype=ACCUMULATED if statistic else self.wide if apart and index else dtype)
            if tensor is not None:
                self.specs[operator.result(index)] = tensor
            outputs.append(tensor)
        self.body.append(replace(reading(operator, lambda ref: cast.get(ref, ref)), outputs=tuple(outputs)))

    def _statistic(self, ref: Ref) -> bool:
        """What attention, or a norm, leaves for its backward is of the dtype that it accumulates in."""
        place = self.graph.index.get(ref.name, -1)
        return place >= 0 and ref.index > 0 and _leaves_statistics(self.graph.operators[place])

    def _cast(self, ref: Ref, dtype: str, near: Operator) -> Ref:
        """The value in a dtype, by an operator that stands here; what was rounded in forward is not rounded again, nor
        what is looked at in the same way."""
        ref = self._first(ref)
        spec = self.spec(ref)
        if spec.dtype == dtype:
            return ref
        phases = (Phase.FORWARD, near.phase) if dtype == self.short else (near.phase,)
        for phase in phases:
            if (ref, dtype, phase) in self.made:
                return self.made[ref, dtype, phase]
        twice = near.phase is Phase.BACKWARD and (ref, dtype, Phase.FORWARD) in self.made
        name = f"{ref.key}:{dtype}" + (":again" if twice else "")
        operator = Operator(
            name, CAST, (ref,), (("dtype", Symbol("dtype", dtype)),), (replace(spec, dtype=dtype),), phase=near.phase,
            module=near.module, source=near.source, twin=near.twin,
        )  # fmt: skip
        self.body.append(operator)
        self.specs[Ref(name)] = replace(spec, dtype=dtype)
        self.made[ref, dtype, near.phase] = Ref(name)
        return Ref(name)

    def _first(self, ref: Ref) -> Ref:
        """Of views that are alike, such as those of a layer's input for each of its projections, the first."""
        place = self.graph.index.get(ref.name, -1)
        operator = self.graph.operators[place]
        if place < 0 or operator.phase is not Phase.FORWARD or not shares_memory(operator, self.graph):
            return ref
        return self.views.setdefault((operator.target, operator.arguments, operator.keywords, ref.index), ref)


def _name(operator: Operator) -> str:
    """`aten.mm.default` -> `mm`."""
    return operator.target.split(".")[1]


def _second(operator: Operator) -> Ref:
    """The second value that an operator reads: what a norm has normalized."""
    return [*operator.reads()][1]


def _leaves_statistics(operator: Operator) -> bool:
    forward = ATTENTION in operator.target and "backward" not in operator.target
    return forward or _name(operator) == ROWS


def _literals(operator: Operator) -> Iterator[object]:
    yield from operator.arguments
    yield from (value for _, value in operator.keywords)


def _readers(graph: Graph) -> dict[Ref, set[str]]:
    """Value that backward makes -> the groups that read it ("": a sum of gradients, or one that has no twin)."""
    found: dict[Ref, set[str]] = {}
    for operator in graph.operators[graph.forward_length :]:
        group = "" if adds(operator) else operator.twin
        for ref in operator.reads():
            found.setdefault(ref, set()).add(group)
    return found
