"""Reads a plan as the user gives it: a recipe call, a plan file (`*.toml`) or `auto`; before anything slow begins."""

from __future__ import annotations

from os.path import isfile
from pathlib import Path

from partita.errors import OptionError, PlanError
from partita.files import read_whole
from partita.plan.plan import Plan
from partita.plan.text import read_plan
from partita.recipes.catalogue import AUTO, Call, apart, read_call


def read_text(text: str) -> Plan | Call | None:
    """The Plan of a file, a recipe call, or None for `auto`. Raises PlanError for a text that is none of them."""
    if text.endswith(".toml") and (len(apart(text)[0]) == 1 or isfile(text)):
        return _of_file(text)
    try:
        return None if text == AUTO else read_call(text)
    except PlanError:
        if not isfile(text):
            raise
    raise PlanError(f"{text} is a file, and plan files end in .toml; rename it, or give a recipe call or auto")


def chooses_collective(plan: Plan | str) -> bool:
    """Whether costs decide by which algorithm a plan's all-reduces go."""
    wanted = plan if isinstance(plan, Plan) else read_text(plan)
    return isinstance(wanted, Call) and wanted.knobs.get("collective") == AUTO


def choosing_collective(text: str) -> str:
    """The recipe call `text` whose all-reduces go by the algorithm that costs choose; "" where the recipe has no such
    knob, or the call gives it or a codec."""
    wanted = read_text(text)
    if not isinstance(wanted, Call) or "collective" not in wanted.recipe.knobs:
        return ""
    if {"collective", "codec"} & wanted.knobs.keys():
        return ""
    return with_knob(text, f"collective={AUTO}")


def with_knob(text: str, knob: str) -> str:
    """A recipe call that also gives `knob`, a text such as `collective=auto`."""
    return text.removesuffix(")") + ("," if "(" in text else "(") + f"{knob})"


def _of_file(text: str) -> Plan:
    try:
        written = read_whole(Path(text))
    except FileNotFoundError:
        raise PlanError(f"there is no plan file {text}; give an existing one, a recipe call or auto") from None
    except (OSError, ValueError) as error:
        raise PlanError(
            f"the plan file {text} cannot be read ({error}); give one that `partita plan -o` wrote"
        ) from None
    try:
        return read_plan(written)
    except PlanError as error:
        raise PlanError(f"in {text}, {error}") from None


def split_plans(text: str) -> list[str]:
    """`'ddp,gpipe(microbatches=8)'` -> its plans; commas inside parentheses do not split. Raises OptionError."""
    plans, depth = apart(text)
    if depth or not all(plan.strip() for plan in plans):
        raise OptionError(f"--plans is {text!r}; give plans between commas, such as ddp,pipe_sgd(staleness=1)")
    return [plan.strip() for plan in plans]
