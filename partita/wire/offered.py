"""What a plugin offers as a codec, looked at once, when it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, Final

from partita.errors import OptionError
from partita.plan.wire import PLACES

SUMMED: Final = ("float16", "bfloat16", "float32", "float64")  # dtypes in which messages of a plugin's codec are summed
YES_OR_NO: Final = ("varies", "feedback", "sparse", "ahead", "fresh", "absolute")


def pair_offered(name: str, pair: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A codec's two functions. Raises OptionError for what is no pair of functions."""
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(callable, pair)):
        raise OptionError("give its two functions (encode, decode)")
    return pair[0], pair[1]


def wrong_field(spec: Any) -> str:
    """What is wrong with a field of a plugin's Spec, and what to give; "" if nothing is."""
    if not callable(spec.size):
        return f"its size is {spec.size!r}; give a function of (elements, item, settings) that returns bytes"
    if not _numbered(spec.settings):
        return f"its settings are {spec.settings!r}; give a tuple of (name, number), such as (('ratio', 0.01),)"
    if spec.sums and (spec.sums not in SUMMED or spec.varies):
        return f"its sums is {spec.sums!r}; {', '.join(SUMMED)} are allowed, of messages that do not vary, or ''"
    if spec.where not in PLACES:
        return f"its where is {spec.where!r}; {', '.join(PLACES)} are allowed"
    if odd := next((name for name in YES_OR_NO if not isinstance(getattr(spec, name), bool)), ""):
        return f"its {odd} is {getattr(spec, odd)!r}; True or False belongs there"
    if spec.bound and spec.bound not in dict(spec.settings):
        return f"its bound is {spec.bound!r}; name one of its settings, or leave it out"
    if spec.counts is not None:
        return "its counts are for a codec of several rounds, which a plugin cannot add; leave them out"
    if spec.calls is not None:
        return "its calls are for a codec of matrices, which a plugin cannot add; leave them out"
    if not isinstance(spec.passes, tuple | list) or len(spec.passes) != 2 or not all(map(_is_number, spec.passes)):
        return f"its passes are {spec.passes!r}; give two numbers, those of encoding and of decoding"
    return ""


def _numbered(settings: Any) -> bool:
    """Whether it is pairs of a name and a number."""
    return isinstance(settings, tuple | list) and all(
        isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str) and _is_number(pair[1])
        for pair in settings
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0
