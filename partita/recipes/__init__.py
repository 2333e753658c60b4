"""Every named method as a function: `recipes.ddp(graph, cluster, costs, bucket_bytes=2**20)` returns a Plan."""

from __future__ import annotations

from collections.abc import Callable

from partita.plan.plan import Plan
from partita.recipes import catalogue

# A recipe's function takes the place of its file's module, which has the same name.
globals().update({name: recipe.make for name, recipe in catalogue.OURS.items()})


def __getattr__(name: str) -> Callable[..., Plan]:
    """The function of a plugin's recipe."""
    if not name.startswith("_") and name in catalogue.RECIPES:
        return catalogue.RECIPES[name].make
    raise AttributeError(f"there is no recipe {name!r}; there are {', '.join(catalogue.RECIPES)}")
