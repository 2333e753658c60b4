"""Attention under a mask that is a plain triangle, told as causal attention, whose kernels skip what is hidden.

    mask = where(arange(s) <= arange(s)[:, None], 0, -inf)      attention(q, k, v, attn_mask=mask)
                                                           ->   attention(q, k, v, is_causal=True)

Models that are traced make their masks from positions alone instead of saying what they are, and a kernel that is
handed a mask has to read it and to compute every score. What such a mask holds is known: it is computed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor

from partita.graph.formula import kind_of
from partita.graph.graph import Constant
from partita.graph.operator import Argument, Operator, Ref, Symbol

FORWARD: Final = "aten._scaled_dot_product_flash_attention_for_cpu"
PLACES: Final = {FORWARD: 3, f"{FORWARD}_backward": 6}  # of the probability of dropout, behind which `is_causal` stands
MASK: Final = "attn_mask"
LARGEST: Final = 2**28  # elements of a mask that is looked at
POSITIONS: Final = frozenset(
    f"aten.{name}"
    for name in (
        "arange", "full", "ones", "zeros", "scalar_tensor", "unsqueeze", "expand", "add", "sub", "rsub", "mul", "neg",
        "abs", "le", "lt", "ge", "gt", "eq", "ne", "minimum", "maximum", "bitwise_and", "bitwise_or", "bitwise_not",
        "bitwise_xor", "logical_and", "logical_or", "logical_not", "logical_xor", "where", "masked_fill", "_to_copy",
        "zeros_like", "ones_like", "full_like", "clone", "tril", "triu",
    )
)  # fmt: skip


def told_causal(operators: Iterable[Operator], constants: Iterable[Constant]) -> list[Operator]:
    """The operators of a step of known sizes; of attention that reads a mask which hides all later places, or nothing,
    the mask is taken away, and `is_causal` says which."""
    every = list(operators)
    values = _Values({o.name: o for o in every}, {c.name: c for c in constants})
    return [_told(operator, values) for operator in every]


def _told(operator: Operator, values: _Values) -> Operator:
    place, mask = PLACES.get(kind_of(operator.target), 0), dict(operator.keywords).get(MASK)
    hidden = values.hidden(mask) if place and isinstance(mask, Ref) else ""
    if not hidden:
        return operator
    known = operator.arguments[: place + 1]
    arguments = (*known, *(0.0,) * (place + 1 - len(known)), hidden == "later")
    return replace(operator, arguments=arguments, keywords=tuple(k for k in operator.keywords if k[0] != MASK))


@dataclass
class _Values:
    """What operators make that read positions alone; `found` has what masks hide that were already asked for. A
    dimension that a value only repeats over is left out: what follows would repeat it."""

    made: Mapping[str, Operator]
    constants: Mapping[str, Constant]
    found: dict[str, str] = field(default_factory=dict)

    def hidden(self, ref: Ref) -> str:
        """What a mask hides: 'later' places, 'nothing', or "" where it is another, or not known."""
        if ref.name not in self.found:
            self.found[ref.name] = self._hidden(ref)
        return self.found[ref.name]

    def _hidden(self, ref: Ref) -> str:
        operator = self.made.get(ref.name)
        made = operator.outputs[0] if operator else None
        if made is None or len(made.shape) < 2 or not self._plain(ref):
            return ""
        sides = made.at(1).shape[-2:]
        rows, columns = (side for side in sides if isinstance(side, int))
        if rows * columns > LARGEST:
            return ""
        value = self._value(ref)
        if value.numel() > rows * columns:
            return ""
        seen = value if value.dtype is torch.bool else value == 0
        if bool(seen.all()):
            return "nothing"
        if rows != columns or value.shape[-2:] != (rows, columns):
            return ""
        gone = ~seen if value.dtype is torch.bool else value <= torch.finfo(value.dtype).min
        below = torch.ones(rows, columns, dtype=torch.bool).tril()
        return "later" if bool(torch.where(below, seen, gone).all()) else ""

    def _plain(self, ref: Ref) -> bool:
        """Whether a value comes from positions and numbers alone, by operators each of whose elements is of one place
        of what it reads."""
        waiting, seen = [ref], set[str]()
        while waiting:
            one = waiting.pop()
            if one.name in seen or one.name in self.constants:
                continue
            seen.add(one.name)
            operator = self.made.get(one.name)
            if operator is None or operator.several or kind_of(operator.target) not in POSITIONS:
                return False
            waiting += operator.reads()
        return True

    def _value(self, ref: Ref) -> Tensor:
        if ref.name in self.constants:
            constant = self.constants[ref.name]
            flat = torch.frombuffer(bytearray(constant.data), dtype=getattr(torch, constant.tensor.dtype))
            return flat.reshape(constant.tensor.at(1).shape)  # type: ignore[arg-type]
        operator = self.made[ref.name]
        if kind_of(operator.target) == "aten.expand":
            return self._value(next(operator.reads()))
        function: Any = torch.ops
        for part in operator.target.split("."):
            function = getattr(function, part)
        arguments = [self._argument(argument) for argument in operator.arguments]
        keywords = {name: self._argument(value) for name, value in operator.keywords}
        result: Tensor = function(*arguments, **keywords)
        return result

    def _argument(self, argument: Argument) -> Any:
        if isinstance(argument, Ref):
            return self._value(argument)
        if isinstance(argument, tuple):
            return [self._argument(part) for part in argument]
        if isinstance(argument, Symbol):
            return torch.device("cpu") if argument.kind == "device" else getattr(torch, argument.value)
        return argument
