"""Every built-in task builds, its samples fit its model, and real data is learnt."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.flop_counter import FlopCounterMode

from partita.errors import TaskError
from partita.task import Task
from partita.tracing.capture import capture
from partita.tracing.prepare import read_batch
from partita.zoo.configs import CONFIGS
from partita.zoo.convolutional import convnet_8m, digits_cnn
from partita.zoo.data import Tokens, digits, library_text
from partita.zoo.hugging_face import Labelled, Masked, Pairs, family_of, hugging_face, token_loss
from partita.zoo.names import NAMES
from partita.zoo.tasks import TASKS, built_in, from_config

MILLIONS = {
    "digits-cnn": 0.195, "convnet-8m": 8.56, "bytes-gpt": 0.87, "alexnet": 61.1, "vgg16": 138.4, "vgg16-32": 15.2,
    "resnet50": 25.6, "inception3": 23.8, "gpt2-small": 124.4, "gpt2-medium": 354.8, "gpt2-xl": 1557.6,
    "llama-5m": 4.85, "llama3-8b": 8030.3, "llama3-70b": 70553.7, "bert-large": 335.2,
}  # fmt: skip
GIANTS = ("gpt3-175b",)
# Parameters and multiplications (in billions, of one sample) as torchvision's pages have them.
PUBLISHED = {
    "alexnet": (61_100_840, 0.71), "vgg16": (138_357_544, 15.47), "resnet50": (25_557_032, 4.09),
    "inception3": (23_834_568, 5.71),
}  # fmt: skip
# As transformers counts them, weights that are tied once: width, layers, words, places.
GPTS = {
    "gpt2-small": (768, 12, 50257, 1024), "gpt2-medium": (1024, 24, 50257, 1024), "gpt2-xl": (1600, 48, 50257, 1024),
    "gpt3-175b": (12288, 96, 50257, 2048),
}  # fmt: skip
EXACT = {"llama3-8b": 8_030_261_248, "llama3-70b": 70_553_706_496}  # Meta's cards round these to 8.03 and 70.6 billion


def made(name: str) -> Task:
    if name in CONFIGS:
        pytest.importorskip("transformers")
    task = built_in(name)
    assert task is not None
    return task


@pytest.mark.parametrize("name", [name for name in NAMES if name not in GIANTS])
def test_sizes_and_samples(name: str) -> None:
    task = made(name)
    with torch.device("meta"):
        model = task.model()
    count = sum(p.numel() for p in model.parameters()) / 1e6
    assert name not in MILLIONS or count == pytest.approx(MILLIONS[name], rel=0.01)
    first, again, other = task.data[3], task.data[3], task.data[4]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert len(task.validation) > 0


def parameters_of(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_of_images_is_the_published_one(name: str) -> None:
    """To the last parameter, and by strides and paddings too, which its multiplications show."""
    task, (parameters, billions) = made(name), PUBLISHED[name]
    with torch.device("meta"):
        model = task.model().eval()
    with FlopCounterMode(display=False) as counted:
        scores = model(task.data[0][0][None].to("meta"))
    assert (scores.shape, parameters_of(model)) == ((1, 1000), parameters)
    assert counted.get_total_flops() / 2e9 == pytest.approx(billions, abs=0.005)


@pytest.mark.parametrize("name", [*GPTS, *EXACT])
def test_a_model_of_language_is_the_published_one(name: str) -> None:
    """A layer of GPT-2 has 12 width^2 weights and 13 width biases and scales."""
    with torch.device("meta"):
        found = parameters_of(made(name).model())
    if name in EXACT:
        assert found == EXACT[name]
    else:
        width, layers, words, places = GPTS[name]
        assert found == layers * (12 * width**2 + 13 * width) + (words + places + 2) * width


def test_an_lstm_has_four_gates_a_layer() -> None:
    """Two layers, and GNMT's five, of which the first has two directions of half the width; words are bytes."""
    layer = {width: 4 * (2 * width**2 + 2 * width) for width in (256, 650)}
    halves = 2 * 4 * (128 * 256 + 128**2 + 2 * 128)
    wanted = {
        "lstm": 256 * 256 + 2 * layer[256] + 257 * 256, "rnnlm": 256 * 650 + 2 * layer[650] + 651 * 256,
        "gnmt": 256 * 256 + halves + 4 * layer[256] + 513 * 256,
    }  # fmt: skip
    assert {name: parameters_of(made(name).model()) for name in wanted} == wanted


def test_the_small_decoder_has_the_layers_of_gpt_2_and_a_head_without_biases() -> None:
    assert parameters_of(made("bytes-gpt").model()) == 4 * (12 * 128**2 + 13 * 128) + (256 + 64 + 2 + 256) * 128


@pytest.mark.parametrize("name", ["bytes-gpt", "llama-5m", "lstm", "gnmt", "digits-cnn", "unet"])
def test_a_sample_does_not_depend_on_those_beside_it(name: str) -> None:
    torch.manual_seed(0)
    task = made(name)
    model, batch = task.model().eval(), torch.stack([task.data[i][0] for i in range(3)])
    together, alone = (getattr(out, "logits", out) for out in (model(batch), model(batch[2:])))
    torch.testing.assert_close(together[2:], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bytes-gpt", "llama-5m", "lstm"])
def test_a_decoder_sees_no_later_byte(name: str) -> None:
    torch.manual_seed(0)
    task = made(name)
    model, tokens = task.model().eval(), task.data[0][0][None]
    other = tokens.clone()
    other[0, 40:] = (other[0, 40:] + 1) % 256
    one, two = (getattr(out, "logits", out) for out in (model(tokens), model(other)))
    torch.testing.assert_close(one[:, :40], two[:, :40])
    assert not torch.allclose(one[:, 40:], two[:, 40:])


def test_samples_that_validate_are_no_training_samples() -> None:
    pytest.importorskip("transformers")
    for name in ("vgg16-32", "unet", "gpt2-small"):
        task = made(name)
        assert not any(torch.equal(task.data[i][0], task.validation[i][0]) for i in range(3))


def test_a_share_of_tokens_is_hidden_and_only_these_are_told() -> None:
    draw = Masked(length=40, vocabulary=30)
    for seed in range(3):
        tokens, targets = draw(torch.Generator().manual_seed(seed))
        hidden = tokens == 0
        assert int(hidden.sum()) == 6
        assert torch.equal(targets != -100, hidden)
        assert bool((targets[hidden] > 0).all())
        logits = torch.randn(1, 40, 30)
        wanted = torch.nn.functional.cross_entropy(logits[0, hidden], targets[hidden])
        torch.testing.assert_close(token_loss(logits, targets[None]), wanted)


def test_targets_follow_by_one_and_a_text_ends_in_no_padding() -> None:
    draw = torch.Generator().manual_seed(0)
    tokens, following = Tokens(9, 30)(draw)
    assert torch.equal(tokens[1:], following[:-1])
    source, shifted, target = Pairs(9, 30)(draw)
    assert torch.equal(source.flip(0), target)
    assert torch.equal(shifted[1:], target[:-1])
    assert all(bool(Labelled(9, 2, 2)(draw)[0].all()) for _ in range(9))


QUICK = ("digits-cnn", "convnet-8m", "bytes-gpt", "vgg16-32", "lstm", "unet")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]
)
def test_every_name_captures_on_tensors_without_data(name: str) -> None:
    """As operators that hold for any number of samples; the largest take more memory than the machine has."""
    graph = capture(made(name))
    assert (graph.rung, graph.symbolic, graph.blind) == ("dispatch", True, "")
    assert graph.parameter_elements / 1e6 == pytest.approx(MILLIONS.get(name, graph.parameter_elements / 1e6), rel=0.01)


LEARNT = [("digits-cnn", 25, 64, 1.2), ("bytes-gpt", 15, 8, 3.9)]


def trained(task: Task, steps: int, batch_size: int) -> list[float]:
    torch.manual_seed(0)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    order = torch.randperm(len(task.data), generator=torch.Generator().manual_seed(0)).tolist()
    losses = []
    starts = itertools.cycle(range(0, len(order) - batch_size + 1, batch_size))
    for start in itertools.islice(starts, steps):
        rows = order[start : start + batch_size]
        optimizer.zero_grad()
        loss = task.loss(model, torch.utils.data.default_collate([task.data[row] for row in rows]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("name", "steps", "batch_size", "below"), LEARNT)
def test_real_data_is_learnt(name: str, steps: int, batch_size: int, below: float) -> None:
    losses = trained(made(name), steps, batch_size)
    assert sum(losses[-3:]) / 3 < below < losses[0]


def test_digits_are_all_there_once() -> None:
    training, validation = digits()
    assert (len(training), len(validation)) == (1618, 179)
    assert training[0][0].shape == (1, 8, 8)
    every = torch.cat([one.columns[0] for one in (training, validation)])
    assert (float(every.min()), float(every.max())) == (0.0, 1.0)
    assert digits_cnn()(training[0][0][None]).shape == convnet_8m()(training[0][0][None]).shape == (1, 10)


def test_text_is_the_librarys_and_targets_follow_inputs() -> None:
    training, validation = library_text(64)
    tokens, targets = training[5]
    assert torch.equal(tokens[1:], targets[:-1])
    assert bytes(training[0][0].tolist()).isascii()
    assert len(training) > 8 * len(validation) > 1000


def test_an_unknown_name_is_nobodys() -> None:
    assert built_in("no-such-task") is None


def test_without_transformers_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(TaskError, match="pip install transformers"):
        built_in("gpt2-small")


def configs() -> dict[str, Any]:
    t = pytest.importorskip("transformers")
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    tokens = {"bos_token_id": 0, "eos_token_id": 1}
    return {
        "causal": t.LlamaConfig(vocab_size=32, **small, **tokens),
        "masked": t.BertConfig(vocab_size=32, **small),
        "seq2seq": t.T5Config(vocab_size=32, d_model=32, d_kv=16, d_ff=48, num_layers=1, num_heads=2),
        "image": t.ViTConfig(image_size=16, patch_size=8, **small),
        "classification": t.BertConfig(vocab_size=32, **small),
    }


@pytest.mark.parametrize("family", ["causal", "masked", "seq2seq", "image", "classification"])
def test_any_hugging_face_model(family: str) -> None:
    config = configs()[family]
    task = hugging_face(config, family="classification" if family == "classification" else "", length=8, batch_size=2)
    batch = torch.utils.data.default_collate([task.data[i] for i in range(2)])
    loss = task.loss(task.model(), batch)
    loss.backward()
    assert loss.shape == ()
    assert torch.isfinite(loss)


def test_families_that_do_not_exist_are_refused() -> None:
    with pytest.raises(TaskError, match="'poetry' is not known"):
        hugging_face(configs()["causal"], family="poetry")
    transformers = pytest.importorskip("transformers")
    with pytest.raises(TaskError, match="write the Task by hand"):
        family_of(transformers.PretrainedConfig())


def test_embeddings_tie_on_request() -> None:
    pytest.importorskip("transformers")
    loose, tied = (sum(p.numel() for p in from_config("llama-5m", tied=t).model().parameters()) for t in (False, True))
    assert loose - tied == 256 * 256


def test_names_are_known_without_torch() -> None:
    assert tuple(TASKS) == NAMES


@pytest.mark.parametrize("name", ["digits-cnn", "bytes-gpt"])
def test_a_batch_read_at_once_is_its_samples_collated(name: str) -> None:
    task, positions = made(name), [5, 0, 3, 5]
    samples = [task.data[i] for i in positions]
    for whole, wanted in zip(read_batch(task, task.data, positions), default_collate(samples), strict=True):
        assert torch.equal(whole, wanted)
        assert whole.stride() == wanted.stride()


def test_data_is_read_as_a_data_loader_reads_it() -> None:
    class Rows(list[torch.Tensor]):
        def __getitems__(self, positions: list[int]) -> list[torch.Tensor]:
            return [torch.tensor(i) for i in positions]

    task = replace(made("digits-cnn"), data=Rows([torch.tensor(-1)] * 64))
    assert read_batch(task, task.data, [2, 1]).tolist() == [2, 1]
    summed = replace(task, collate=sum)
    assert read_batch(summed, summed.data, [2, 1]).item() == 3
