"""Every ATen call of a step that runs on fake tensors, in order, with who made it and for whom."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType
from typing import Any, Final

import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import _disable_current_modes

from partita.errors import CaptureError
from partita.tracing.calls import AtenCall
from partita.tracing.conditions import ASSERT, Answer, Conditions
from partita.tracing.known import value_of

ATTENTION: Final = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
EQUAL: Final = torch.ops.aten.equal.default
SCALAR: Final = torch.ops.aten._local_scalar_dense.default
OUTSIDE = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")


class ModuleStack:
    """Which module of a model is running: a stack kept around the calls of modules, those that raise too (of hooks,
    what is traced as exported runs none behind an exception)."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}
        self.stack: list[str] = [""]
        self.plain: Any = nn.Module.__call__

    def __enter__(self) -> ModuleStack:
        nn.Module.__call__ = lambda module, *args, **kwargs: self._called(module, *args, **kwargs)  # type: ignore
        return self

    def _called(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self.stack.append(self.names.get(id(module), self.stack[-1]))
        try:
            return self.plain(module, *args, **kwargs)
        finally:
            self.stack.pop()

    def __exit__(self, *_: object) -> None:
        nn.Module.__call__ = self.plain  # type: ignore[method-assign]


class Recorder(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Fake tensors that keep a record of every call that makes one; functionalisation runs above, so none mutates.

    `looked` says that the value of a tensor was asked for, which is known of what was made from plain numbers: of
    single numbers as they go, of all else (a mask that is compared with a triangle, say) by making it again, and of
    `conditions` that stand for what is raised otherwise, which are asserted. `data` is what leaves hold and `changing`
    the leaves that no two steps have alike, by their ids. Raises CaptureError for a call that changes a tensor in place
    all the same.
    """

    def __init__(self, conditions: Conditions | None = None) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.conditions = conditions or Conditions()
        self.places: ModuleStack | None = None
        self.calls: list[AtenCall] = []
        self.data: dict[int, torch.Tensor] = {}
        self.changing: set[int] = set()
        self.outside: dict[CodeType, bool] = {}
        self.backward = False
        self.within = False
        self.looked = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.looked = self.looked or func in (SCALAR, EQUAL)
        if self.within or self.places is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        self.within, answer = True, None
        try:
            result = _as_run(func, args, super().__torch_dispatch__(func, types, args, kwargs))
        except DataDependentOutputException:
            known = self._known(func, args)
            answer = self.conditions.answer(args[0]) if func is SCALAR and known is None else None
            if known is not None:
                result = known
            elif answer is not None:
                result = answer.holds
            else:
                raise
        finally:
            self.within = False
        if answer and answer.otherwise:
            self._assert(args[0], answer)
        if _has_tensor(result) or func is ASSERT:
            self._keep(self.places, func, args, kwargs, result)
        return result

    def _known(self, func: Any, args: Any) -> Any:
        """What is asked of tensors whose values are known: a number, or whether two are equal; None elsewhere."""
        if func not in (SCALAR, EQUAL):
            return None
        found = (value_of(tensor, self.calls, self.data, self.changing) for tensor in args)
        values = [value for value in found if value is not None]
        if len(values) < len(args):
            return None
        with _disable_current_modes():
            return values[0].item() if func is SCALAR else torch.equal(*values)

    def _assert(self, condition: torch.Tensor, answer: Answer) -> None:
        """Have the step fail where a condition is not as it is taken."""
        if not answer.holds:
            condition = self.__torch_dispatch__(torch.ops.aten.logical_not.default, (), (condition,))
        self.__torch_dispatch__(ASSERT, (), (condition, f"{answer.otherwise}, at {self._source()}"))

    def _keep(self, places: ModuleStack, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if func._schema.is_mutable:
            raise CaptureError(f"{func} changes a tensor in place where no functional form is known")
        if self.backward:
            node = torch._C._current_autograd_node()
            sequence, module, source = (node._sequence_nr() if node is not None else -1), "", ""
        else:
            sequence, module, source = _get_sequence_nr() - 1, places.stack[-1], self._source()
        self.calls.append(AtenCall(func, args, kwargs, result, self.backward, sequence, module, source))

    def _source(self) -> str:
        """`file:line` of the innermost frame outside torch and this room."""
        frame: Any = sys._getframe(3)
        while frame is not None:
            code = frame.f_code
            known = self.outside.get(code)
            if known is None:
                known = self.outside[code] = not code.co_filename.startswith(OUTSIDE)
            if known:
                return f"{_short(code.co_filename)}:{frame.f_lineno}"
            frame = frame.f_back
        return ""


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The fake tensor that a functional tensor stands for now."""
    return tensor.from_functional() if isinstance(tensor, FunctionalTensor) else tensor


def _as_run(func: Any, args: Any, result: Any) -> Any:
    """The results in the dtypes of the kernel: by torch 2.11 what attention on a processor leaves for backward is fp32,
    also beside fp64."""
    if func is ATTENTION and args[0].dtype is torch.float64:
        return result[0], result[1].double()
    return result


def _short(path: str) -> str:
    """A path from the package directory on, or from the working directory where it lies below that."""
    _, found, tail = path.rpartition("site-packages/")
    return tail if found else path.removeprefix(f"{Path.cwd()}/")


def _has_tensor(result: Any) -> bool:
    if isinstance(result, list | tuple):
        return any(isinstance(part, torch.Tensor) for part in result)
    return isinstance(result, torch.Tensor)
