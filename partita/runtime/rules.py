"""Update rules that a plan may use instead of the task's, and the learning rates of all rules.

Their norms are those of whole tensors, so lowering never divides a tensor that such a rule updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from partita.errors import TaskError, first_line
from partita.graph.graph import Graph
from partita.kernels.adam import in_one_pass
from partita.plan.plan import Rule, Update
from partita.plan.rule import momentum_ahead, rate_factor
from partita.task import Task
from partita.tracing.copies import fakes_cloned
from partita.tracing.optimizer import optimizer_for

UP: Final = {"maximize": False}  # as torch's optimizers have it: uphill, with the gradient's sign turned


def norm(tensor: torch.Tensor) -> torch.Tensor:
    """The 2-norm, in fp32 where numbers are shorter: fp16 ends at 65504 (LB-07; Jia et al. 2018)."""
    short = tensor.dtype in (torch.float16, torch.bfloat16)
    found: torch.Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float32 if short else None)
    return found


class Lars(torch.optim.Optimizer):
    """Layer-wise adaptive rates (LB-03; You, Gitman & Ginsburg 2017). For a tensor w with gradient g, decay b:

    v <- m v + rate * trust |w| / (|g| + b |w|) * (g + b w);  w <- w - v;  the ratio is 1 where w or g is zero
    """

    def __init__(self, parameters: Any) -> None:
        # Schedules that move a momentum look here for the name of its setting.
        super().__init__(parameters, {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0, "trust": 1e-3} | UP)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step, with the gradients in `grad`."""
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is None:
                    continue
                g = w.grad.neg() if group["maximize"] else w.grad
                weight, gradient = norm(w), norm(g)
                decay = group["weight_decay"]
                trust = group["trust"] * weight / (gradient + decay * weight)
                ratio = torch.where((weight > 0) & (gradient > 0), trust, 1.0)
                state = self.state[w]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(w)
                moved = g.add(w, alpha=decay).mul_(group["lr"] * ratio)
                w.sub_(state["momentum_buffer"].mul_(group["momentum"]).add_(moved))


class Lamb(torch.optim.Optimizer):
    """Layer-wise adaptive moments (LB-04; You et al. 2019), the clipping function being the identity. For a tensor w:

    u = m^ / (sqrt(v^) + eps) + decay w;  w <- w - rate |w| / |u| u;  the ratio is 1 where w or u is zero

    m^ and v^ are Adam's bias-corrected moments.
    """

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0} | UP)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step, with the gradients in `grad`."""
        for group in self.param_groups:
            first, second = group["betas"]
            for w in group["params"]:
                if w.grad is None:
                    continue
                state = self.state[w]
                if not state:
                    state |= {"step": 0, "exp_avg": torch.zeros_like(w), "exp_avg_sq": torch.zeros_like(w)}
                state["step"] += 1
                g = w.grad.neg() if group["maximize"] else w.grad
                m = state["exp_avg"].lerp_(g, 1 - first)
                v = state["exp_avg_sq"].mul_(second).addcmul_(g, g, value=1 - second)
                root = (v / (1 - second ** state["step"])).sqrt_().add_(group["eps"])
                u = (m / (1 - first ** state["step"])).div_(root).add_(w, alpha=group["weight_decay"])
                weight, length = norm(w), norm(u)
                w.sub_(u.mul_(group["lr"] * torch.where((weight > 0) & (length > 0), weight / length, 1.0)))


EPS: Final = 1e-6  # You et al. 2019, where the task's optimizer has none, or (Adafactor) several
Groups = Sequence[tuple[Mapping[str, Any], Sequence[str]]]


def optimizer_of(
    task: Task, update: Update, parameters: Iterable[torch.Tensor], names: Sequence[str] = (), groups: Groups = ()
) -> torch.optim.Optimizer:
    """The task's optimizer, or that of the plan's rule with the settings of the task's: groups, rates, weight decay,
    momentum (or Adam's first beta), betas (or momentum and 0.999), eps, and whether it goes uphill.

    `names` are the weights of which `parameters` are parts, if they are; `groups` then tell in which group of the whole
    model's optimizer each one is, since a part may have other dimensions than its weight.
    """
    parts = list(parameters)
    own = made(task, parts)
    if groups:
        named = list(zip(parts, names, strict=True))
        own.param_groups[:] = [
            {**settings, "params": [part for part, name in named if name in members]} for settings, members in groups
        ]
    if update.rule is Rule.TASK:
        return own
    ruled = []
    for group in own.param_groups:
        momentum = group.get("momentum", group.get("betas", (0.9,))[0])
        settings = {key: group[key] for key in ("params", "lr")} | {"weight_decay": group.get("weight_decay", 0.0)}
        settings |= {"maximize": bool(group.get("maximize", False))}
        if update.rule is Rule.LARS:
            ruled.append(settings | {"momentum": momentum, "trust": update.trust})
        else:
            betas = group.get("betas", (momentum or 0.9, 0.999))
            eps = group.get("eps", EPS)
            ruled.append(settings | {"betas": betas, "eps": eps if isinstance(eps, float) else EPS})
    return (Lars if update.rule is Rule.LARS else Lamb)(ruled)


def schedule_of(task: Task, optimizer: torch.optim.Optimizer) -> Any:
    """The task's schedule of an optimizer that `optimizer_of` made; None where it has none. Raises TaskError."""
    if task.schedule is None:
        return None
    try:
        return task.schedule(optimizer)
    except Exception as error:
        raise TaskError(
            f"the schedule of {task.name!r} could not be made for the optimizer {type(optimizer).__name__} "
            f"({first_line(error)}); give one that takes it, or a plan without a rule of its own"
        ) from error


def schedule_state(schedule: Any) -> dict[str, Any]:
    """The schedule's state without functions, which the task builds anew; that of one that says none are its attributes
    but for the optimizer, as torch's have it."""
    state = schedule.state_dict() if hasattr(schedule, "state_dict") else vars(schedule)
    kept = {key: value for key, value in state.items() if not isinstance(value, torch.optim.Optimizer)}
    return {key: value for key, value in kept.items() if not callable(value)}


def load_schedule(schedule: Any, state: dict[str, Any]) -> None:
    """Give a schedule the state that another one had."""
    if hasattr(schedule, "load_state_dict"):
        schedule.load_state_dict(state)
    else:
        vars(schedule).update(state)


def made(task: Task, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """The task's optimizer of `parameters`, which takes its steps in one pass where it can. Raises TaskError."""
    return in_one_pass(optimizer_for(task, parameters))


def groups_among(task: Task, weights: Mapping[str, torch.Tensor]) -> Groups:
    """The parameter groups that the task's optimizer makes of all weights of a model: settings, and names of
    weights. None of them if there is only one, or if settings are tensors."""
    groups = made(task, list(weights.values())).param_groups
    names = {id(weight): name for name, weight in weights.items()}
    settings = [{key: value for key, value in group.items() if key != "params"} for group in groups]
    if len(groups) < 2 or any(isinstance(value, torch.Tensor) for one in settings for value in one.values()):
        return ()
    return [(one, [names[id(p)] for p in group["params"]]) for one, group in zip(settings, groups, strict=True)]


def whole_groups(task: Task, graph: Graph) -> Groups:
    """The same for a graph's weights, without allocating them."""
    return graph.once(("groups", task.optimizer), partial(_fake_groups, task, graph))


def _fake_groups(task: Task, graph: Graph) -> Groups:
    with FakeTensorMode(), fakes_cloned():
        return groups_among(task, _weights_like(graph))


def _weights_like(graph: Graph) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for p in graph.trainable:
        weights[p.name] = torch.nn.Parameter(torch.empty(p.tensor.shape_at(), dtype=getattr(torch, p.tensor.dtype)))
    return weights


def first_settings(task: Task, graph: Graph, update: Update) -> Groups:
    """The settings with which a run's optimizer begins, but for those that are tensors, and the names of the weights
    that they are for."""
    return graph.once(("settings", task.optimizer, update), partial(_first_settings, task, graph, update))


def _first_settings(task: Task, graph: Graph, update: Update) -> Groups:
    with FakeTensorMode(), fakes_cloned():
        weights = _weights_like(graph)
        groups = optimizer_of(task, update, weights.values()).param_groups
        names = {id(weight): name for name, weight in weights.items()}
        return [
            (
                {k: v for k, v in group.items() if k != "params" and not isinstance(v, torch.Tensor)},
                [names[id(weight)] for weight in group["params"]],
            )
            for group in groups
        ]


def step_at_rate(optimizer: torch.optim.Optimizer, update: Update, at: int = -1, share: float = 1.0) -> None:
    """Step an optimizer with each group's rate times the plan's factor for that step, which is `at` unless each call
    is one, and without momentum if the plan applies momentum before the codec. The settings are restored, since the
    task's schedule changes them.

    Gradients may be those of a `share` of a minibatch: then their mean makes a step at so much of the rate, of which
    nothing is left to do where steps are linear in gradients. Raises TaskError for an optimizer without a rate.
    """
    ahead = momentum_ahead(update)[0] > 0
    part = 1.0 if linear(optimizer) else share
    if not update.warmup and update.scale == 1.0 and not ahead and part == 1.0:
        optimizer.step()
        return
    held = [dict(group) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        taken = group.get("taken", 0)
        group["lr"] = _rate(optimizer, group) * rate_factor(update, taken if at < 0 else at) * part
        group["taken"] = taken + 1
    if part != 1.0:
        _divide(optimizer, part)
    messages = _without_momentum(optimizer) if ahead else {}
    optimizer.step()
    with torch.no_grad():
        for weight, (rate, message) in messages.items():
            weight.sub_(message * rate)
    for group, before in zip(optimizer.param_groups, held, strict=True):
        group |= {key: before[key] for key in ("lr", "momentum") if key in before}


def _rate(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> Any:
    if group.get("lr") is None:
        raise TaskError(
            f"the optimizer {type(optimizer).__name__} has no rate 'lr' in its groups, which the plan would multiply; "
            "give one that has, or a plan in which all workers make one step together at the task's own rate"
        )
    return group["lr"]


def linear(optimizer: torch.optim.Optimizer) -> bool:
    """Whether what steps change is linear in all gradients so far: SGD, also with momentum, without weight decay."""
    return type(optimizer) is torch.optim.SGD and not any(group["weight_decay"] for group in optimizer.param_groups)


def _divide(optimizer: torch.optim.Optimizer, part: float) -> None:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.grad is not None:
                weight.grad.div_(part)


def _without_momentum(optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, tuple[Any, torch.Tensor]]:
    """Make ready a step with gradients that have momentum already: weight decay alone goes through the optimizer's own,
    as in the code of Lin et al. (ICLR 2018). Weight -> (rate, gradient) of what is left to subtract after the step."""
    found: dict[torch.Tensor, tuple[Any, torch.Tensor]] = {}
    for group in optimizer.param_groups:
        if not group["weight_decay"]:
            group["momentum"] = 0.0
            continue
        for weight in group["params"]:
            if weight.grad is not None:
                found[weight] = -group["lr"] if group["maximize"] else group["lr"], weight.grad
                weight.grad = torch.zeros_like(weight.grad)
    return found
