"""The names of the built-in tasks, for those who would not load torch to know them."""

from __future__ import annotations

from typing import Final

from partita.errors import TaskError, did_you_mean
from partita.zoo.configs import CONFIGS

NAMES: Final = (
    "digits-cnn", "convnet-8m", "bytes-gpt", "lstm", "rnnlm", "gnmt", "alexnet", "vgg16", "vgg16-32", "resnet50",
    "inception3", "unet", *CONFIGS,
)  # fmt: skip


def check_name(name: str) -> None:
    """Raises TaskError for what is no built-in task, naming the one that was likely meant."""
    if name not in NAMES:
        hint = did_you_mean(name, NAMES) or f"there are {', '.join(NAMES)};"
        raise TaskError(
            f"{name!r} is no built-in task; {hint} those of your own are file.py:function or package.module:function"
        )
