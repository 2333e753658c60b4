"""Values of fake tensors that follow from no sample and no weight: made again, with data.

mask == triu(full((s, s), -inf), 1)      ->      True or False, whatever is trained on
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from partita.errors import CaptureError
from partita.tracing.calls import AtenCall
from partita.tracing.draws import is_random
from partita.tracing.values import TooLarge, made, whole


class NeedsData(CaptureError):
    """Raised for a model that can only be built, or traced, with real data in its tensors."""


def value_of(
    asked: Tensor, calls: Sequence[AtenCall], data: Mapping[int, Tensor], changing: Collection[int]
) -> Tensor | None:
    """The value of a fake tensor that the calls, in order, made out of leaves.

    `data` has what leaves hold, and `changing` those that no two steps have alike, by their ids. None if one of these
    or chance is in it, or if it would take much to know. Raises NeedsData for a leaf of which neither is known.
    """
    makers = {id(part): call for call in calls for part in tree_leaves(call.result) if isinstance(part, Tensor)}
    needed, waiting = set[int](), [asked]
    while waiting:
        tensor = waiting.pop()
        call = makers.get(id(tensor))
        if id(tensor) in changing or (call and is_random(call.function)):
            return None
        if call is None and isinstance(tensor, FakeTensor) and id(tensor) not in data:
            raise NeedsData("the model looks at a tensor that it was built with")
        if call and id(call) not in needed:
            needed.add(id(call))
            waiting += [part for part in tree_leaves((call.arguments, call.keywords)) if isinstance(part, Tensor)]
    found: dict[int, Any] = dict(data)

    def real(part: Any) -> Any:
        return found.get(id(part), part)

    with _disable_current_modes(), torch.no_grad():
        for call in (call for call in calls if id(call) in needed):
            arguments, keywords = tree_map(real, (call.arguments, call.keywords))
            try:
                result = made(call.function, arguments, keywords, call.result)
            except TooLarge:
                return None
            found |= zip(map(id, tree_leaves(call.result)), tree_leaves(result), strict=True)
        return whole(found[id(asked)])
