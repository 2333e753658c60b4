"""Whether a step that is made again on the same batch is the same step: whether it calls the same operators with the
same numbers, and reads nothing that the step before has left but in buffers.

A trace holds what the step was once. Where the next one is another, whatever keeps what changes (a counter of the
model, of a helper of the loss, an iterator), the trace ends with a CaptureError that says so, and the model is captured
as one operator, which is the user's own module.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.jit._fuser import optimized_execution
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from partita.errors import CaptureError
from partita.task import Task
from partita.tracing.copies import fakes_cloned
from partita.tracing.hidden_inputs import exporting, seen_through
from partita.tracing.kept import kept, own_values, put_back
from partita.tracing.prepare import Rest, build_batch, checked_model, flatten, untrained

THROWS: Final = 8
T = TypeVar("T")


@dataclass
class Step:
    """What a step called: operators, each with its plain numbers; `left` are storages that one before made and it
    read, `drawn` whether it drew from a generator of its own."""

    calls: list[tuple[str, list[Any]]] = field(default_factory=list)
    left: set[int] = field(default_factory=set)
    drawn: bool = False


class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records a Step after one that made the storages `before`. Weak references keep the numbers of those `made`."""

    def __init__(self, before: Iterable[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.step, self.before, self.made = Step(), frozenset(before), dict[int, StorageWeakRef]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tree_leaves((args, kwargs))
        numbers = [leaf if leaf == leaf else "nan" for leaf in given if isinstance(leaf, int | float)]
        self.step.calls.append((str(func), numbers))
        generators = [leaf for leaf in given if isinstance(leaf, torch.Generator)]
        self.step.drawn |= any(one is not torch.default_generator for one in generators)
        read = _storages(given)
        self.step.left |= read.keys() & self.before
        result = func(*args, **(kwargs or {}))
        for number, storage in _storages(tree_leaves(result)).items():
            if number not in read and number not in self.made:
                self.made[number] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        return result


def changing(task: Task) -> str:
    """A sentence if the step changes from call to call on the same batch (and not only after the first, as one that
    fills a cache does), or if numbers that the model or the loss keeps do; else ""."""
    why = _asked(task, _again)
    return f"the step changes from call to call: {why}" if why else ""


def unsaved(task: Task) -> str:
    """A sentence if checkpoints do not hold what `changing` finds, or what another batch changes so; else ""."""
    why = _asked(task, lambda started: _again(started) or started.again(1))
    return f"checkpoints do not hold all that a step depends on, so a resumed run is another one: {why}" if why else ""


@dataclass
class Started:
    """A model, a step of it that can be made again and again, and the last one, with the storages that it made. Each
    is made on one of the batches, and starts from the buffers of the first: what changes in these is known."""

    task: Task
    model: nn.Module
    batches: list[Any]
    made: dict[int, StorageWeakRef] = field(default_factory=dict)
    last: Step = field(default_factory=Step)

    def watched(self, seed: int = 0, batch: int = 0) -> Step:
        """The next step, with Python's and NumPy's random numbers by `seed` and torch's as ever."""
        random.seed(seed)
        numpy.random.seed(seed)
        torch.default_generator.manual_seed(0)
        before = [(one, one._version, one.detach().clone()) for one in untrained(self.model).values()]
        watching = Watching(self.made)
        with watching:
            self.task.loss(self.model, self.batches[batch])
        with torch.no_grad():
            for one, version, value in before:
                if one._version != version:
                    one.copy_(value)
        self.made = watching.made
        for number in _storages(untrained(self.model).values()):
            self.made.pop(number, None)
        return watching.step

    def again(self, batch: int = 0) -> str:
        """In which way the next step is another one than the last; "" if it is the same. On another batch it may call
        what it likes."""
        one, before, places = self.last, own_values(self.task, self.model), kept(self.task, self.model)
        two = self.last = self.watched(batch=batch)
        after, tensors = own_values(self.task, self.model), kept(self.task, self.model)
        still = (key for key in after if not isinstance(tensors[key].value, torch.Tensor))
        found = next((key for key in still if before.get(key) != after[key]), None)
        found = found or next((key for key in places if _storages([places[key].value]).keys() & two.left), None)
        if found:
            who, name = found
            place = "no buffer" if who == "model" else "no buffer of the model"
            return (
                f"the {who} changes {name!r} in every step, which is {place}; keep what the next step depends on in one"
            )
        if two.left:
            return "it reads a tensor that the one before made, which is no buffer; keep it in a buffer of the model"
        if two.drawn:
            return "it draws from a torch.Generator of its own; draw from torch's own generator"
        if one.calls != two.calls and not batch:
            return "it calls other operators, or with other numbers; keep what it depends on in a buffer of the model"
        return ""


def _again(started: Started) -> str:
    """In which way a third step is another one than the second, which is another one than the first."""
    return started.again() and started.again()


def _asked(task: Task, ask: Callable[[Started], T]) -> T | None:
    """What `ask` finds of a model that made a step, None if it cannot run so: on fake tensors; on real ones if it looks
    at what is in them; as it is traced if it fails otherwise, as where a kernel's form for fake tensors takes fewer
    dtypes (torch._grouped_mm, of experts)."""
    with _undisturbed(), suppress(Exception):  # what cannot run so was traced all the same
        flat = [flatten(build_batch(task, _samples(task, i), task.precision)) for i in range(2)]
        try:
            return _asked_of(task, flat, ask, FakeTensorMode(allow_non_fake_inputs=True))
        except DataDependentOutputException:
            return _asked_of(task, flat, ask, None)
        except (
            Exception
        ):  # whatever a kernel raises that has no such form for fake tensors; asked again as it is traced
            with exporting():
                return _asked_of(task, flat, ask, FakeTensorMode(allow_non_fake_inputs=True))
    return None


def _asked_of(
    task: Task, flat: Sequence[tuple[list[torch.Tensor], Rest]], ask: Callable[[Started], T],
    mode: FakeTensorMode | None,
) -> T:  # fmt: skip
    """What `ask` finds of a model that made a step on such batches, in the precision in which it is built: fake weights
    cannot always be cast."""
    with put_back(task), mode or nullcontext(), seen_through(), fakes_cloned():
        model = checked_model(task)
        own = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
        given = [[t.to(own) if own and t.is_floating_point() else t for t in tensors] for tensors, _ in flat]
        laid = [[mode.from_tensor(tensor) if mode else tensor for tensor in tensors] for tensors in given]
        batches = [rest.batch(tensors) for (_, rest), tensors in zip(flat, laid, strict=True)]
        started = Started(task, model, batches)
        started.last = started.watched()
        return ask(started)


def _samples(task: Task, batch: int) -> list[int]:
    """The samples of a small batch: the first two, or those behind."""
    few = min(2, len(task.data))
    return [(batch * few + i) % len(task.data) for i in range(few)]


def _storages(values: Iterable[Any]) -> dict[int, torch.UntypedStorage]:
    """The memory of each dense tensor, by number."""
    dense = (value for value in values if isinstance(value, torch.Tensor) and value.layout is torch.strided)
    return {storage._cdata: storage for storage in (tensor.untyped_storage() for tensor in dense)}


def python_random_state() -> Any:
    """The states of Python's and NumPy's random generators."""
    return random.getstate(), repr(numpy.random.get_state())


def check_python_random(task: Task) -> None:
    """Raises CaptureError if the step depends on Python's or NumPy's random numbers; drawing some is allowed."""
    if follows_python_random(task):
        raise CaptureError(
            "the step follows Python's or NumPy's random numbers, once for all steps if it were traced; draw with "
            "torch, as tensors"
        )


def follows_python_random(task: Task) -> bool:
    """Whether what a step that is steady otherwise calls, and with which numbers, depends on Python's or NumPy's random
    numbers."""
    steps = _asked(task, lambda started: [started.watched(seed).calls for seed in range(THROWS)]) or []
    return any(step != steps[0] for step in steps)


@contextmanager
def unlogged() -> Iterator[None]:
    """A context in which torch prints no trace of what fails on fake tensors."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def unprofiled() -> AbstractContextManager[None]:
    """A context in which a function of TorchScript calls the operators that it says, and not, from its second call on,
    others for the shapes that it has seen."""
    optimized: Callable[[bool], AbstractContextManager[None]] = optimized_execution
    return optimized(False)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A context after which random generators are as they were before, in which failures are not printed, and
    TorchScript does not go by earlier calls."""
    before = random.getstate(), numpy.random.get_state()
    with unlogged(), unprofiled(), torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(before[0])
            numpy.random.set_state(before[1])
