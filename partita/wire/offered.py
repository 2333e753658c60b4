"""What a plugin offers as a codec, looked at once, when it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from partita.errors import OptionError


def pair_offered(name: str, pair: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A codec's two functions. Raises OptionError for what is no pair of functions."""
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(callable, pair)):
        raise OptionError("give its two functions (encode, decode)")
    return pair[0], pair[1]
