"""Every recipe by name: what `partita recipes` lists and what a plan's text `ddp(bucket_bytes=1048576)` calls."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, wraps
from typing import Any, Final

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.errors import OptionError, PlanError, did_you_mean, users_code
from partita.files import WIDEST
from partita.graph.graph import Graph
from partita.plan.plan import Plan
from partita.plan.text import MOST, read_values
from partita.recipes.ad_psgd import ad_psgd
from partita.recipes.adam import adam
from partita.recipes.admm import admm
from partita.recipes.backup_workers import backup_workers
from partita.recipes.buckwild import buckwild
from partita.recipes.budget import settled
from partita.recipes.bytescheduler import bytescheduler
from partita.recipes.d_psgd import d_psgd
from partita.recipes.dc_asgd import dc_asgd
from partita.recipes.ddp import ddp
from partita.recipes.diana import diana
from partita.recipes.diloco import diloco
from partita.recipes.downpour import downpour
from partita.recipes.dynsgd import dynsgd
from partita.recipes.eamsgd import eamsgd
from partita.recipes.easgd import easgd
from partita.recipes.ef21 import ef21
from partita.recipes.fastest import fastest
from partita.recipes.gossip import gossip
from partita.recipes.gpipe import gpipe
from partita.recipes.hogwild import hogwild
from partita.recipes.horovod import horovod
from partita.recipes.interleaved import interleaved
from partita.recipes.local_sgd import local_sgd
from partita.recipes.one_f_one_b import one_f_one_b
from partita.recipes.p3 import p3
from partita.recipes.parallel_sgd import parallel_sgd
from partita.recipes.pipe_sgd import pipe_sgd
from partita.recipes.poseidon import poseidon
from partita.recipes.post_local_sgd import post_local_sgd
from partita.recipes.ps_async import ps_async
from partita.recipes.ps_hierarchical import ps_hierarchical
from partita.recipes.ps_replicated import ps_replicated
from partita.recipes.ps_sharded import ps_sharded
from partita.recipes.ps_sync import ps_sync
from partita.recipes.sfb import sfb
from partita.recipes.shared import SHARED, with_shared
from partita.recipes.single import single
from partita.recipes.softsync import softsync
from partita.recipes.ssp import ssp
from partita.recipes.tictac import tictac
from partita.recipes.torchgpipe import torchgpipe
from partita.recipes.zero1 import zero1
from partita.recipes.zero2 import zero2
from partita.recipes.zero3 import zero3
from partita.recipes.zero_bubble import zero_bubble
from partita.wire.plugins import Registry, others


@dataclass(frozen=True)
class Recipe:
    """A function that returns a Plan, with the catalogue's entries that it reproduces and its paper."""

    make: Callable[..., Plan]
    catalogue: tuple[str, ...]
    group: str
    paper: str

    @cached_property
    def knobs(self) -> dict[str, Any]:
        """Name -> default of everything that may be set."""
        return self.own | {name: default for name, default in SHARED.items() if name not in self.own}

    @cached_property
    def own(self) -> dict[str, Any]:
        """The knobs that the function takes besides graph, cluster and costs; the others are those that every recipe
        has."""
        parameters = [*inspect.signature(self.make).parameters.values()][3:]
        named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return {p.name: p.default for p in parameters if p.kind in named}


OURS: Final[dict[str, Recipe]] = {
    "single": Recipe(single, ("DP-01",), "oracle", "Robbins & Monro 1951"),
    "ddp": Recipe(
        ddp,
        ("DP-02", "DP-34", "CS-01", "CS-02", "CO-02", "CO-08", "CO-09", "LB-01", "LB-03", "LB-04", "ME-11"),
        "synchronous",
        "Li et al., VLDB 2020",
    ),
    "ef21": Recipe(ef21, ("EX-10",), "synchronous", "Richtarik et al., NeurIPS 2021"),
    "diana": Recipe(diana, ("EX-11",), "synchronous", "Mishchenko et al. 2019"),
    "ps_sync": Recipe(ps_sync, ("DP-03",), "synchronous", "Li et al., OSDI 2014"),
    "ps_sharded": Recipe(ps_sharded, ("DP-07",), "synchronous", "Li et al., OSDI 2014"),
    "horovod": Recipe(horovod, ("DP-33",), "synchronous", "Sergeev & Del Balso 2018"),
    "bytescheduler": Recipe(bytescheduler, ("CS-06",), "ordered messages", "Peng et al., SOSP 2019"),
    "p3": Recipe(p3, ("CS-03",), "ordered messages", "Jayarajan et al., MLSys 2019"),
    "tictac": Recipe(tictac, ("CS-04", "CS-05"), "ordered messages", "Hashemi et al., MLSys 2019"),
    "adam": Recipe(adam, ("FM-01",), "factors", "Chilimbi et al., OSDI 2014"),
    "sfb": Recipe(sfb, ("FM-02",), "factors", "Xie et al., UAI 2016"),
    "poseidon": Recipe(poseidon, ("FM-03",), "factors", "Zhang et al., USENIX ATC 2017"),
    "ps_async": Recipe(ps_async, ("DP-10", "DP-05", "DP-07"), "asynchronous", "Langford et al., NeurIPS 2009"),
    "downpour": Recipe(downpour, ("DP-09",), "asynchronous", "Dean et al., NIPS 2012"),
    "ssp": Recipe(ssp, ("DP-14", "DP-05"), "asynchronous", "Ho et al., NIPS 2013"),
    "softsync": Recipe(softsync, ("DP-16",), "asynchronous", "Gupta, Zhang & Wang, ICDM 2016"),
    "dynsgd": Recipe(dynsgd, ("DP-17",), "asynchronous", "Jiang et al., SIGMOD 2017"),
    "hogwild": Recipe(hogwild, ("DP-12",), "asynchronous", "Niu et al., NIPS 2011"),
    "buckwild": Recipe(buckwild, ("DP-12",), "asynchronous", "De Sa et al., NIPS 2015"),
    "dc_asgd": Recipe(dc_asgd, ("DP-18",), "asynchronous", "Zheng et al., ICML 2017"),
    "ps_replicated": Recipe(ps_replicated, ("FT-02", "DP-05"), "synchronous", "Li et al., OSDI 2014"),
    "ps_hierarchical": Recipe(ps_hierarchical, ("DP-08",), "synchronous", "Gupta, Zhang & Wang, ICDM 2016"),
    "backup_workers": Recipe(backup_workers, ("DP-11",), "synchronous", "Chen et al. 2016"),
    "pipe_sgd": Recipe(pipe_sgd, ("DP-30", "PM-17"), "pipelined", "Li et al., NeurIPS 2018"),
    "local_sgd": Recipe(local_sgd, ("DP-26",), "periodic", "Moritz et al., ICLR 2016"),
    "post_local_sgd": Recipe(post_local_sgd, ("DP-26",), "periodic", "Lin et al., ICLR 2020"),
    "parallel_sgd": Recipe(parallel_sgd, ("DP-24",), "periodic", "Zinkevich et al., NIPS 2010"),
    "diloco": Recipe(diloco, ("EX-01",), "periodic", "Douillard et al. 2023, 2025"),
    "easgd": Recipe(easgd, ("DP-19",), "elastic", "Zhang et al., NIPS 2015"),
    "eamsgd": Recipe(eamsgd, ("DP-19",), "elastic", "Zhang et al., NIPS 2015"),
    "admm": Recipe(admm, ("DP-20",), "elastic", "Zhang & Kwok, ICML 2014"),
    "d_psgd": Recipe(d_psgd, ("DP-21",), "neighbours", "Lian et al., NIPS 2017"),
    "ad_psgd": Recipe(ad_psgd, ("DP-22",), "neighbours", "Lian et al., ICML 2018"),
    "gossip": Recipe(gossip, ("DP-23",), "neighbours", "Jin et al. 2016"),
    "gpipe": Recipe(gpipe, ("PP-01", "PP-10"), "pipelined stages", "Huang et al., NeurIPS 2019"),
    "torchgpipe": Recipe(torchgpipe, ("PP-02", "DP-36"), "pipelined stages", "Kim et al. 2020"),
    "one_f_one_b": Recipe(one_f_one_b, ("PP-11", "PP-10", "PP-05"), "pipelined stages", "Narayanan et al., SC 2021"),
    "interleaved": Recipe(interleaved, ("PP-11",), "pipelined stages", "Narayanan et al., SC 2021"),
    "zero1": Recipe(zero1, ("ME-01", "EX-06"), "sharded state", "Rajbhandari et al., SC 2020"),
    "zero2": Recipe(zero2, ("ME-02",), "sharded state", "Rajbhandari et al., SC 2020"),
    "zero3": Recipe(zero3, ("ME-03",), "sharded state", "Rajbhandari et al., SC 2020"),
    "zero_bubble": Recipe(zero_bubble, ("EX-07",), "pipelined stages", "Qi et al., ICLR 2024"),
}
AUTO: Final = "auto"  # the plan that a search finds, for which no recipe stands
CALL: Final = "ddp(bucket_bytes=1048576)"  # as calls are written
FAMILIAR: Final = {"fsdp": "zero3", "fsdp2": "zero3", "dp": "ddp", "allreduce": "ddp", "ps": "ps_sync", "pp": "gpipe"}
UNBUILT: Final = frozenset(["tp", "tensor_parallel", "megatron", "sp", "cp", "ep"])  # not samples, layers or state


def guarded(make: Callable[..., Plan]) -> Callable[..., Plan]:
    """A plugin's recipe that raises PlanError where it fails, or returns something else than a Plan, or a
    Plan with values of other kinds than belong there."""

    @wraps(make)
    def made(*given: Any, **knobs: Any) -> Plan:
        takes = "it takes (graph, cluster, costs, *, knobs) and returns a Plan"
        with users_code(f"the recipe {made.__name__} of a plugin", takes, PlanError):
            plan = make(*given, **knobs)
        if not isinstance(plan, Plan):
            raise PlanError(f"the recipe {made.__name__} of a plugin returned {type(plan).__name__}; {takes}")
        try:
            return read_values(plan)
        except PlanError as error:
            raise PlanError(f"the recipe {made.__name__} of a plugin returned no possible plan: {error}") from error

    return made


def _of_plugin(name: str, make: Any) -> Recipe:
    """The recipe that a plugin's function is. Raises OptionError for what is none."""
    try:
        inspect.signature(make)
    except (TypeError, ValueError):
        raise OptionError("give a function that takes (graph, cluster, costs, *, knobs)") from None
    return Recipe(guarded(make), (), "plugins", "a plugin")


RECIPES: Final[Registry[Recipe]] = Registry("RECIPES", OURS, _of_plugin)


@dataclass(frozen=True, slots=True)
class Call:
    """A recipe call that has been read: `name` is its text, `knobs` are ones that the recipe has, of the right kind."""

    name: str
    recipe: Recipe
    knobs: dict[str, Any]

    def plan(self, graph: Graph, cluster: Cluster, costs: Costs | None = None) -> Plan:
        """The plan that it makes. Raises PlanError where it cannot apply."""
        own = {knob: value for knob, value in self.knobs.items() if knob in self.recipe.own}
        plan = replace(self.recipe.make(graph, cluster, costs, **own), name=self.name)
        plan = with_shared(plan, {knob: value for knob, value in self.knobs.items() if knob not in own})
        return settled(fastest(plan, graph, cluster, costs), graph, cluster, costs)


def call(text: str, graph: Graph, cluster: Cluster, costs: Costs | None = None) -> Plan:
    """The plan of a recipe call such as `ddp` or `pipe_sgd(staleness=2)`. Raises PlanError naming what is allowed."""
    return read_call(text).plan(graph, cluster, costs)


def read_call(text: str) -> Call:
    """A recipe call, read as far as no graph is needed. Runs no code from the text: arguments are literals.

    Raises PlanError naming what is allowed.
    """
    name, knobs = parse(text)
    recipe = RECIPES[name]
    for knob, value in knobs.items():
        if knob not in recipe.knobs:
            hint = did_you_mean(knob, recipe.knobs) or f"it has {', '.join(recipe.knobs)}"
            raise PlanError(f"{name} has no knob {knob!r}; {hint}")
        default = recipe.knobs[knob]
        if isinstance(value, int | float) and not isinstance(value, bool) and not 0 <= value < MOST:
            wrong = "negative; 0 or more is allowed" if value < 0 else f"too large; less than {MOST} is allowed"
            raise PlanError(f"{name}({knob}={str(value)[:20]}) is {wrong}")
        if isinstance(default, StrEnum):
            value = knobs[knob] = _word(name, knob, value, type(default))
        if isinstance(default, float) and type(value) is int:
            value = knobs[knob] = float(value)
        if type(value) is not type(default):
            raise PlanError(f"{name}({knob}={value!r}): a value such as {default!r} belongs there")
    return Call(text.replace(" ", ""), recipe, knobs)


def _word(name: str, knob: str, value: Any, words: type[StrEnum]) -> StrEnum:
    if value not in list(words):
        raise PlanError(f"{name}({knob}={value}): one of {', '.join(words)} belongs there")
    return words(value)


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """`'ddp(bucket_bytes=1)'` -> ('ddp', {'bucket_bytes': 1}). Raises PlanError for a text that is no call, and
    for a name that is no recipe's."""
    if len(several := [plan for plan in apart(text)[0] if plan.strip()]) > 1:
        raise PlanError(
            f"{text!r} is {len(several)} plans where one is meant; give one of them, or all to compare, as "
            "--plans ddp,zero1 or as a list"
        )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        unit = re.search(r"(\w+)=[\d.]+ ?([kKMGT]i?B?|B)\b", text)
        how = f"{unit[1]} takes a number, as in {CALL}" if unit else f"write a name such as ddp or {CALL}"
        raise PlanError(f"{text!r} is no recipe call; {how}") from None
    name = tree.func if isinstance(tree, ast.Call) else tree
    if not isinstance(name, ast.Name) or (isinstance(tree, ast.Call) and (tree.args or _starred(tree))):
        raise PlanError(f"{text!r} is no recipe call; give knobs by name, such as {CALL}")
    if name.id not in RECIPES:
        meant = FAMILIAR.get(name.id.lower(), name.id.lower())
        none = "no recipe divides tensors, sequences or experts; " if meant in UNBUILT else ""
        nearest = "" if none else did_you_mean(meant, (*RECIPES, AUTO))
        if meant == AUTO:
            nearest = f"the plan {AUTO}, in small letters and without knobs, is the best that a search finds"
        hint = nearest or f"{none}there are {', '.join(RECIPES)}{others()}"
        raise PlanError(f"there is no recipe {name.id!r}; {hint}")
    keywords = tree.keywords if isinstance(tree, ast.Call) else []
    names = [str(keyword.arg) for keyword in keywords]
    values = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    if wide := next((each for each in values if isinstance(each, int) and each.bit_length() > WIDEST), 0):
        raise PlanError(f"{text[:60]!r} gives a number of {wide.bit_length()} bits; less than {MOST} is allowed")
    if twice := next((knob for knob in names if names.count(knob) > 1), ""):
        raise PlanError(f"{text!r} gives {twice} {names.count(twice)} times; give each knob once")
    return name.id, {str(k.arg): _literal(k.value, text) for k in keywords}


def apart(text: str) -> tuple[list[str], int]:
    """`'ddp,gpipe(microbatches=8)'` -> the texts between its commas, of which those inside parentheses do not count,
    and how many parentheses are left open (below 0: closed too often)."""
    texts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            texts.append("")
        else:
            texts[-1] += letter
    return texts, depth


def _starred(tree: ast.Call) -> bool:
    return any(keyword.arg is None for keyword in tree.keywords)


def _literal(node: ast.expr, text: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        # A bare word is a name such as none, gradients or fifo.
        if isinstance(node, ast.Name):
            return {"true": True, "false": False}.get(node.id, node.id)
        if _numbered(node):
            return ast.unparse(node).replace(" ", "")
        raise PlanError(f"{text!r}: {ast.unparse(node)} is no number, word or true/false") from None


def _numbered(node: ast.expr) -> bool:
    """Whether it is a word with numbers of its own, such as hierarchical(4) or topk(ratio=0.01), or a sum of such."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add) and all(
            isinstance(n, ast.Name) or _numbered(n) for n in (node.left, node.right)
        )
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return False
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    plain = [value.operand if isinstance(value, ast.UnaryOp) else value for value in values]
    return all(isinstance(value, ast.Constant | ast.Name) for value in plain)
