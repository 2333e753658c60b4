"""Attention under a mask that is a plain triangle, told as causal attention, whose kernels skip what is hidden.

    mask = where(arange(s) <= arange(s)[:, None], 0, -inf)      attention(q, k, v, attn_mask=mask)
                                                           ->   attention(q, k, v, is_causal=True)

Models that are traced make their masks from positions alone instead of saying what they are, and a kernel that is
handed a mask has to read it and to compute every score. What such a mask holds is known: it is looked at here, for two
samples, box by box where it is large (`values`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor

from partita.graph.batch import substitute
from partita.graph.formula import kind_of
from partita.graph.graph import TANGENT, Graph
from partita.graph.operator import Argument, Operator, Ref, Symbol, reading
from partita.graph.repeats import DROPPING
from partita.tracing.boxes import Box, Value
from partita.tracing.calls import call_of
from partita.tracing.convert import tidy
from partita.tracing.values import Boxes, TooLarge, made

FLASH: Final = "aten._scaled_dot_product_flash_attention_for_cpu"
DROPPED: Final = kind_of(DROPPING)
PLACES: Final[dict[str, tuple[int | str, int]]] = {  # of the mask (or its name) and of `is_causal`
    FLASH: ("attn_mask", 4), f"{FLASH}_backward": ("attn_mask", 7), DROPPED: (3, 5), f"{DROPPED}_backward": (4, 9),
}  # fmt: skip
SAMPLES: Final = 2


def told_causal(graph: Graph) -> Graph:
    """The step in which attention that reads a mask which hides all later places, or nothing, has no mask, and
    `is_causal` says which."""
    asked = [o for o in graph.operators if _mask_of(o)]
    if not asked:
        return graph
    values = _Values(substitute(graph, SAMPLES if graph.symbolic else graph.batch))
    operators = tuple(_told(operator, values) for operator in graph.operators)
    return graph if operators == graph.operators else tidy(replace(graph, operators=operators))


def _mask_of(operator: Operator) -> Ref | None:
    place, _ = PLACES.get(kind_of(operator.target), ("", 0))
    mask = dict(operator.keywords).get(place) if isinstance(place, str) else operator.arguments[place]
    return mask if isinstance(mask, Ref) else None


def _told(operator: Operator, values: _Values) -> Operator:
    mask = _mask_of(operator)
    hidden = values.hidden(mask) if mask else ""
    if not hidden:
        return operator
    place, causal = PLACES[kind_of(operator.target)]
    arguments = [*operator.arguments, *(0.0,) * (causal - len(operator.arguments))]  # dropout's probability, left out
    arguments[causal : causal + 1] = [hidden == "later"]
    if isinstance(place, int):
        arguments[place] = None
    keywords = tuple(pair for pair in operator.keywords if pair[0] != place)
    return replace(operator, arguments=tuple(arguments), keywords=keywords)


@dataclass
class _Values:
    """What a step of known sizes makes of positions alone. `found` has what masks hide, by how they are made: layers
    may each make their own. `numbers` tells values apart by that."""

    graph: Graph
    found: dict[tuple[int, int], str] = field(default_factory=dict)
    numbers: dict[object, int] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    made: dict[int, Any] = field(default_factory=dict)

    def hidden(self, ref: Ref) -> str:
        """What a mask hides: 'later' places, 'nothing', or "" where it is another, or not known."""
        if not self._known(ref):
            return ""
        alike = self._number(ref), ref.index
        if alike not in self.found:
            self.found[alike] = self._hidden(ref)
        return self.found[alike]

    def _number(self, ref: Ref) -> int:
        """A number that values which are made alike have in common."""
        if ref.name not in self.told:
            place = self.graph.index.get(ref.name, -1)
            key: object = ref.name
            if place >= 0:
                operator = reading(self.graph.operators[place], lambda one: Ref(str(self._number(one)), one.index))
                key = operator.target, operator.arguments, operator.keywords
            self.told[ref.name] = self.numbers.setdefault(key, len(self.numbers))
        return self.told[ref.name]

    def _hidden(self, ref: Ref) -> str:
        if len(self.graph.tensor(ref).shape) < 2:
            return ""
        try:
            return hidden(self._value(ref))
        except TooLarge:
            return ""

    def _known(self, ref: Ref) -> bool:
        """Whether a value comes from numbers alone: no sample, weight or buffer, and nothing drawn."""
        graph, waiting, done = self.graph, [ref], set[str]()
        constants = {c.name for c in graph.constants} - {TANGENT}
        while waiting:
            name = waiting.pop().name
            if name in done or name in constants:
                continue
            done.add(name)
            if name not in graph.index or not graph.operators[graph.index[name]].target.startswith("aten."):
                return False
            waiting += graph.operators[graph.index[name]].reads()
        return True

    def _value(self, ref: Ref) -> Value:
        number = self._number(ref)
        if number not in self.made:
            self.made[number] = self._made(ref.name)
        value = self.made[number]
        return value if ref.index < 0 else value[ref.index]  # type: ignore[no-any-return]

    def _made(self, name: str) -> Any:
        for constant in self.graph.constants:
            if constant.name == name:
                flat = torch.frombuffer(bytearray(constant.data), dtype=getattr(torch, constant.tensor.dtype))
                return flat.reshape(constant.tensor.shape_at())
        operator = self.graph.operators[self.graph.index[name]]
        like = [torch.empty(t.shape_at(), dtype=getattr(torch, t.dtype), device="meta") for t in operator.outputs if t]
        told = {name: self._given(value) for name, value in operator.keywords}
        arguments = [self._given(argument) for argument in operator.arguments]
        return made(call_of(operator.target), arguments, told, None if operator.several else like[0])

    def _given(self, argument: Argument) -> Any:
        if isinstance(argument, Ref):
            return self._value(argument)
        if isinstance(argument, tuple):
            return [self._given(part) for part in argument]
        if isinstance(argument, Symbol):
            return torch.device("cpu") if argument.kind == "device" else getattr(torch, argument.value)
        return argument


def hidden(mask: Value) -> str:
    """What a mask of [..., queries, keys] hides: 'later' places, 'nothing', or "" where it is another.

    Raises TooLarge.
    """
    possible = ["nothing", "later"] if mask.shape[-1] == mask.shape[-2] else ["nothing"]
    boxes = Boxes(mask)
    for box, low, high in boxes:
        surely_seen, surely_gone, seen, gone = _shown(low, high)
        undecided = False
        for name in tuple(possible):
            asked = _earlier(box, every=low is high) if name == "later" else torch.tensor(True)
            if not bool(torch.where(asked, seen, gone).all()):
                possible.remove(name)
            elif not bool(torch.where(asked, surely_seen, surely_gone).all()):
                undecided = True
        if not possible:
            break
        if undecided:
            boxes.split(box)
    return possible[0] if possible else ""


def _shown(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Whether a mask within these bounds surely shows what it masks, surely hides it, may show it, may hide it."""
    if low.dtype is torch.bool:
        return low, ~high, high, ~low
    least = torch.finfo(low.dtype).min
    return (low == 0) & (high == 0), high <= least, (low <= 0) & (high >= 0), low <= least


def _earlier(box: Box, *, every: bool) -> Tensor:
    """Whether a key's place is the query's or an earlier one: for `every` place of a box, or what occurs in it."""
    (first, last), (left, right) = box[-2:]
    if every:
        return torch.arange(first, last)[:, None] >= torch.arange(left, right)
    return torch.tensor([True] * (left < last) + [False] * (right - 1 > first))
