"""Stepping adjacent pieces as one tensor: the same bits, the same state by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor, optim

from partita.errors import TaskError
from partita.program.update_units import UNIT_BYTES, units_of
from partita.tracing.capture import capture
from partita.tracing.elements import Watched
from partita.tracing.optimizer import alone, optimizer_for, optimizer_spec, state_of_shapes
from partita.tracing.update_units import UpdateUnit, apart, groups_of, joined, parted, states_of
from tests.small import perceptron

Make = Callable[[Iterable[Tensor]], optim.Optimizer]
SHAPES = ((33, 7), (7,), (5, 3, 3), (1,), (129,), (64, 64))


def decayed_apart(parameters: Iterable[Tensor]) -> optim.Optimizer:
    """Two groups, by dimensions."""
    given = list(parameters)
    groups = [
        {"params": [p for p in given if (p.dim() > 1) is wide], "weight_decay": wide * 0.1} for wide in (True, False)
    ]
    return optim.AdamW([group for group in groups if group["params"]], lr=0.05)


RULES: dict[str, Make] = {
    "sgd": lambda ps: optim.SGD(ps, lr=0.1),
    "momentum": lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda ps: optim.Adam(ps, lr=0.01, weight_decay=0.1),
    "amsgrad": lambda ps: optim.Adam(ps, lr=0.01, amsgrad=True),
    "adamw": lambda ps: optim.AdamW(ps, lr=0.01),
    "foreach": lambda ps: optim.AdamW(ps, lr=0.01, foreach=True),
    "apart": decayed_apart,
    "rmsprop": lambda ps: optim.RMSprop(ps, lr=0.01, momentum=0.9, centered=True),
    "adagrad": lambda ps: optim.Adagrad(ps, lr=0.1),
    "adadelta": lambda ps: optim.Adadelta(ps, lr=1.0),
    "adamax": lambda ps: optim.Adamax(ps, lr=0.01),
    "nadam": lambda ps: optim.NAdam(ps, lr=0.01),
    "radam": lambda ps: optim.RAdam(ps, lr=0.01),
    "asgd": lambda ps: optim.ASGD(ps, lr=0.01),
    "rprop": lambda ps: optim.Rprop(ps, lr=0.01),
}


class Stepped:
    """Pieces of SHAPES in one tensor, their optimizer, and how it knows them."""

    def __init__(self, make: Make, dtype: torch.dtype) -> None:
        draw = torch.Generator().manual_seed(1)
        self.flat = torch.randn(sum(map(prod, SHAPES)), generator=draw).to(dtype)
        parts = torch.split(self.flat, [prod(shape) for shape in SHAPES])
        self.pieces = [part.view(shape) for part, shape in zip(parts, SHAPES, strict=True)]
        self.optimizer = make(self.pieces)
        self.units = apart(self.pieces)

    def step(self, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        gradient = torch.randn(len(self.flat), generator=draw).to(self.flat.dtype)
        parts = torch.split(gradient, [unit.tensor.numel() for unit in self.units])
        for unit, part in zip(self.units, parts, strict=True):
            unit.tensor.grad = part.view(unit.tensor.shape)
        self.optimizer.step()

    def arrange(self, how: Callable[..., tuple[UpdateUnit, ...]]) -> None:
        self.units = how(self.optimizer, self.pieces, self.units)

    def state(self) -> list[dict[str, Any]]:
        return states_of(self.optimizer, self.pieces, self.units)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", RULES)
def test_joined_pieces_have_the_bits_of_pieces(rule: str, dtype: torch.dtype) -> None:
    """CS-02, EX-06: joined ahead of the first step or between steps, parted and joined again; weights, state and
    settings by piece."""
    one, other = (Stepped(RULES[rule], dtype) for _ in range(2))
    for step in range(8):
        if step in (0, 4):
            other.arrange(joined)
        if step == 2:
            other.arrange(parted)
        one.step(step)
        other.step(step)
        assert torch.equal(one.flat, other.flat), step
        for mine, theirs in zip(one.state(), other.state(), strict=True):
            assert mine.keys() == theirs.keys()
            for key, value in mine.items():
                same = torch.equal(value, theirs[key]) if isinstance(value, Tensor) else value == theirs[key]
                assert same, (step, key)
    assert groups_of(one.optimizer, one.units) == groups_of(other.optimizer, other.units)
    assert len(other.units) == (5 if rule == "apart" else 1)


def test_what_counts_differently_is_not_joined() -> None:
    """As after a checkpoint of buckets that had taken unlike numbers of steps."""
    one, other = (Stepped(RULES["adam"], torch.float64) for _ in range(2))
    for each in (one, other):
        each.step(0)
        each.optimizer.state[each.pieces[1]]["step"] += 3
    other.arrange(joined)
    assert [(unit.start, unit.stop) for unit in other.units] == [(0, 1), (1, 2), (2, 6)]
    for step in (1, 2):
        one.step(step)
        other.step(step)
    assert torch.equal(one.flat, other.flat)


def test_numbers_stay_apart_and_a_piece_that_is_left_out_is_told() -> None:
    """A piece of no dimension has a state, its count, that looks as its moments do."""
    flat = torch.zeros(4, dtype=torch.float64)
    pieces = [flat[0], flat[1], flat[2:4]]
    optimizer = optim.Adam(pieces, lr=0.1)
    for piece in pieces:
        piece.grad = torch.ones_like(piece)
    optimizer.step()
    assert [(unit.start, unit.stop) for unit in joined(optimizer, pieces, apart(pieces))] == [(0, 1), (1, 2), (2, 3)]
    with pytest.raises(TaskError, match="leaves out 1 of 3 parameters that it is given"):
        groups_of(optim.SGD(pieces[:2], lr=0.1), apart(pieces))


def test_pieces_of_unlike_settings_in_their_state_stay_apart() -> None:
    """Also where these are no tensors."""
    one = Stepped(RULES["adam"], torch.float64)
    one.step(0)
    for k, piece in enumerate(one.pieces):
        one.optimizer.state[piece]["phase"] = "late" if k > 2 else "early"
    one.arrange(joined)
    assert [(unit.start, unit.stop) for unit in one.units] == [(0, 3), (3, 6)]


def put(index: Callable[[Tensor], Tensor], values: Callable[[Tensor], Tensor]) -> Callable[[Tensor], object]:
    def do(x: Tensor) -> None:
        x[index(x)] = values(x)

    return do


@pytest.mark.parametrize(
    ("do", "mixed"),
    [
        (lambda x: x.mul_(0.9).add_(x, alpha=2).addcdiv_(x, x + 1), False),
        (lambda x: torch._foreach_mul_([x, x], 0.9), False),
        (lambda x: torch._foreach_zero_([x, x]), False),
        (lambda x: (x.view(-1), x[0], x.t(), x.clone().zero_(), torch.zeros_like(x), x.new_full((2,), 1.0)), False),
        (put(lambda x: x > 0, lambda x: torch.zeros(())), False),
        (put(lambda x: x > 0, lambda x: x.flatten()[:2].clone()), True),
        (put(lambda x: torch.tensor([True, False]), lambda x: torch.zeros(())), True),
        (put(lambda x: torch.tensor([1]), lambda x: torch.zeros(())), True),
        (lambda x: x.norm(), True),
        (lambda x: x[0, :2].norm(), True),
        (lambda x: x[0, 0].norm(), False),
        (lambda x: torch._foreach_norm([x, x]), True),
        (lambda x: x.cumsum(0), True),
        (lambda x: x @ x.t(), True),
    ],
)
def test_what_mixes_elements_is_seen(do: Callable[[Tensor], object], mixed: bool) -> None:
    """Of a matrix, whose first row has a positive number or two."""
    with Watched() as seen:
        do(torch.tensor([[0.5, 2.0, -1.0], [-1.0, -2.0, -3.0]]))
    assert bool(seen.mixed) is mixed


def test_how_long_a_strip_is() -> None:
    small = UNIT_BYTES // 4
    assert units_of([small] * 9) == [(0, 4), (4, 8), (8, 9)]
    assert units_of([small, 2 * UNIT_BYTES, small, small]) == [(0, 1), (1, 2), (2, 4)]
    assert units_of([small, small, small], ["a", "a", "b"]) == [(0, 2), (2, 3)]
    assert units_of([]) == []


class Normed(optim.Optimizer):
    """A rule with the norms of whole tensors, under a name that does not say so."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in (p for group in self.param_groups for p in group["params"]):
            p.sub_(0.1 * p.grad / p.grad.norm())


class Together(Normed):
    """A rule with one norm over all tensors that it was given."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        norm = sum(float(p.grad.norm()) ** 2 for p in self.param_groups[0]["params"]) ** 0.5
        for p in self.param_groups[0]["params"]:
            p.sub_(0.1 * p.grad / norm)


class Shared(Normed):
    """A rate that all elements share: no operator mixes them, and a part of them goes faster."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        given = [p for group in self.param_groups for p in group["params"]]
        for p in given:
            p.sub_(p.grad / sum(each.numel() for each in given))


class First(Normed):
    """A rate by the first of the tensors that it is given."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        given = [p for group in self.param_groups for p in group["params"]]
        for p in given:
            p.sub_(p.grad / given[0].numel())


class Lifted(Normed):
    """Gradients that are small all together are made longer."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        given = [p for group in self.param_groups for p in group["params"]]
        norm = sum(float(p.grad.square().sum()) for p in given) ** 0.5
        for p in given:
            p.sub_(p.grad / min(norm, 1.0))


class Sized(Normed):
    """A rate by the size of each tensor."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in (p for group in self.param_groups for p in group["params"]):
            p.sub_(p.grad / p.numel())


def clipped(ps: Iterable[Tensor]) -> optim.Optimizer:
    """SGD behind a bound on the norm of all gradients that it is given."""
    pieces = list(ps)
    made = optim.SGD(pieces, lr=0.1)
    made.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_norm_(pieces, 0.05) and None)
    return made


def by_dimensions(ps: Iterable[Tensor]) -> list[dict[str, Any]]:
    """Matrices in one group, biases and scales in another, as is usual where decay is for the first."""
    pieces = list(ps)
    return [{"params": [p for p in pieces if (p.dim() > 1) is many]} for many in (True, False)]


class Later(optim.SGD):
    """Shampoo's kind: products of gradients are gathered from the first step on, and used from step 25 on."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in (p for group in self.param_groups for p in group["params"]):
            state, rows = self.state[p], p.grad.reshape(len(p), -1)
            state["step"] = state.get("step", 0) + 1
            state["rows"] = state.get("rows", 0.0) + rows @ rows.T
            move = torch.linalg.solve(state["rows"], rows) if state["step"] >= 25 else rows
            p.sub_(0.1 * move.view(p.shape))


class Bounded(optim.SGD):
    """A bound on the norm of each tensor's gradient that is seldom reached."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in (p for group in self.param_groups for p in group["params"]):
            p.sub_(0.1 * p.grad * (1e9 / p.grad.norm()).clamp(max=1.0))


def bounded_together(bound: float, dims: int = 0) -> Make:
    """SGD behind a bound on the norm of all gradients, or of those of tensors of so many dimensions."""

    def make(ps: Iterable[Tensor]) -> optim.Optimizer:
        pieces = list(ps)
        made, some = optim.SGD(pieces, lr=0.1), [p for p in pieces if not dims or p.dim() == dims]
        made.register_step_pre_hook(lambda *_: (torch.nn.utils.clip_grad_norm_(some, bound), None)[1])
        return made

    return make


class Kernels(optim.SGD):
    """Steps of one length for the kernels of convolutions."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in (p for group in self.param_groups for p in group["params"]):
            p.sub_(0.1 * p.grad / (p.grad.norm() if p.dim() == 4 else 1.0))


def by_place(ps: Iterable[Tensor]) -> optim.Optimizer:
    """Each tensor at a rate of its own, by its place among all."""
    return optim.SGD([{"params": [p], "lr": 0.1 * 0.8**k} for k, p in enumerate(ps)], lr=0.1)


MIXING: dict[str, Make] = {
    "normed": Normed, "muon": lambda ps: optim.Muon(ps, lr=0.1), "by groups": lambda ps: Normed(by_dimensions(ps)),
    "sized": Sized, "later": Later, "bounded": Bounded, "kernels": Kernels,
}  # fmt: skip
COUPLED: dict[str, Make] = {
    "together": Together, "shared": Shared, "first": First, "lifted": Lifted,
    "clipped": clipped, "bounded together": bounded_together(1000.0),
    "vectors together": bounded_together(0.05, dims=1), "kernels together": bounded_together(0.05, dims=4),
}  # fmt: skip


@pytest.mark.parametrize("rule", [*RULES, "by place", *MIXING, *COUPLED])
def test_a_rule_is_known_by_what_it_does(rule: str) -> None:
    """EX-06: also by what it does seldom, late, or to some tensors alone."""
    task = replace(perceptron(), optimizer=({"by place": by_place} | RULES | MIXING | COUPLED)[rule])
    told = optimizer_spec(task, "fp32")
    assert told.elementwise is (rule not in MIXING and rule not in COUPLED)
    assert told.alone is (rule not in COUPLED)
    if rule in RULES:
        assert told.joins


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("adam", (True, True, False, True, True)), ("foreach", (True, True, False, False, True)),
        ("fused", (True, False, True, False, True)), ("muon", (False, False, False, False, True)),
        ("shared", (False, False, False, False, False)),
    ],
)  # fmt: skip
def test_a_graph_says_of_its_rule_what_it_does(rule: str, said: tuple[bool, ...]) -> None:
    fused: dict[str, Make] = {"fused": lambda ps: optim.AdamW(ps, lr=0.01, fused=True)}
    told = optimizer_spec(replace(perceptron(), optimizer=(RULES | MIXING | COUPLED | fused)[rule]), "fp32")
    assert (told.elementwise, told.joins, told.fused, told.one_pass, told.alone) == said
    assert "step" not in {name for name, *_ in told.state}


def test_a_rule_that_takes_all_tensors_or_none_may_do_anything() -> None:
    def demanding(ps: Iterable[Tensor]) -> optim.Optimizer:
        given = list(ps)
        if len(given) < 5:
            raise ValueError("too few")
        return optim.SGD(given, lr=0.1)

    assert not alone(replace(perceptron(), optimizer=demanding))


def test_what_is_frozen_counts_as_trained_while_its_rule_is_made() -> None:
    seen: list[bool] = []

    def choosing(ps: Iterable[Tensor]) -> optim.Optimizer:
        given = list(ps)
        seen.extend(p.requires_grad for p in given)
        return optim.SGD(given, lr=0.1)

    parts = [torch.ones(2), torch.ones(2, requires_grad=True)]
    optimizer_for(replace(perceptron(), optimizer=choosing), parts)
    assert (seen, [part.requires_grad for part in parts]) == ([True, True], [False, True])


def test_state_by_rows_and_columns_is_that_of_the_model_s_own_shapes() -> None:
    """Adafactor keeps a row and a column of a matrix: 10 % of the small one by which it is known, 3 % here."""

    def model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(6, 200), torch.nn.ReLU(), torch.nn.Linear(200, 300))

    def rule(parameters: Iterable[Tensor]) -> optim.Optimizer:
        return optim.Adafactor(parameters, lr=0.01)

    task = replace(perceptron(), name="factored", model=model, optimizer=rule)
    real, optimizer = model(), None
    for p in real.parameters():
        p.grad = torch.ones_like(p)
    optimizer = rule(real.parameters())
    optimizer.step()
    kept = sum(
        v.numel() for state in optimizer.state.values() for v in state.values()
        if isinstance(v, Tensor) and v.numel() > 1
    )  # fmt: skip
    graph = capture(task)
    assert graph.optimizer.state_bytes(graph.trained_elements) == pytest.approx(4 * kept, abs=4)


class Halved(Normed):
    """Keeps half as many numbers as a weight has, and one of each row."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in (p for group in self.param_groups for p in group["params"]):
            self.state[p] |= {
                "half": torch.zeros(p.numel() // 2 + 1),
                "row": torch.zeros(len(p)),
                "count": torch.ones(()),
            }


def test_state_of_another_form_than_its_weight_counts_as_a_share_of_it() -> None:
    """39 numbers for the 77 of the small matrix, 4 for 7: so many for each of others; counts of one are left out."""
    found = state_of_shapes(replace(perceptron(), optimizer=Halved), "fp32", [(40, 20), (14,), (30, 10)])
    assert found == (("half", (405 + 152 + 8) / 1114, "float32"), ("row", (73 + 27 + 14) / 1114, "float32"))
