"""Conditions on what samples hold of which one side only raises: a trace takes the other one, and asserts it.

    if labels.max() >= classes: raise ValueError("...")     ->      _assert_async(not (labels.max() >= classes), "...")
    if mask.any(): x = self.masked(x)                       ->      both sides go on: no step for all samples

Which side raises is found by going there: the step is traced up to the condition with either answer. What is raised
must be raised by a statement that says so, since what fails on fake tensors may work on others.
"""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, TypeAlias, TypeVar

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from partita.errors import PartitaError, first_line

ASSERT: Final = torch.ops.aten._assert_async.msg
MOST: Final = 64  # conditions that are looked at, each in two traces up to it, and times that one side of it is tried
HERE: Final = str(Path(__file__).parent)
FAKE: Final = str(Path(torch.__file__).parent / "_subclasses")
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
    """What a trace answers: `known` at some places, and `tried` at one. `asked` is the first place without an answer;
    `trying` says that the `tried` side was taken, where numbers are 0, for messages show some: then one is `shown`.
    `root` is the call that traces."""

    known: dict[Place, Answer] = field(default_factory=dict)
    tried: tuple[Place, bool] | None = None
    asked: Place | None = None
    trying: bool = False
    shown: bool = False
    times: int = 0
    root: FrameType | None = None

    def answer(self, tensor: torch.Tensor) -> Answer | None:
        """How a condition is taken, None if that is not known. Of numbers nothing is."""
        if tensor.dtype is not torch.bool:
            self.shown = self.trying
            return Answer(0) if self.trying else None
        place = self._place()
        if place in self.known:
            return self.known[place]
        if self.tried and self.tried[0] == place:
            self.trying, self.times = True, self.times + 1
            return Answer(self.tried[1]) if self.times <= MOST else None  # a loop that this side does not end
        self.asked = self.asked or place
        return None

    def _place(self) -> Place:
        frame, found = sys._getframe(1), list[tuple[CodeType, Position]]()
        while frame.f_back and frame is not self.root:
            found.append((frame.f_code, next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))))
            frame = frame.f_back
        return tuple(found)


def settled(trace: Callable[[Conditions], T]) -> T:
    """What a trace gives once all its conditions of which one side only raises are answered. Raises what it raises."""
    known: dict[Place, Answer] = {}
    while True:
        conditions = Conditions(known)
        try:
            return trace(conditions)
        except DataDependentOutputException:
            place = conditions.asked
            if place is None or len(known) == MOST:
                raise
            raised = {side: _raised(trace, Conditions(known, (place, side))) for side in (False, True)}
            if bool(raised[False]) == bool(raised[True]):
                raise
            known[place] = Answer(not raised[True], raised[True] or raised[False])
        finally:
            conditions.root = None


def _raised(trace: Callable[[Conditions], Any], conditions: Conditions) -> str:
    """What a trace raises by a statement of the model's, or of what it calls; "" if it goes on, or fails otherwise."""
    try:
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
    while traceback.tb_next:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    operation = dis.opname[code.co_code[traceback.tb_lasti]]
    return operation == "RAISE_VARARGS" and not code.co_filename.startswith((HERE, FAKE))
