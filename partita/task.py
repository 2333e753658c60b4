"""What to train: a model, loss, data and optimizer, as factories, so that every rank can build its own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import dropwhile
from math import inf
from os.path import isfile
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from partita.errors import Ended, PartitaError, TaskError, did_you_mean, first_line, users_code

if TYPE_CHECKING:
    import torch
    from torch import nn

LOOKED_AT: Final = 256  # samples of the data, for a final loss where none are held out
PRECISIONS = ("fp64", "fp32", "bf16", "fp16")
STYLE: Final = "give a map-style dataset, with __len__ and a __getitem__ that takes positions from 0"
MAKES: Final = {  # what the function of a field is for
    "model": " that makes the module, for every process makes its own: lambda: Net()",
    "loss": " of the model and a batch",
    "optimizer": " of the parameters, such as lambda parameters: torch.optim.SGD(parameters, lr=0.1)",
    "schedule": " of the optimizer that makes an LR scheduler, or None",
    "collate": " of a list of samples, or None",
}


@dataclass(frozen=True)
class Task:
    """A model, its loss, its data and its optimizer.

    `model()` builds an nn.Module, which is trained in training mode.

    `loss(model, batch)` returns the mean over the batch's samples, or a `(sum, weight)` pair (for a mean over tokens,
    say).

    `data` is a map-style dataset of samples (tuples or dicts of tensors). Its samples are read at once if it has
    `__getitems__(positions)`, or `collated(positions)`, which returns a batch. What a sample draws from torch's,
    Python's or NumPy's own generator goes by seed, epoch and sample, so that all who read it have the same; draws of a
    generator that the dataset keeps, or in `collated`, do not. `validation` is a dataset for the final loss, in
    evaluation mode.

    `optimizer(parameters)` builds a torch optimizer. It is called with all parameters and with some of them; these keep
    the parameter groups that they have among all. `schedule(optimizer)` builds an LR scheduler that is stepped once a
    step.

    `batch_size` counts the samples of one global minibatch; `clip_norm` bounds the norm of the global gradient, under
    servers that do not wait for all workers that of each contribution; `collate(samples)` makes a batch (None: torch's
    default_collate).

    `origin` is the text by which other processes can load the task ("": unknown). Raises TaskError for a field that
    cannot be right.
    """

    name: str
    model: Callable[[], nn.Module]
    loss: Callable[[Any, Any], Any]
    data: Any
    optimizer: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]
    batch_size: int
    validation: Any = None
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None
    clip_norm: float | None = None
    collate: Callable[[list[Any]], Any] | None = None
    precision: str = "fp32"
    origin: str = field(default="", init=False, repr=False, compare=False)

    def __repr__(self) -> str:  # not its data, which may be a list of a million samples
        return f"<Task {self.name}: minibatches of {self.batch_size} samples, {self.precision}>"

    def __post_init__(self) -> None:
        object.__setattr__(self, "origin", _origin())
        if not isinstance(self.name, str) or not self.name.strip() or not self.name.isprintable():
            raise TaskError(f"Task.name is {self.name!r}; give a name, a printable text")
        self._check_functions()
        if type(self.batch_size) is not int or self.batch_size < 1:
            raise TaskError(
                f"Task.batch_size is {self.batch_size!r}; give the samples of one global minibatch, 1 or more"
            )
        bound = isinstance(self.clip_norm, int | float) and not isinstance(self.clip_norm, bool)
        if self.clip_norm is not None and not (bound and 0 < self.clip_norm < inf):
            raise TaskError(f"Task.clip_norm is {self.clip_norm!r}; give a bound above 0, or None")
        if self.precision not in PRECISIONS:
            raise TaskError(f"Task.precision is {self.precision!r}; allowed are {', '.join(PRECISIONS)}")
        length = self._length("data")
        if not length:
            raise TaskError(f"Task.data of {self.name!r} holds no samples; give {self.batch_size} or more")
        if self.validation is not None and not self._length("validation"):
            raise TaskError(f"Task.validation of {self.name!r} holds no samples; give some, or None")
        if length < self.batch_size:
            raise TaskError(
                f"the data of {self.name!r} holds {length} samples, fewer than one minibatch of {self.batch_size}; "
                f"lower batch_size to {length} or less"
            )

    def _check_functions(self) -> None:
        """Raises TaskError for a field that is no function, or that is what the function should make."""
        for name in ("model", "loss", "optimizer", "schedule", "collate"):
            given = getattr(self, name)
            if given is None and name in ("schedule", "collate"):
                continue
            made = name == "model" and not isinstance(given, type) and hasattr(given, "named_parameters")
            if made or not callable(given):
                what = f"of type {type(given).__name__}" + (", and made already" if made else "")
                raise TaskError(f"Task.{name} is {what}; give a function{MAKES[name]}")

    def _length(self, name: str) -> int:
        """The number of samples of the data set in the field `name`. Raises TaskError if it has none, or if samples
        cannot be had by their positions."""
        data = getattr(self, name)
        try:
            length = len(data)
        except TypeError:
            raise TaskError(f"Task.{name} of {self.name!r} has no length; {STYLE}") from None
        except Exception as error:  # of the user's own __len__
            raised = first_line(error)
            raise TaskError(f"Task.{name} of {self.name!r} has no length: it raised {raised}; {STYLE}") from error
        if hasattr(data, "batch_sampler"):
            raise TaskError(
                f"Task.{name} of {self.name!r} is a DataLoader; give its dataset, and batch_size to the Task"
            )
        streams = any(kind.__name__ == "IterableDataset" for kind in type(data).__mro__)
        if streams or not hasattr(data, "__getitem__"):
            raise TaskError(f"Task.{name} of {self.name!r} is of type {type(data).__name__}; {STYLE}")
        return length


def judged_by(task: Task) -> tuple[Any, int, str]:
    """(data set, how many of its first samples, what these are in words) of which the final loss is the mean."""
    if task.validation is not None:
        return task.validation, (count := len(task.validation)), f"{count:,} held-out samples"
    count = min(LOOKED_AT, len(task.data))
    return task.data, count, f"the first {count:,} samples of the data, as Task.validation holds none out"


def spec_of(task: Task | str) -> str:
    """The text by which other processes can load a task (`file.py:function` or a name). Raises TaskError for a Task
    that no other process can make: one from a notebook, a lambda, or the function that runs now."""
    refuse_while_loading()
    if isinstance(task, str):
        return task
    running = [f"{Path(f.f_code.co_filename).resolve()}:{f.f_code.co_name}" for f in _outward(sys._getframe(1).f_back)]
    if not task.origin or task.origin in running:
        raise TaskError(
            f"the Task {task.name!r} was made where other processes cannot make it again; put a function without "
            "arguments that returns it into a file, and give 'file.py:function' or what that function returns"
        )
    return task.origin


def refuse_while_loading() -> None:
    """Raises TaskError if a file that Partita loads for a task is what calls: each worker loads that file as well, and
    would begin the same again."""
    for frame in _outward(sys._getframe(1).f_back):
        if frame.f_code.co_name == _module.__name__ and frame.f_globals.get("__name__") == __name__:
            place = frame.f_locals["place"]
            raise TaskError(
                f"{place} starts a run as it is loaded, and every worker loads it for its task; put what starts runs "
                'under if __name__ == "__main__":'
            )


def _origin() -> str:
    """`file.py:function` of the nearest function that is making a Task, itself or by helpers in any file, and that
    stands at the top level of a file and takes no arguments; "" if there is none (in a notebook, a lambda)."""
    for frame in dropwhile(lambda frame: frame.f_back and _is_ours(frame), _outward(sys._getframe(2))):
        code = frame.f_code
        if code.co_name == "<module>":  # whoever imports a module does not make what it holds
            break
        made = getattr(frame.f_globals.get(code.co_name), "__code__", None) is code
        if made and not code.co_argcount and not code.co_kwonlyargcount and Path(code.co_filename).is_file():
            return f"{Path(code.co_filename).resolve()}:{code.co_name}"
    return ""


def _is_ours(frame: FrameType) -> bool:
    package = frame.f_globals.get("__name__", "").split(".")[0]
    return package in ("dataclasses", "partita")


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame of the stack, and those that have called it."""
    while frame:
        yield frame
        frame = frame.f_back


def load_task(spec: str, built_in: Callable[[str], Task | None] = lambda name: None) -> Task:
    """The Task that `file.py:function`, `package.module:function` or a built-in name stands for.

    Runs the user's own code. Raises TaskError with one sentence for anything that does not lead to a Task.
    """
    task = built_in(spec)
    if task is None:
        task = _made(spec)
    object.__setattr__(task, "origin", spec)
    return task


def _made(spec: str) -> Task:
    """The Task that a function of the user returns, or that has a name in the user's module."""
    if ":" not in spec:
        raise TaskError(f"{spec!r} is no built-in task; give one of them, file.py:function or package.module:function")
    place, name = spec.rsplit(":", 1)
    if not name or not (place.endswith(".py") or all(part.strip() for part in place.split("."))):
        raise TaskError(
            f"{spec!r} names no function of a file or a module; give file.py:function or package.module:function"
        )
    found = getattr(module := _module(place), name, None)
    if isinstance(found, Task):
        return found
    if not callable(found):
        hint = "name the function that returns a Task, or a Task"
        if found is not None:
            raise TaskError(f"{place} has {name!r}, of type {type(found).__name__}; {hint}")
        near = did_you_mean(name, [each for each in vars(module) if not each.startswith("_")])
        raise TaskError(f"{place} has no function {name!r}; {near or hint}")
    with users_code(spec, "it takes no arguments and returns a partita.Task", TaskError):
        task = found()
    if not isinstance(task, Task):
        raise TaskError(f"{spec} returned {type(task).__name__}; it must return a partita.Task")
    return task


def _module(place: str) -> ModuleType:
    if place.endswith(".py") and not isfile(place):
        raise TaskError(f"there is no file {place}; give file.py:function with the path of an existing file")
    try:
        return module_of(Path(place).resolve()) if place.endswith(".py") else importlib.import_module(place)
    except (PartitaError, Ended):
        raise
    except ModuleNotFoundError as error:
        if place.endswith(".py"):
            raise _unloadable(place, error) from error
        raise TaskError(f"no module {place!r} ({error}); give file.py:function or package.module:function") from None
    except (Exception, SystemExit) as error:
        raise _unloadable(place, error) from error


def module_of(path: Path) -> ModuleType:
    """The module of a Python file, executed once. Modules beside the file can be imported while it runs."""
    name = f"partita_file:{path}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(found)
    sys.path.insert(0, str(path.parent))
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module


def _unloadable(place: str, error: BaseException) -> TaskError:
    return TaskError(f"{place} cannot be loaded ({first_line(error)}); mend it so that Python can import it")
