"""The models of the matrix of exact methods, with minibatches of sixteen samples; workers load them by
`matrix_models.py:NAME`, in fp64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from partita.task import Task
from partita.zoo import inception
from partita.zoo.convolutional import AlexNet, digits_cnn
from partita.zoo.gpt import Gpt
from partita.zoo.recurrent import Gnmt
from partita.zoo.resnet import ResNet50
from partita.zoo.tasks import on_digits, on_images, on_text
from tests.tracing.models import TASKS, images, texts

BATCH = 16
ON_TEXT, ON_IMAGES = ("gpt2", "llama", "bert", "t5", "mixtral", "lstm"), ("vit", "unet", "convnet", "resnet")
MODELS: dict[str, Callable[[], Task]] = {
    **{name: lambda name=name: replace(TASKS[name](), data=texts(48)) for name in ON_TEXT},
    **{name: lambda name=name: replace(TASKS[name](), data=images(48)) for name in ON_IMAGES},
    "digits-cnn": lambda: on_digits("digits-cnn", digits_cnn, 0.1),
    "bytes-gpt": lambda: on_text("bytes-gpt", partial(Gpt, length=12, width=32), length=12),
    "gnmt": lambda: on_text("gnmt", partial(Gnmt, width=32), length=12),
    # of 32 pixels one is left at the end: statistics of two samples' numbers, which make a million of a rounding
    "resnet50": lambda: on_images("resnet50", partial(ResNet50, 4), 64, classes=4),
    "alexnet": lambda: on_images("alexnet", partial(AlexNet, 4), 224, classes=4),
    "inception3": lambda: on_images("inception3", partial(inception.inception3, 4), 75, classes=4),
}
HEAVY = ("resnet50", "alexnet", "inception3")
HALF = ("alexnet",)  # of the minibatch


def task_of(name: str) -> Task:
    """The named model on its minibatch."""
    return replace(MODELS[name](), batch_size=BATCH // 2 if name in HALF else BATCH, precision="fp64")


def steps_of(name: str) -> int:
    """How many steps of it tell."""
    return 2 if name in HEAVY else 3


def __getattr__(name: str) -> Callable[[], Task]:
    if name not in MODELS:
        raise AttributeError(name)
    return partial(task_of, name)
