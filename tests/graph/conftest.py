"""A capture for tests that want real joint graphs: export, then the joint graph, at two batch sizes, unified."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.utils._pytree import tree_flatten, tree_unflatten

from partita.graph.graph import Constant, Graph, Parameter
from partita.graph.operator import Operator, Phase, Ref, Symbol
from partita.graph.tensor import Affine, Tensor

BATCHES = (5, 7)


class Step(torch.nn.Module):
    def __init__(self, model: Any, loss: Any, spec: Any) -> None:
        super().__init__()
        self.model, self.loss, self.spec = model, loss, spec

    def forward(self, *leaves: Any) -> Any:
        return self.loss(self.model, tree_unflatten(list(leaves), self.spec))


def traced(model: Any, loss: Any, batch: Any) -> Any:
    leaves, spec = tree_flatten(batch)
    step = Step(model, loss, spec)
    exported = torch.export.export(step, tuple(leaves), strict=False).module()
    with ExitStack() as stack:
        return aot_export_joint_with_descriptors(stack, exported, tuple(leaves)).graph_module.graph


def literal(value: Any, names: dict[str, Ref]) -> Any:
    if isinstance(value, torch.fx.Node):
        return names[value.name]
    if isinstance(value, list | tuple):
        return tuple(literal(v, names) for v in value)
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return Symbol(type(value).__name__, str(value).removeprefix("torch."))
    return value


def tensor(value: Any) -> Tensor | None:
    if not isinstance(value, torch.Tensor):
        return None
    strides = () if value.is_contiguous() else tuple(value.stride())
    return Tensor(tuple(value.shape), str(value.dtype).removeprefix("torch."), strides)


def converted(fx: Any, name: str, batch: int) -> Graph:
    names: dict[str, Ref] = {}
    parameters, inputs, constants, operators = [], [], [], []
    phase = Phase.FORWARD
    for node in fx.nodes:
        names[node.name] = Ref(node.name)
        kind = type(node.meta.get("desc")).__name__
        if node.op == "placeholder":
            found = tensor(node.meta["val"])
            assert found is not None
            if kind == "ParamAOTInput":
                parameters.append(Parameter(node.name, found))
            elif kind == "PlainAOTInput":
                inputs.append((node.name, found))
            else:
                constants.append(Constant(node.name, found))
        elif node.op == "get_attr":
            found = tensor(getattr(fx.owning_module, node.target))
            assert found is not None
            constants.append(Constant(node.name, found))
        elif node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem":
            source, place = node.args
            names[node.name] = Ref(source.name, place)
        elif node.op == "call_function":
            reads = [n.name for n in node.all_input_nodes]
            if any(n.startswith("tangents") for n in reads):
                phase = Phase.BACKWARD
            value = node.meta.get("val")
            several = isinstance(value, list | tuple)
            outputs = tuple(tensor(v) for v in value) if several else (tensor(value),)
            operators.append(
                Operator(
                    node.name, str(node.target), literal(node.args, names),
                    tuple((k, literal(v, names)) for k, v in node.kwargs.items()), outputs, several, phase,
                )
            )  # fmt: skip
        elif node.op == "output":
            return finished(name, batch, operators, parameters, inputs, constants, node, names)
    raise AssertionError("no output")


def finished(
    name: str, batch: int, operators: Any, parameters: Any, inputs: Any, constants: Any, node: Any, names: Any
) -> Graph:
    gradients, mutations, loss = [], [], Ref("")
    described = tree_flatten(node.meta["desc"], is_leaf=lambda d: hasattr(d, "expr"))[0]
    for out, desc in zip(tree_flatten(node.args)[0], described, strict=True):
        kind = type(desc).__name__
        if kind == "PlainAOTOutput":
            loss = names[out.name]
        elif kind == "GradAOTOutput" and out is not None:
            gradients.append((desc, names[out.name]))
        elif kind == "InputMutationAOTOutput":
            mutations.append((out.name, names[out.name]))
    order = {}
    for n in node.graph.nodes:
        if n.op == "placeholder":
            order[n.meta["desc"]] = n.name
    return Graph(
        name, batch, tuple(operators), tuple(parameters), (), tuple(constants), tuple(inputs), loss, None,
        tuple((order[d.grad_of], r) for d, r in gradients), tuple(mutations),
    )  # fmt: skip


def unified(a: Any, b: Any) -> Any:
    """The value that is `a` at the first batch size and `b` at the second."""
    if isinstance(a, tuple):
        return tuple(unified(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Tensor):
        strides = unified(a.strides, b.strides) if len(a.strides) == len(b.strides) else ()
        return Tensor(unified(a.shape, b.shape), a.dtype, strides)
    if type(a) is int and a != b:
        each = (b - a) // (BATCHES[1] - BATCHES[0])
        return Affine(each, a - each * BATCHES[0])
    return a


def joint(task: Any) -> Graph:
    torch.manual_seed(0)
    model = task.model()
    graphs = []
    for size in BATCHES:
        batch = torch.utils.data.default_collate([task.data[i] for i in range(size)])
        graphs.append(converted(traced(model, task.loss, batch), task.name, size))
    first, second = graphs
    operators = tuple(
        Operator(a.name, a.target, unified(a.arguments, b.arguments), unified(a.keywords, b.keywords),
                 unified(a.outputs, b.outputs), a.several, a.phase)
        for a, b in zip(first.operators, second.operators, strict=True)
    )  # fmt: skip
    inputs = unified(first.inputs, second.inputs)
    pairs = zip(first.constants, second.constants, strict=True)
    constants = tuple(Constant(a.name, unified(a.tensor, b.tensor)) for a, b in pairs)
    return Graph(first.name, BATCHES[0], operators, first.parameters, (), constants, inputs, first.loss, None,
                 first.gradients, first.mutations)  # fmt: skip


@pytest.fixture(scope="session")
def captured() -> Callable[[Any], Graph]:
    """`captured(task)` is the task's Graph; kept, so that tests share the work."""
    kept: dict[str, Graph] = {}

    def capture(task: Any) -> Graph:
        if task.name not in kept:
            kept[task.name] = joint(task)
        return kept[task.name]

    return capture
