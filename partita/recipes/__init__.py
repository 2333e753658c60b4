"""Every named method as a function: `recipes.ddp(graph, cluster, costs, bucket_bytes=2**20)` returns a Plan."""

from __future__ import annotations

from typing import NoReturn

from partita.recipes import catalogue

# A recipe's function takes the place of its file's module, which has the same name.
globals().update({name: recipe.make for name, recipe in catalogue.RECIPES.items()})


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"there is no recipe {name!r}; there are {', '.join(catalogue.RECIPES)}")
