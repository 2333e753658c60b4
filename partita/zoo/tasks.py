"""The built-in tasks by name; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.task import Task
from partita.zoo.configs import CONFIGS, ON_TEXT
from partita.zoo.convolutional import AlexNet, Vgg16, convnet_8m, digits_cnn
from partita.zoo.data import Image, Mask, Synthetic, digits, library_text
from partita.zoo.gpt import Gpt
from partita.zoo.hugging_face import hugging_face, token_loss, transformers
from partita.zoo.inception import inception3
from partita.zoo.recurrent import Gnmt, LstmLanguageModel
from partita.zoo.resnet import ResNet50
from partita.zoo.unet import UNet


def classify(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of `(pixels, label)`, the mean over samples; per pixel where the label is an image."""
    return F.cross_entropy(model(batch[0]), batch[1])


def predict(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of `(tokens, next tokens)`, the mean over tokens."""
    return token_loss(model(batch[0]), batch[1])


def on_digits(name: str, model: Callable[[], nn.Module], rate: float) -> Task:
    """Classification of scikit-learn's handwritten digits, with SGD at the learning rate `rate`."""
    training, validation = digits()
    optimizer = partial(torch.optim.SGD, lr=rate, momentum=0.9)
    return Task(name, model, classify, training, optimizer, batch_size=64, validation=validation)


def on_images(
    name: str, model: Callable[[], nn.Module], size: int, *, classes: int = 1000, batch_size: int = 32
) -> Task:
    """ImageNet's shapes with seeded noise for pixels: for speed and memory, not for learning."""
    draw = Image(size, classes)
    optimizer = partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=1e-4)
    data, validation = Synthetic(50_000, draw), Synthetic(64, draw, seed=1)
    return Task(name, model, classify, data, optimizer, batch_size, validation=validation)


def on_text(name: str, model: Callable[[], nn.Module], *, length: int = 64) -> Task:
    """Next-byte prediction on library text, with AdamW."""
    training, validation = library_text(length)
    optimizer = partial(torch.optim.AdamW, lr=1e-3)
    return Task(name, model, predict, training, optimizer, batch_size=32, validation=validation)


def on_masks(name: str, model: Callable[[], nn.Module], size: int) -> Task:
    """Segmentation of made-up images, with SGD."""
    optimizer = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    data, validation = Synthetic(2_048, Mask(size)), Synthetic(64, Mask(size), seed=1)
    return Task(name, model, classify, data, optimizer, batch_size=16, validation=validation)


def from_config(name: str, *, tied: bool | None = None) -> Task:
    """One of CONFIGS; `tied` overrides whether input and output embeddings are the same weight."""
    kind, arguments, length, batch_size = CONFIGS[name]
    chosen = arguments if tied is None else arguments | {"tie_word_embeddings": tied}
    config = getattr(transformers(), kind)(**chosen)
    if name not in ON_TEXT:
        return hugging_face(config, name=name, length=length, batch_size=batch_size, samples=8 * batch_size)
    data, validation = library_text(length)
    return hugging_face(
        config, name=name, family="causal", batch_size=batch_size, learning_rate=1e-3, data=data, validation=validation
    )


TASKS: Final[dict[str, Callable[[], Task]]] = {
    "digits-cnn": lambda: on_digits("digits-cnn", digits_cnn, 0.1),
    "convnet-8m": lambda: on_digits("convnet-8m", convnet_8m, 0.05),
    "bytes-gpt": lambda: on_text("bytes-gpt", partial(Gpt, length=64)),
    "lstm": lambda: on_text("lstm", LstmLanguageModel),
    "rnnlm": lambda: on_text("rnnlm", partial(LstmLanguageModel, width=650)),  # "medium" of Zaremba et al., 2014
    "gnmt": lambda: on_text("gnmt", Gnmt),
    "alexnet": lambda: on_images("alexnet", AlexNet, 224),
    "vgg16": lambda: on_images("vgg16", Vgg16, 224),
    "vgg16-32": lambda: on_images("vgg16-32", partial(Vgg16, 32, 10), 32, classes=10),
    "resnet50": lambda: on_images("resnet50", ResNet50, 224),
    "inception3": lambda: on_images("inception3", inception3, 299),
    "unet": lambda: on_masks("unet", UNet, 64),
} | {name: partial(from_config, name) for name in CONFIGS}


def built_in(name: str) -> Task | None:
    """The built-in Task of that name, None where there is none.

    Raises TaskError where the task needs a package that is not installed.
    """
    make = TASKS.get(name)
    return make() if make else None
