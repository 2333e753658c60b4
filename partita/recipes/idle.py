"""Knobs that do nothing beside others, and are refused there, for who gives one expects that it is heeded."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from partita.errors import PlanError
from partita.plan.plan import Plan


def check_idle_knobs(recipe: Callable[..., Plan], beside: str, **knobs: Any) -> None:
    """Raises PlanError for the first of these knobs that has not its default; `beside` says next to what it does
    nothing, and what to do."""
    defaults = inspect.signature(recipe).parameters
    for knob, value in knobs.items():
        if value != defaults[knob].default:
            shown = str(value).lower() if isinstance(value, bool) else value
            raise PlanError(f"{recipe.__name__}({knob}={shown}) does nothing {beside}, or leave {knob} out")
