"""Everything that Partita raises on purpose.

PartitaError                 exit 3   a sentence: what was given, what is allowed, what to do
├── InputError               exit 2   the user's to mend
│   ├── OptionError                   a command-line value
│   ├── TaskError                     the model, the loss, the data
│   ├── CaptureError                  no rung could capture it
│   ├── ClusterError                  the machines
│   ├── PlanError                     a plan that contradicts itself, the graph or the cluster
│   └── LoweringError                 a legal plan that this version cannot carry out yet
├── ProgramError             exit 3   `verify` found a program that could hang or misread; ours to mend
├── CostError                exit 3   no cost is known for something that was asked
└── RunError                 exit 3   a run failed; names rank and step where they are known
    ├── RunHung              exit 4   nothing moved within the time limit
    └── RunStopped     exit 130, 143  a signal ended a run; says where it goes on
"""

from __future__ import annotations


class PartitaError(Exception):
    """Base of all; `exit_code` is what the command line returns."""

    exit_code = 3


class InputError(PartitaError):
    exit_code = 2


class OptionError(InputError):
    pass


class TaskError(InputError):
    pass


class CaptureError(InputError):
    pass


class ClusterError(InputError):
    pass


class PlanError(InputError):
    pass


class LoweringError(InputError):
    pass


class ProgramError(PartitaError):
    pass


class CostError(PartitaError):
    pass


class RunError(PartitaError):
    """A run that failed. `rank` and `step` are -1 where they are not known."""

    def __init__(self, sentence: str, *, rank: int = -1, step: int = -1) -> None:
        super().__init__(sentence)
        self.rank = rank
        self.step = step


class RunHung(RunError):
    exit_code = 4


class RunStopped(RunError):
    """`number` is the signal's."""

    def __init__(self, sentence: str, number: int, *, step: int = -1) -> None:
        super().__init__(sentence, step=step)
        self.exit_code = 128 + number


def first_line(error: BaseException) -> str:
    """An error's kind and the first line of its text: how what others have raised stands in a sentence."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
