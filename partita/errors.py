"""Everything that Partita raises on purpose.

PartitaError                 exit 3   a sentence: what was given, what is allowed, what to do
├── InputError               exit 2   what the user gave is wrong
│   ├── OptionError                   a command-line value
│   ├── TaskError                     the model, the loss, the data
│   ├── CaptureError                  no rung could capture it
│   ├── ClusterError                  the machines
│   ├── PlanError                     a plan that contradicts itself, the graph or the cluster
│   └── LoweringError                 a legal plan that this version cannot carry out yet
├── ProgramError             exit 3   a program that could hang or compute something wrong: our fault
├── CostError                exit 3   no cost is known for something that was asked
└── RunError                 exit 3   a run failed; names rank and step where they are known
    ├── RunHung              exit 4   nothing moved within the time limit
    └── RunStopped     exit 129 to 143  a signal ended a run; says where it goes on
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

LONGEST: Final = 1600  # letters of a sentence, whatever it quotes
LAST: Final = 500  # of them at its end, which says what to do
LONG: Final = re.compile(r"(\S{60})\S{100,}(\S{60})")


class PartitaError(Exception):
    """The base of all errors; `exit_code` is the exit code of a command that ends with it. Of a sentence that quotes
    more than anybody would read, the middle is left out."""

    exit_code = 3

    def __init__(self, sentence: str = "") -> None:
        super().__init__(brief(sentence))


class InputError(PartitaError):
    """Something that the user gave is wrong, and the user can correct it."""

    exit_code = 2


class OptionError(InputError):
    """A value on the command line, in the environment or of an argument."""


class TaskError(InputError):
    """A Task: its model, loss, data, optimizer or schedule."""


class CaptureError(InputError):
    """A training step that no way of capture can record."""


class ClusterError(InputError):
    """A description of machines."""


class PlanError(InputError):
    """A Plan that contradicts itself, the Graph or the Cluster."""


class LoweringError(InputError):
    """A legal Plan that this version cannot carry out yet."""


class ProgramError(PartitaError):
    """A Program that could hang or compute something wrong: a fault of Partita, not of the user."""


class CostError(PartitaError):
    """A cost that was asked for and is not known."""


class RunError(PartitaError):
    """A run that failed on `rank` in `step`; -1 if not known. `log` is the end of that rank's log."""

    def __init__(self, sentence: str, *, rank: int = -1, step: int = -1, log: str = "") -> None:
        super().__init__(sentence)
        self.sentence, self.rank, self.step, self.log = brief(sentence), rank, step, log

    def __str__(self) -> str:
        return f"{self.sentence.rstrip('.')}; the end of its log:\n{self.log}" if self.log else self.sentence

    def advise(self, words: str) -> None:
        """Let the sentence end with what can be done, if there are words."""
        self.sentence = f"{self.sentence.rstrip('.')}; {words}" if words else self.sentence


class RunHung(RunError):
    """A run that made no progress within its time limit."""

    exit_code = 4


class RunStopped(RunError):
    """A run that was ended by the signal `number`, at a checkpoint if it writes any."""

    def __init__(self, sentence: str, number: int, *, step: int = -1) -> None:
        super().__init__(sentence, step=step)
        self.exit_code = 128 + number


class Ended(SystemExit):
    """A signal that was to end this process; `code` is its exit code. Nobody's code has left by itself."""


def reported(error: BaseException) -> dict[str, Any]:
    """An error as plain data, as a worker tells it to its launcher; `logged`: it is no sentence for users."""
    if isinstance(error, PartitaError):
        return {"error": str(error), "exit": error.exit_code}
    return {"error": f"{type(error).__name__}: {error}", "exit": RunError.exit_code, "logged": True}


def first_line(error: BaseException) -> str:
    """An error's type and the first line of its text, to quote errors of other packages within a sentence."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def brief(sentence: str) -> str:
    """A sentence; of one of more letters than LONGEST the long words without their middle, and the beginning and the
    end of what is still too long."""
    if len(sentence) <= LONGEST:
        return sentence
    shorter = LONG.sub(r"\1[...]\2", sentence)
    if len(shorter) <= LONGEST:
        return shorter
    return f"{shorter[: LONGEST - LAST]} [... {len(shorter) - LONGEST:,} letters ...] {shorter[-LAST:]}"


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The question whether the known name nearest to the given one was meant, in whatever letters that is written; ""
    if none is near."""
    small = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), small, 1)
    return f"did you mean {small[near[0]]!r}?" if near else ""


@contextmanager
def users_code(what: str, advice: str, kind: type[PartitaError]) -> Iterator[None]:
    """A context in which an exception of `what`, which a user wrote, becomes one of `kind` with the advice."""
    try:
        yield
    except (PartitaError, Ended):
        raise
    except (Exception, SystemExit) as error:
        raise kind(f"{what} failed ({first_line(error)}); {advice}; PARTITA_TRACEBACK=1 shows where") from error


def check_schema(found: object, reads: int, what: str, remedy: str, kind: type[InputError] = InputError) -> None:
    """Raises `kind` for a file, `what`, of another schema than the one that this version `reads`."""
    if type(found) is not int or found != reads:
        raise kind(f"{what} has schema {found!r}; this version reads schema {reads}, so {remedy}")
