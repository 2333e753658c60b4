"""What stands between a rank and its acts, wherever the worker starts them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from partita.runtime.acts import ACTS
from partita.runtime.rank import Rank

Do = Callable[[Rank, Any, str, int], Any]
Around = Callable[[Do, Rank, Any, str, int], Any]


def around(between: Around) -> dict[type, Do]:
    """The table of acts in which each is `between(act's function, rank, act, name, round)`."""
    return {kind: partial(between, do) for kind, do in ACTS.items()}
