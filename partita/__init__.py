"""Partita takes a PyTorch model and a description of the machines, and finds, predicts, runs and checks the best way to
train it in parallel.

    import partita as pt

    cluster = pt.Cluster.load("lab-4x1g")                # or a TOML file, h100-dgx, local:2
    graph = pt.capture("t.py:task")                      # a function of yours that returns a pt.Task
    found = pt.search(graph, cluster)                    # ranked plans: found.best, found.explanation
    pt.fit(graph, cluster, "zero2")                      # does it fit, and what would make it fit
    pt.simulate(graph, "ddp", cluster)                   # a step's predicted seconds, bytes and messages
    pt.verify("t.py:task", "pipe_sgd(staleness=2)")      # does that train as plain PyTorch does
    pt.compare("t.py:task", ["ddp", "zero2"], cluster)   # predicted, then run and measured
    pt.train("t.py:task", found.best, cluster, epochs=2, out="run")   # run/model.safetensors, a state dict
    pt.apply("ddp", model, optimizer, loader)            # for a loop of one's own under torchrun
    pt.probe(cluster), pt.doctor()                       # links as measured; what this machine lacks
    pt.recipes.ddp(graph, cluster)                       # a Plan by a method, which `partita recipes` lists

Results print as the command line's answers; what goes wrong is one of `pt.errors`. A Plan is data: `pt.Plan`.

The names below are loaded when they are first used, so that `import partita` is quick and does without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from partita import errors, recipes
    from partita.api import apply, compare, doctor, fit, probe, search, simulate, train, verify
    from partita.api import graph_of as capture
    from partita.cluster.cluster import Cluster
    from partita.graph.graph import Graph
    from partita.plan.plan import Plan
    from partita.program.timeline import Timeline
    from partita.task import Task

    __version__: str

__all__ = [
    "Cluster", "Graph", "Plan", "Task", "Timeline", "apply", "capture", "compare", "doctor", "errors", "fit", "probe",
    "recipes", "search", "simulate", "train", "verify",
]  # fmt: skip

PLACES: Final = {
    "Cluster": ("partita.cluster.cluster", "Cluster"),
    "Graph": ("partita.graph.graph", "Graph"),
    "Plan": ("partita.plan.plan", "Plan"),
    "Task": ("partita.task", "Task"),
    "Timeline": ("partita.program.timeline", "Timeline"),
    "apply": ("partita.api", "apply"),
    "capture": ("partita.api", "graph_of"),
    "compare": ("partita.api", "compare"),
    "doctor": ("partita.api", "doctor"),
    "fit": ("partita.api", "fit"),
    "probe": ("partita.api", "probe"),
    "search": ("partita.api", "search"),
    "simulate": ("partita.api", "simulate"),
    "train": ("partita.api", "train"),
    "verify": ("partita.api", "verify"),
}
ROOMS: Final = ("errors", "recipes")


def __getattr__(name: str) -> Any:
    if name == "__version__":  # as it was installed: pyproject.toml alone says it
        return import_module("importlib.metadata").version("partita")
    if name in ROOMS:
        return import_module(f"partita.{name}")
    if name not in PLACES:
        raise AttributeError(f"partita has no {name!r}; it has {', '.join(__all__)}")
    module, attribute = PLACES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
