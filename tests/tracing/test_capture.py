"""A captured graph is the step that eager autograd takes, at any batch size."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from partita.errors import CaptureError, InputError, TaskError
from partita.graph.batch import substitute
from partita.graph.graph import TANGENT
from partita.graph.operator import Phase, Ref
from partita.graph.tensor import Affine
from partita.tracing.capture import capture
from tests.tracing.eager import difference
from tests.tracing.models import (
    TASKS,
    Recurrent,
    classify,
    generate,
    gpt2,
    hugging_face,
    images,
    predict,
    rows,
    task,
    texts,
)

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", TASKS)
def test_the_graph_equals_eager_autograd_at_other_batch_sizes(name: str) -> None:
    given = TASKS[name]()
    graph = capture(given, precision="fp64")
    assert (graph.rung, graph.symbolic, graph.blind) == ("dispatch", True, "")
    for batch in (2, 8):
        assert difference(given, graph, batch) < 1e-12


def test_operators_are_in_order_forward_first_and_tell_where_they_come_from() -> None:
    graph = capture(gpt2())
    known = set(graph.leaves)
    for operator in graph.operators:
        assert all(ref.name in known for ref in operator.reads())
        known.add(operator.name)
    phases = [operator.phase for operator in graph.operators]
    assert phases == sorted(phases, key=[Phase.FORWARD, Phase.BACKWARD].index)
    made = next(
        o for o in graph.operators if o.module == "transformer.h.1.mlp.c_fc" and o.target == "aten.addmm.default"
    )
    assert made.source.startswith("transformers/pytorch_utils.py:")
    derivative = next(o for o in graph.operators if o.twin == made.name and o.target == "aten.mm.default")
    assert (derivative.phase, derivative.module) == (Phase.BACKWARD, made.module)


def test_tied_weights_are_one_parameter_with_an_alias() -> None:
    graph = capture(gpt2())
    tied = next(p for p in graph.parameters if p.name == "transformer.wte.weight")
    assert tied.aliases == ("lm_head.weight",)
    assert "lm_head.weight" not in dict(graph.gradients)


def test_what_follows_the_batch_is_affine_and_substitution_gives_numbers() -> None:
    graph = capture(task("linear", lambda: nn.Linear(6, 3)), batch=16)
    assert graph.batch == 16
    assert graph.inputs[0][1].shape == (Affine(1), 6)
    fixed = substitute(graph, 9)
    assert (fixed.inputs[0][1].shape, fixed.batch, fixed.symbolic) == ((9, 6), 9, False)
    with pytest.raises(InputError, match="9 samples only, 10 were asked"):
        substitute(fixed, 10)


class Wide(nn.Module):
    """A frozen layer, an unused one, a plain tensor that is no buffer, a number read out of a tensor at build time."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = [x.item() for x in torch.linspace(0, 0.1, 3)]
        self.scale = torch.arange(6.0).double()
        self.frozen, self.unused, self.last = nn.Linear(6, 6), nn.Linear(2, 2), nn.Linear(6, 3)
        self.frozen.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.last(self.frozen(x) * self.scale) * (1 + self.rates[1])


class Assigns(nn.Module):
    """A buffer that is assigned, an integer buffer changed in place, in-place writes through views."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, x: Any) -> Any:
        h = self.last(x)
        self.mean = self.mean * 0.9 + h.detach().mean(0) * 0.1
        self.steps += 1
        y = h.clone()
        y[:, 0] = 0
        y[:, 1:] *= 2
        return y


def weighted(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum"), batch[1].numel()


def test_frozen_unused_and_plain_tensors() -> None:
    given = task("wide", Wide)
    graph = capture(given, precision="fp64")
    assert set(dict(graph.gradients)) == {"last.weight", "last.bias"}
    assert {p.name for p in graph.parameters if not p.trainable} == {"frozen.weight", "frozen.bias"}
    assert difference(given, graph, 3) < 1e-12


def test_buffers_become_mutations() -> None:
    given = task("assigns", Assigns)
    graph = capture(given, precision="fp64")
    assert set(dict(graph.mutations)) == {"mean", "steps"}
    assert {b.name: b.persistent for b in graph.buffers} == {"mean": True, "steps": False}
    assert difference(given, graph, 3) < 1e-12


def test_a_sum_and_weight_loss_has_a_weight_that_follows_the_batch() -> None:
    given = task("weighted", lambda: nn.Linear(6, 3), weighted)
    graph = capture(given, precision="fp64")
    assert graph.symbolic
    assert graph.weight is not None
    assert difference(given, graph, 3) < 1e-12


@pytest.mark.parametrize("weight", [3.0, torch.full((1,), 3.0)], ids=["number", "tensor"])
def test_a_loss_and_a_weight_of_one_element_are_scalars(weight: Any) -> None:
    given = task("shaped", linear, lambda m, b: (m(b[0]).sum().reshape(1, 1), weight))
    graph = capture(given, precision="fp64")
    assert graph.weight is not None
    assert (graph.tensor(graph.loss).shape, graph.tensor(graph.weight).shape) == ((), ())
    assert difference(given, graph, 3) < 1e-12


def test_a_number_of_samples_made_a_tensor_follows_the_batch() -> None:
    given = task("counts", lambda: nn.Linear(6, 3), lambda m, b: m(b[0]).sum() / torch.tensor(len(b[0]) * 2.0))
    assert difference(given, capture(given, precision="fp64"), 3) < 1e-12


def test_leaves_that_are_no_tensors_are_closed_over() -> None:
    data = [{"x": x, "y": y, "note": "text", "k": 3} for x, y in rows()]
    given = task("dict", lambda: nn.Linear(6, 3), lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), data)
    graph = capture(given, precision="fp64")
    assert [name for name, _ in graph.inputs] == ["input.0", "input.1", "input.2"]
    assert difference(given, graph, 3) < 1e-12


def test_activation_checkpointing_is_seen_through() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            kept = torch.utils.checkpoint.checkpoint(lambda q: F.gelu(self.first(q)), x, use_reentrant=False)
            return self.last(kept)

    given = task("kept", Kept)
    assert difference(given, capture(given, precision="fp64"), 3) < 1e-12


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda m, b: (m(b[0]) @ m(b[0]).T).reshape(-1).square().mean(), "does not follow the number of samples"),
        (lambda m, b: (m(b[0]) @ m(b[0]).T).mean(), "does not follow the number of samples linearly, as 11 show"),
    ],
)
def test_a_step_that_no_law_covers_holds_for_one_batch_and_says_so(loss: Any, words: str) -> None:
    given = task("stiff", lambda: nn.Linear(6, 3), loss)
    graph = capture(given, precision="fp64")
    assert not graph.symbolic
    assert words in graph.blind
    assert difference(given, graph, 4) < 1e-12


def test_a_step_that_goes_over_its_samples_one_by_one_divides_as_one_operator() -> None:
    graph = capture(task("loop", lambda: nn.Linear(6, 3), lambda m, b: torch.stack([m(row) for row in b[0]]).mean()))
    assert (graph.rung, graph.symbolic) == ("opaque", True)
    assert "it is not one step for any number of samples (" in graph.blind
    assert "operators on 5 samples" in graph.blind


def test_a_number_that_follows_the_batch_with_a_rest_is_seen_at_a_third_size() -> None:
    given = task("rest", lambda: nn.Linear(6, 3), lambda m, b: m(b[0]).square().sum() / (2 * len(b[0]) - 1))
    graph = capture(given, precision="fp64")
    assert graph.symbolic
    assert difference(given, graph, 3) < 1e-12


@pytest.mark.parametrize("over", [(0,), (0, 1)])
def test_what_a_variance_over_samples_divides_by_follows_their_number(over: tuple[int, ...]) -> None:
    given = task("spread", lambda: nn.Linear(6, 3), lambda m, b: F.relu(1 - m(b[0]).std(over)).mean())
    graph = capture(given, precision="fp64")
    assert graph.symbolic
    assert max(difference(given, graph, samples) for samples in (2, 5)) < 1e-12


class Taught(nn.Module):
    """A frozen teacher that follows the student, in the forward pass."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        self.student, self.teacher, self.kept = nn.Linear(6, 3), nn.Linear(6, 3).requires_grad_(False), kept
        if kept == "buffers":
            for name in ("weight", "bias"):
                value = self.teacher._parameters.pop(name)
                assert value is not None
                self.teacher.register_buffer(name, value.detach())

    def forward(self, x: Any) -> Any:
        with torch.set_grad_enabled(self.kept == "recorded"):
            for name, own in self.student.named_parameters():
                mine = getattr(self.teacher, name)
                if self.kept == "data":
                    mine.data = 0.9 * mine.data + 0.1 * own.data
                elif self.kept == "shape":
                    mine.data = own.data[:1]
                else:
                    mine.mul_(0.9).add_(own, alpha=0.1)
        return self.student(x) - self.teacher(x)


@pytest.mark.parametrize("kept", ["parameters", "data", "buffers"])
def test_a_teacher_that_moves_in_the_forward_pass_is_kept_in_buffers(kept: str) -> None:
    given = task("taught", partial(Taught, kept))
    graph = capture(given, precision="fp64")
    assert graph.rung == "dispatch"
    assert [p.name for p in graph.parameters] == ["student.weight", "student.bias"]
    assert {name for name, _ in graph.mutations} == {"teacher.weight", "teacher.bias"}
    assert difference(given, graph, 3) < 1e-12


def test_a_teacher_that_would_be_trained_is_refused() -> None:
    with pytest.raises(TaskError, match=r"'teacher\.weight', which is frozen, .* change it under torch\.no_grad"):
        capture(task("taught", partial(Taught, "recorded")))


def test_data_of_another_shape_is_no_traced_step() -> None:
    graph = capture(task("taught", partial(Taught, "shape")))
    assert graph.rung == "opaque"
    assert "assign values of the same shape and dtype" in graph.blind


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last, self.norm = nn.Linear(6, 3), nn.BatchNorm1d(6)

    def forward(self, x: Any) -> Any:
        x = self.norm(x)
        return self.last(x) if x.sum() > 0 else self.last(-x)


def test_the_opaque_rung_takes_what_cannot_be_traced() -> None:
    graph = capture(task("branches", Branches))
    assert (graph.rung, graph.symbolic) == ("opaque", True)
    assert re.search(r"a number that samples hold at test_capture.py:\d+; let tensors decide", graph.blind)
    assert [o.target for o in graph.operators] == ["partita.opaque_forward", "partita.opaque_backward"]
    assert graph.inputs[0][1].shape == (Affine(1), 6)
    assert dict(graph.gradients)["last.bias"] == Ref("opaque_backward_0", 1)
    assert set(dict(graph.mutations)) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert all(graph.tensor(ref) for ref in graph.results())


class Drawn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        mean = self.last(x)
        return torch.distributions.Normal(mean, mean.exp()).rsample()


def test_a_draw_from_a_distribution_is_traced() -> None:
    before = torch.distributions.Distribution._validate_args
    graph = capture(task("drawn", Drawn))
    assert (graph.rung, graph.symbolic, graph.blind) == ("dispatch", True, "")
    assert torch.distributions.Distribution._validate_args is before


@torch.library.custom_op("partita_tests::unknown", mutates_args=())
def unknown(value: torch.Tensor) -> torch.Tensor:
    """An operator of the user's that has no fake kernel."""
    return value.sin()


unknown.register_autograd(lambda ctx, grad: grad, setup_context=lambda ctx, inputs, output: None)


def test_an_operator_without_a_fake_kernel_is_named() -> None:
    graph = capture(task("custom", lambda: nn.Linear(6, 3), lambda m, b: unknown(m(b[0])).mean()))
    assert graph.rung == "opaque"
    assert "unknown" in graph.blind


def test_no_memory_is_taken_for_the_model() -> None:
    def vast() -> Any:
        return nn.Sequential(nn.Linear(6, 300_000), nn.Linear(300_000, 300_000))

    graph = capture(task("vast", vast, lambda m, b: m(b[0]).mean()))
    assert graph.rung == "dispatch"
    assert graph.parameter_elements > 9e10


class Single(nn.Linear):
    """Looks at its samples, and makes a tensor of fp32 whatever it is given."""

    def forward(self, x: Any) -> Any:
        return super().forward(torch.tensor(x.tolist()))


def test_what_fails_in_fp64_alone_is_not_told_to_work_on_its_own() -> None:
    given = task("single", lambda: Single(6, 3))
    assert capture(given).rung == "opaque"
    with pytest.raises(CaptureError, match=r"failed in fp64 on a batch of 2 .*; make it work .* in fp64 too"):
        capture(given, precision="fp64")


def test_an_opaque_model_beyond_the_memory_is_refused() -> None:
    def loss(model: Any, batch: Any) -> Any:
        return model(batch[0]).mean() if batch[0].sum() > 0 else model(-batch[0]).mean()

    with pytest.raises(CaptureError, match="GiB are free"):
        capture(task("vast", lambda: nn.Sequential(nn.Linear(6, 2_000_000), nn.Linear(2_000_000, 2_000_000)), loss))


def test_attention_and_recurrences_stay_whole() -> None:
    given = hugging_face("LlamaForCausalLM", generate, texts(), vocab_size=61, num_key_value_heads=2, use_cache=False)
    targets = [o.target for o in capture(given).operators]
    assert targets.count("aten._scaled_dot_product_flash_attention_for_cpu.default") == 2
    for kind, name in ((nn.LSTM, "lstm"), (nn.GRU, "gru")):
        targets = [o.target for o in capture(task(name, partial(Recurrent, kind), predict, texts())).operators]
        assert targets.count(f"partita.{name}_layer.default") == 2
        assert targets.count(f"partita.{name}_layer_backward.default") == 2


def test_capture_leaves_no_trace_in_the_process() -> None:
    shared = nn.Linear(6, 3)
    given, before = task("shared", lambda: shared), torch.get_rng_state()
    capture(given, precision="fp64")
    assert torch.equal(torch.get_rng_state(), before)
    assert type(shared.weight) is nn.Parameter
    assert not shared._forward_hooks
    assert torch.get_default_dtype() is torch.float32
    assert not torch.compiler.is_compiling()
    assert not torch.compiler.is_exporting()


def test_two_captures_are_equal() -> None:
    assert capture(TASKS["convnet"]()) == capture(TASKS["convnet"]())


def in_place_on_a_parameter(model: Any, batch: Any) -> Any:
    with torch.no_grad():
        model.weight.clamp_(-0.1, 0.1)
    return classify(model, batch)


def linear() -> Any:
    return nn.Linear(6, 3)


def listed() -> Any:
    model = linear()
    model.input = nn.ParameterList([torch.ones(3)])
    return model


def tangent() -> Any:
    model = linear()
    model.register_buffer(TANGENT, torch.ones(3))
    return model


BAD: dict[str, tuple[Any, Any, Any, type[Exception], str]] = {
    "no module": (lambda: 3, classify, None, TaskError, "returned int; return a torch.nn.Module"),
    "no parameters": (nn.ReLU, classify, None, TaskError, "has no parameters"),
    "all frozen": (lambda: linear().requires_grad_(False), classify, None, TaskError, "no parameter of"),
    "named like a sample": (listed, classify, None, TaskError, "called 'input.0'"),
    "named like a gradient": (tangent, classify, None, TaskError, f"called '{TANGENT}'"),
    "no scalar": (linear, lambda m, b: m(b[0]), None, TaskError, "shape \\[5, 3\\]"),
    "detached": (linear, lambda m, b: m(b[0]).detach().mean(), None, TaskError, "detached"),
    "no float": (linear, lambda m, b: m(b[0]).argmax(), None, TaskError, r"shape \[\] and dtype torch.int64"),
    "two weights": (linear, lambda m, b: (m(b[0]).sum(), torch.ones(2)), None, TaskError, "return two scalars"),
    "no tensor": (linear, lambda m, b: 0.5, None, TaskError, "is of type float"),
    "missing input": (linear, lambda m, b: m().mean(), None, CaptureError, "missing 1 required positional argument"),
    "wrong shape": (lambda: nn.Linear(5, 3), classify, None, CaptureError, "2x6 and 5x3"),
    "ragged": (linear, classify, [torch.zeros(i + 1) for i in range(8)], TaskError, "could not be made a batch"),
    "in place": (
        linear, in_place_on_a_parameter, None, TaskError, "'weight' in place; bound what it reads instead",
    ),
    "sparse": (
        lambda: nn.EmbeddingBag(10, 3, sparse=True), lambda m, b: m(b[1][:, None]).mean(), None, TaskError,
        "sparse gradient",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_gets_one_sentence(name: str) -> None:
    model, loss, data, error, words = BAD[name]
    with pytest.raises(error, match=words) as raised:
        capture(task(name, model, loss, data))
    assert "\n" not in str(raised.value)


def test_an_unknown_precision_and_a_broken_optimizer_are_refused() -> None:
    with pytest.raises(TaskError, match="allowed are fp64"):
        capture(task("linear", linear), precision="fp12")
    with pytest.raises(TaskError, match="optimizer of 'linear'"):
        capture(task("linear", linear, optimizer=lambda parameters: None))


@pytest.mark.parametrize(
    ("optimizer", "name", "state", "elementwise"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "SGD", (), True),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "SGD", (("momentum_buffer", 1.0, "float32"),), True),
        (torch.optim.Adam, "Adam", (("exp_avg", 1.0, "float32"), ("exp_avg_sq", 1.0, "float32")), True),
        (torch.optim.Muon, "Muon", (("momentum_buffer", 1.0, "float32"),), False),
    ],
)
def test_the_optimizer_is_described(optimizer: Any, name: str, state: Any, elementwise: bool) -> None:
    found = capture(task("linear", linear, optimizer=optimizer)).optimizer
    assert (found.name, found.state, found.elementwise) == (name, state, elementwise)


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_short_precisions(precision: str, dtype: str) -> None:
    graph = capture(TASKS["resnet"](), precision=precision)
    assert graph.rung == "dispatch"
    assert graph.tensor(graph.loss).dtype == dtype
    assert images()[0][0].dtype is torch.float32
