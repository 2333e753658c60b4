"""Half precision in plain eager PyTorch, call by call: the rules of `graph.precision`, autograd's own casts.

A step that was rewritten by `shortened` computes what a model with short weights computes inside this mode.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from partita.graph.precision import ATTENTION, dtype_rule
from partita.tracing.fused import Fused
from partita.tracing.prepare import parted_leaves
from partita.tracing.spelling import spelt

CONVOLUTIONS = (
    torch.conv1d, torch.conv2d, torch.conv3d, torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d,
)  # fmt: skip


class Shortened(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, contractions are in `short`; norms, softmax, losses and the like in `wide`, but of BatchNorm the
    activations; all else in the widest dtype that a call reads. In-place calls keep the dtype of what they change."""

    def __init__(self, short: torch.dtype, wide: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.short, self.wide = short, wide

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rule = dtype_rule(str(func), torch._C._current_graph_task_id() != -1, spelt(self.wide))
        tensors = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        floats = [tensor for tensor in tensors if tensor.dtype in (self.short, self.wide)]
        if func._schema.is_mutable or not floats:
            return func(*args, **kwargs)
        if rule in ("follows", "channels"):
            apart = 1 if rule == "channels" else 0
            if len({t.dtype for t in floats if t.dim() > apart}) > 1:
                args, kwargs = self._all((args, kwargs), self.wide, lambda t: t.dim() > 0)
            if apart:
                args, kwargs = self._all((args, kwargs), self.wide, lambda t: t.dim() == apart)
            return func(*args, **kwargs)
        if rule == "short":
            reads = (5 if "backward" in str(func) else 3) if ATTENTION in str(func) else len(args)
            first, kwargs = self._all((args[:reads], kwargs), self.short)
            return func(*first, *args[reads:], **kwargs)
        args, kwargs = self._all((args, kwargs), self.wide)
        made = func(*args, **kwargs)
        if rule == "wide":
            return made
        several = isinstance(made, tuple | list)
        rounded = (made[0] if several else made).to(floats[0].dtype)
        return (rounded, *made[1:]) if several else rounded

    def _all(self, values: Any, dtype: torch.dtype, these: Callable[[torch.Tensor], bool] = lambda t: True) -> Any:
        """Every float of `these` in `dtype`, and every mention of the other one."""

        def one(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.dtype in (self.short, self.wide) and these(value):
                return value.to(dtype)
            return dtype if value is self.short else value

        return tree_map(one, values)


def _unlike(*given: Any) -> bool:
    return len({leaf.dtype for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)}) > 1


class WholeCalls(Fused):
    """The calls that a capture keeps whole, and those that torch would refuse, or take another way, before the other
    mode could see them: convolutions of unlike dtypes in that of the weight, bilinear layers of unlike dtypes in
    `wide`, and attention in `wide`, as it is captured (of unlike dtypes torch refuses it; by its parts, it would widen
    short ones itself)."""

    def __init__(self, wide: torch.dtype) -> None:
        super().__init__()
        self.wide = wide

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in CONVOLUTIONS and len(args) > 1:
            args = (args[0].to(args[1].dtype), *args[1:])
        if func is nn.functional.scaled_dot_product_attention or (func is torch.bilinear and _unlike(args, kwargs)):
            args, kwargs = tree_map(self._widened, (args, kwargs))
        return super().__torch_function__(func, types, args, kwargs)

    def _widened(self, value: Any) -> Any:
        return value.to(self.wide) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def shorten(model: nn.Module, short: torch.dtype, changed: Container[str] = ()) -> dict[str, torch.Tensor]:
    """The model's weights made short in place; returns their masters by name. Buffers stay as they are, and frozen
    parameters that a step has `changed`."""
    masters = {}
    for name, parameter in parted_leaves(model, changed)[0].items():
        masters[name] = parameter.detach().clone().requires_grad_(parameter.requires_grad)
        parameter.data = parameter.data.to(short)
    return masters
