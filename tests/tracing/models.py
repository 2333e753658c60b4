"""Small tasks of every kind that a capture must see through."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import nn

from partita.task import Task

WORDS, LENGTH, CLASSES = 61, 12, 10


class ConvNet(nn.Module):
    """BatchNorm, an in-place activation, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.drop, self.last = nn.Conv2d(8, 6, 3, padding=1), nn.Dropout(0.3), nn.Linear(6 * 64, CLASSES)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.norm(self.first(x)), inplace=True)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        return self.last(self.drop(x.flatten(1)))


class Recurrent(nn.Module):
    def __init__(self, kind: Any = nn.LSTM, **options: Any) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(WORDS, 9), kind(9, 7, 2, **options)
        self.last = nn.Linear(14 if options.get("bidirectional") else 7, WORDS)

    def forward(self, x: Any) -> Any:
        return self.last(self.body(self.words(x))[0])


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(4, 16)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        a = F.silu(self.down(x))
        h = F.silu(self.norm(self.deep(a)))
        h = F.interpolate(F.avg_pool2d(h, 2), scale_factor=2, mode="bilinear")
        return self.out(torch.cat([a, self.up(h)], 1))


def images(count: int = 8) -> list[Any]:
    torch.manual_seed(1)
    return [(torch.randn(3, 16, 16), torch.tensor(i % CLASSES)) for i in range(count)]


def texts(count: int = 8) -> list[Any]:
    torch.manual_seed(1)
    return [{"x": torch.randint(WORDS, (LENGTH,)), "y": torch.randint(WORDS, (LENGTH,))} for _ in range(count)]


def rows(count: int = 8) -> list[Any]:
    torch.manual_seed(1)
    return [(torch.randn(6), torch.tensor(i % 3)) for i in range(count)]


def classify(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0]), batch[1])


def describe(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(pixel_values=batch[0]).logits, batch[1])


def predict(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch["x"]).flatten(0, 1), batch["y"].flatten())


def generate(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(input_ids=batch["x"]).logits.flatten(0, 1), batch["y"].flatten())


def translate(model: Any, batch: Any) -> Any:
    return model(input_ids=batch["x"], labels=batch["y"]).loss


def adamw(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters)


def task(name: str, model: Callable[[], Any], loss: Any = classify, data: Any = None, **more: Any) -> Task:
    return Task(name, model, loss, rows() if data is None else data, more.pop("optimizer", adamw), 4, **more)


def hugging_face(name: str, loss: Any, data: Any, **options: Any) -> Task:
    """A tiny model of `transformers` with random weights; `name` as in GPT2LMHeadModel, its config beside it."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    kind = getattr(transformers, name)
    config = kind.config_class(**({} if options.pop("own_sizes", False) else sizes), **options)
    return task(name, lambda: kind(config), loss, data)


def gpt2() -> Task:
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": LENGTH, "vocab_size": WORDS}
    special = {"bos_token_id": 0, "eos_token_id": 0}
    return hugging_face("GPT2LMHeadModel", generate, texts(), own_sizes=True, **sizes, **special)


TASKS: dict[str, Callable[[], Task]] = {
    "convnet": lambda: task("convnet", ConvNet, classify, images()),
    "lstm": lambda: task(
        "lstm", partial(Recurrent, dropout=0.2, batch_first=True, bidirectional=True), predict, texts()
    ),
    "gru": lambda: task("gru", lambda: Recurrent(nn.GRU, dropout=0.3, batch_first=True), predict, texts()),
    "unet": lambda: task("unet", Unet, lambda model, batch: (model(batch[0]) - batch[0]).square().mean(), images()),
    "gpt2": gpt2,
    "llama": lambda: hugging_face(
        "LlamaForCausalLM", generate, texts(), vocab_size=WORDS, num_key_value_heads=2, use_cache=False
    ),
    "mixtral": lambda: hugging_face(
        "MixtralForCausalLM", generate, texts(), vocab_size=WORDS, num_key_value_heads=2, num_local_experts=4,
        use_cache=False, experts_implementation="batched_mm",
    ),
    "bert": lambda: hugging_face("BertForMaskedLM", generate, texts(), vocab_size=WORDS),
    "t5": lambda: hugging_face(
        "T5ForConditionalGeneration", translate, texts(), own_sizes=True, vocab_size=WORDS, d_model=32, d_ff=48, d_kv=8,
        num_layers=2, num_heads=4, decoder_start_token_id=0,
    ),
    "vit": lambda: hugging_face(
        "ViTForImageClassification", describe, images(), image_size=16, patch_size=4, num_labels=CLASSES
    ),
    "resnet": lambda: hugging_face(
        "ResNetForImageClassification", describe, images(), own_sizes=True, embedding_size=8, hidden_sizes=[8, 16],
        depths=[1, 1], num_labels=CLASSES,
    ),
}  # fmt: skip
