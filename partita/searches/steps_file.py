"""Steps to a loss in a file: by minibatch (`steps_to_loss`) or by plan (`steps_of_plans`), as what it has says."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import tomli_w

from partita.errors import OptionError, check_schema
from partita.files import read_toml, read_whole
from partita.plan.text import read_record, table_of
from partita.searches.learners import HINT as OF_PLANS
from partita.searches.objective import check_weighed
from partita.searches.steps_of_plans import StepsOfPlans
from partita.searches.steps_to_loss import HINT as BY_MINIBATCH
from partita.searches.steps_to_loss import StepsToLoss

SCHEMA: Final = 1
HINT: Final = f"{BY_MINIBATCH}; {OF_PLANS}"
Steps = StepsToLoss | StepsOfPlans


def read_steps(path: Path) -> Steps:
    """What a file of `write_steps` says. Raises InputError for a file that is not there or says something else."""
    try:
        table = read_toml(read_whole(path))
    except (OSError, ValueError) as error:  # what is no UTF-8 and what is no TOML are ValueErrors
        raise OptionError(f"--steps-to-loss {path} cannot be read ({error}); give a TOML file: {HINT}") from None
    check_schema(table.pop("schema", None), SCHEMA, f"--steps-to-loss {path}", f"write it anew: {HINT}", OptionError)
    found = read_record(StepsOfPlans if "plans" in table else StepsToLoss, table, str(path))
    assert isinstance(found, StepsOfPlans | StepsToLoss)
    return found


def write_steps(steps: Steps) -> str:
    """As TOML text; `read_steps` gives back an equal value."""
    return tomli_w.dumps({"schema": SCHEMA, **table_of(steps)})


def check_steps(path: Path | None, objective: str) -> Steps | None:
    """What the file says, None where none is named. Raises OptionError where nothing would be done with it."""
    check_weighed(path is not None, objective)
    return read_steps(path) if path is not None else None
