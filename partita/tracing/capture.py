"""Capture: torch -> Graph, by the first of two ways that works: tracing the step on fake tensors, or the module as one
operator."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.distributions import Distribution

from partita.errors import CaptureError, PartitaError, TaskError, first_line
from partita.files import temporary_folder
from partita.graph.gc_pause import without_gc
from partita.graph.graph import Graph, Optimizer
from partita.graph.repeats import find_repeats
from partita.task import PRECISIONS, Task
from partita.tracing.activations import told_activations
from partita.tracing.causal import told_causal
from partita.tracing.conditions import Conditions, settled
from partita.tracing.convert import to_graph
from partita.tracing.draws import with_sample_dims
from partita.tracing.kept import put_back
from partita.tracing.known import NeedsData
from partita.tracing.momentum import with_momentum
from partita.tracing.opaque import opaque_graph
from partita.tracing.optimizer import optimizer_spec, state_of_shapes
from partita.tracing.prepare import build_batch, flatten
from partita.tracing.successive import changing, unlogged, unprofiled
from partita.tracing.trace import trace_step
from partita.tracing.unify import Unlike, unify

THEIRS = ("torch", "contextlib", "functools")  # packages whose lines say nothing to a user
PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def capture(task: Task, *, batch: int | None = None, precision: str | None = None, symbolic: bool = True) -> Graph:
    """The task's training step as a Graph for `batch` samples (task.batch_size), and any other number if `symbolic`.

    Rung 'dispatch' traces the step on fake tensors, taking no memory for the model; with `symbolic` at two batch sizes,
    out of which every shape and literal that follows the batch is solved, and where that is in doubt at a third. Rung
    'opaque' runs the module for real and sees nothing inside it; `blind` then says why. Raises TaskError for a task
    that cannot be trained, CaptureError if not even one real step works. `precision` is the task's unless given.
    """
    temporary_folder()
    batch, precision = batch or task.batch_size, precision or task.precision
    if precision not in PRECISIONS:
        raise TaskError(f"the precision {precision!r} is unknown; allowed are {', '.join(PRECISIONS)}")
    with _undisturbed(), put_back(task):
        return with_momentum(_sized(_captured(task, batch, precision, symbolic), task, precision), task)


def _captured(task: Task, batch: int, precision: str, symbolic: bool) -> Graph:
    optimizer, why = optimizer_spec(task, precision), Exception()
    if changes := changing(task):  # asked before a trace has made any step
        return _opaque(task, batch, precision, optimizer, CaptureError(changes))
    for real in (False, True):
        try:
            return _traced(task, batch, precision, optimizer, symbolic, real=real)
        except TaskError:
            raise
        except Exception as error:
            why = error
            if not isinstance(error, NeedsData):
                break
    try:
        return _opaque(task, batch, precision, optimizer, why)
    except CaptureError:
        # A model that only takes so many samples, such as groups of them, can be traced with these. Whatever the user's
        # code raises then is no news: the error that is told is that of the one real step.
        with suppress(Exception):
            return replace(
                _traced(task, batch, precision, optimizer, False, real=False),
                blind=f"it is not one step for any number of samples ({first_line(why)})",
            )
        raise


def _sized(graph: Graph, task: Task, precision: str) -> Graph:
    """The graph with what its optimizer keeps of parameters of their own shapes, where that is not as many elements."""
    rule = graph.optimizer
    if all(each == 1.0 for _, each, _ in rule.state):
        return graph
    shapes = [p.tensor.shape_at() for p in graph.trainable]
    state = state_of_shapes(task, precision, shapes) or rule.state
    return replace(graph, optimizer=replace(rule, state=state))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A context in which draws do not change the caller's random state, in which neither logs of a trace that fails nor
    warnings about copied layers are printed, in which distributions do not look at their arguments, which fake tensors
    cannot show, and TorchScript does not go by earlier calls."""
    validates = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        with unlogged(), unprofiled(), without_gc(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
            yield
    finally:
        Distribution.set_default_validate_args(validates)


def _traced(task: Task, batch: int, precision: str, optimizer: Optimizer, symbolic: bool, *, real: bool) -> Graph:
    def step(size: int, conditions: Conditions) -> tuple[Graph, dict[tuple[str, str], Any]]:
        trace = trace_step(task, size, precision, conditions, real=real)
        return to_graph(task, trace, size, optimizer), trace.left

    def at(size: int) -> Graph:
        return settled(partial(step, size))[0]

    if not symbolic:
        return _told(at(batch))
    try:
        return _told(with_sample_dims(unify(at, _sizes(task, precision), batch)))
    except Unlike as error:
        reason = f"it is not one step for any number of samples ({error})"
        if error.other_operators:
            raise CaptureError(reason) from error
        return _told(replace(at(batch), blind=reason))


def _told(graph: Graph) -> Graph:
    """The graph with what has a kernel of its own told as such, and its repeated blocks known."""
    graph = told_activations(told_causal(graph))
    return replace(graph, repeats=find_repeats(graph))


def _sizes(task: Task, precision: str) -> tuple[int, int, int]:
    """Three primes that are no dimension of the samples, so that a batch is not taken for one."""
    tensors, _ = flatten(build_batch(task, [0, 0], precision))
    taken = {size for tensor in tensors for size in tensor.shape}
    one, two, three, *_ = (prime for prime in PRIMES if prime not in taken)
    return one, two, three


def _opaque(task: Task, batch: int, precision: str, optimizer: Optimizer, error: Exception) -> Graph:
    return opaque_graph(task, batch, precision, optimizer, _because(error))


def _because(error: Exception) -> str:
    """Why there is no trace, and what to do about it where that is known."""
    match error:
        case PartitaError():
            return str(error)
        case DataDependentOutputException():
            return f"it goes by a number that samples hold{_place(error)}; let tensors decide, by torch.where or clamp"
        case DynamicOutputShapeException():
            return f"what samples hold decides the size of a tensor{_place(error)}; let a mask or torch.where choose"
    return first_line(error) + _place(error)


def _place(error: Exception) -> str:
    """Where in the user's code an error arose: " at file.py:line" of the innermost call outside torch and this room; ""
    where there is none."""
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        name = frame.f_globals.get("__name__", "")
        if name.split(".")[0] not in THEIRS and not name.startswith("partita.tracing"):
            return f" at {Path(frame.f_code.co_filename).name}:{line}"
    return ""
