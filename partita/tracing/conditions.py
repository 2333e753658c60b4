"""Conditions on what samples hold that a trace can take one side of.

    if labels.max() >= classes: raise ValueError("...")     ->      _assert_async(not (labels.max() >= classes), "...")
    if bad.any(): warnings.warn("...")                      ->      nothing: both sides are the same step
    if mask.any(): x = self.masked(x)                       ->      no step for all samples

Which side raises is found by going there: the step is traced up to the condition with either answer. What is raised
must be raised by a statement that says so, since what fails on fake tensors may work on others. Where neither raises
the condition is taken not to hold, until the whole step is traced: with the other side of each, and of all at once, it
must be the same graph, and leave the same numbers in the model and the loss. What such a side prints is not heard.
"""

from __future__ import annotations

import dis
import logging
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, TypeAlias, TypeVar

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from partita.errors import PartitaError, first_line
from partita.tracing.known import NeedsData

ASSERT: Final = torch.ops.aten._assert_async.msg
MOST: Final = 64  # conditions that are looked at, each in two traces up to it, and times that a side of it is tried
HERE: Final = str(Path(__file__).parent)
# What computes on fake tensors: what it raises may be of these alone.
FAKING: Final = tuple(
    str(Path(torch.__file__).parent / name)
    for name in ("_subclasses", "_refs", "_prims", "_decomp", "_meta_registrations.py")
)
FAKED: Final = re.compile(r"\w*Tensor\(.*\)")  # in messages, where a tensor was to be shown
T = TypeVar("T")
Position: TypeAlias = tuple[int | None, ...]  # of what is written: those of instructions move as they are optimised
Place: TypeAlias = tuple[tuple[CodeType, Position], ...]  # of a question: all calls that led to it, inner ones first


@dataclass(frozen=True)
class Answer:
    """How a condition is taken, and what is raised where it is otherwise."""

    holds: bool | int
    otherwise: str = ""


@dataclass
class Conditions:
    """What a trace answers: `known` at some places, False at those that are `assumed` to make no difference, and a side
    of its own at those `tried`. `asked` is the first place without an answer; `trying` says that a tried side was
    taken, where numbers are 0, for messages show some: then one is `shown`. `root` is the call that traces, while it
    does."""

    known: Mapping[Place, Answer] = field(default_factory=dict)
    assumed: Collection[Place] = ()
    tried: Mapping[Place, bool] = field(default_factory=dict)
    asked: Place | None = None
    trying: bool = False
    shown: bool = False
    times: Counter[Place] = field(default_factory=Counter)
    root: FrameType | None = None

    def traced(self, step: Callable[[], T]) -> T:
        """What `step` gives, in which places are told from here on."""
        self.root = sys._getframe()
        try:
            return step()
        finally:
            self.root = None

    def answer(self, tensor: torch.Tensor) -> Answer | None:
        """How a condition is taken, None if that is not known. Of numbers nothing is."""
        if tensor.dtype is not torch.bool:
            self.shown = self.trying
            return Answer(0) if self.trying else None
        place = self._place()
        if place in self.known:
            return self.known[place]
        if place in self.tried or place in self.assumed:
            self.trying, self.times[place] = self.trying or place in self.tried, self.times[place] + 1
            if self.times[place] <= MOST:
                return Answer(self.tried.get(place, False))
            return None  # a loop that this side does not end
        self.asked = self.asked or place
        return None

    def _place(self) -> Place:
        frame, found = sys._getframe(1), list[tuple[CodeType, Position]]()
        while frame.f_back and frame is not self.root:
            found.append((frame.f_code, next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))))
            frame = frame.f_back
        return tuple(found)


def settled(trace: Callable[[Conditions], T]) -> T:
    """What a trace gives once all its conditions are answered of which one side only raises, or neither makes it give
    anything else. Raises what it raises."""
    known, same = dict[Place, Answer](), dict[Place, DataDependentOutputException]()
    while True:
        conditions = Conditions(known, same)
        try:
            if not same:
                return trace(conditions)
            with _unheard():
                made = trace(conditions)
            break
        except DataDependentOutputException as error:
            place = conditions.asked
            if place is None or len(known) + len(same) == MOST:
                raise
            raised = {side: _raised(trace, Conditions(known, same, {place: side})) for side in (False, True)}
            if all(raised.values()):
                raise
            if any(raised.values()):
                known[place] = Answer(not raised[True], raised[True] or raised[False])
            else:
                same[place] = error
        except Exception as error:  # of a side that was only assumed to be taken
            if not same or isinstance(error, NeedsData):
                raise
            raise next(iter(same.values())) from error
    for places in (*((place,) for place in same), tuple(same)):
        _check_same(trace, Conditions(known, same, dict.fromkeys(places, True)), made, same[places[0]])
    return made


def _check_same(trace: Callable[[Conditions], T], conditions: Conditions, made: T, told: Exception) -> None:
    """Raises what is `told` of a condition, unless a trace that takes its other side gives the same as was `made`."""
    try:
        with _unheard():
            other = trace(conditions)
    except Exception as error:  # of a side that no sample may take
        raise told from error
    if other != made:
        raise told


@contextmanager
def _unheard() -> Iterator[None]:
    """A context in which nothing is printed, logged or warned of."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _raised(trace: Callable[[Conditions], Any], conditions: Conditions) -> str:
    """What a trace raises by a statement of the model's, or of what it calls; "" if it goes on, or fails otherwise."""
    try:
        with _unheard():
            trace(conditions)
    except PartitaError:
        return ""
    except Exception as error:  # whatever the user's code raises
        if not (error.__traceback__ and _stated(error.__traceback__)):
            return ""
        return FAKED.sub("...", first_line(error)) + " (a sample's number stands as 0)" * conditions.shown
    return ""


def _stated(traceback: TracebackType) -> bool:
    """Whether an error comes of a `raise` or an `assert`, and not of how tensors are faked."""
    faked = traceback.tb_frame.f_code.co_filename.startswith(FAKING)
    while traceback.tb_next:
        traceback = traceback.tb_next
        faked = faked or traceback.tb_frame.f_code.co_filename.startswith(FAKING)
    code = traceback.tb_frame.f_code
    operation = dis.opname[code.co_code[traceback.tb_lasti]]
    return operation == "RAISE_VARARGS" and not faked and not code.co_filename.startswith(HERE)
