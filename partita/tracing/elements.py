"""Whether what is computed meanwhile mixes the elements of tensors, by the operators that are called.

    with Watched() as seen:          g.mul_(0.9).add_(w)    element by element
        optimizer.step()             g / g.norm()           mixed: the norm reads all elements of g
    seen.mixed -> {"aten::linalg_vector_norm"}

Unlike trials on numbers this sees a norm that bounds nothing yet and statistics that are used later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COPIES: Final = {
    "copy", "clone", "zero", "fill", "_to_copy", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros",
    "new_ones", "new_full", "new_empty", "new_empty_strided", "detach", "lift_fresh_copy", "_unsafe_view",
}  # fmt: skip
MANY: Final = "_foreach_"
FUSED: Final = {"_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad"}


class Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects in `mixed` the operators that read tensors of several elements and are not known to treat each of them
    by itself."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mixed: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(leaf.numel() > 1 for leaf in given) and not (by_element(func) or _masked(func, given)):
            self.mixed.add(func._schema.name)
        return func(*args, **(kwargs or {}))


def _masked(operator: Any, given: Sequence[torch.Tensor]) -> bool:
    """Whether it is `x[mask] = number`."""
    if operator._schema.name != "aten::index_put_" or len(given) != 3:
        return False
    x, mask, value = given
    return mask.dtype is torch.bool and mask.shape == x.shape and value.numel() == 1


def by_element(operator: Any) -> bool:
    """Whether an operator of torch is known to treat each element by itself, or to hand elements on as they are."""
    space, _, name = operator._schema.name.partition("::")
    name = name.removesuffix("_")
    if torch.Tag.pointwise in operator.tags or operator.is_view or space == "profiler":
        return True
    if space != "aten":
        return False
    if name.startswith(MANY):
        name = name.removeprefix(MANY)
        return name in COPIES or any(_pointwise(torch.ops.aten, name + end) for end in ("", "_"))
    return name in COPIES or name in FUSED


def _pointwise(space: Any, name: str) -> bool:
    packet: Callable[..., Any] | None = getattr(space, name, None)
    return packet is not None and any(
        torch.Tag.pointwise in getattr(packet, overload).tags
        for overload in packet.overloads()  # type: ignore[attr-defined]
    )
