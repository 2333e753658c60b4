"""The four models of Pipe-SGD's experiments in their usual shapes, on seeded noise; 64 samples a worker."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita import Task
from partita.zoo.convolutional import AlexNet
from partita.zoo.data import Image, Synthetic
from partita.zoo.tasks import classify

SAMPLES = 256


class Basic(nn.Module):
    """Two 3x3 convolutions with a shortcut (He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = normed(inputs, outputs, 3, stride), normed(outputs, outputs, 3, 1)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else normed(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


def normed(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


def resnet18_model() -> nn.Module:
    """11.7 M parameters for [n, 3, 224, 224]."""
    shapes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
    shapes += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    stem = [normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return nn.Sequential(*stem, *(Basic(*shape) for shape in shapes), *head)


def mlp_model() -> nn.Module:
    """784-500-500-10, 0.65 M parameters."""
    hidden = [nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(500, 10))


def convnet_model() -> nn.Module:
    """Three convolutions and two linear layers for [n, 3, 32, 32], 1.2 M parameters."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 64), (64, 128), (128, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 450), nn.ReLU(), nn.Linear(450, 100))


def on_noise(name: str, model: object, image: Image) -> Task:
    optimizer = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
    return Task(name, model, classify, Synthetic(50_000, image), optimizer, SAMPLES)  # type: ignore[arg-type]


def grey(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A digit's shape."""
    label = torch.randint(10, (), generator=generator)
    return torch.randn(1, 28, 28, generator=generator), label


def mlp() -> Task:
    return Task("mlp", mlp_model, classify, Synthetic(50_000, grey), partial(torch.optim.SGD, lr=0.01), SAMPLES)


def convnet() -> Task:
    return on_noise("convnet", convnet_model, Image(32, 100))


def alexnet() -> Task:
    return on_noise("alexnet", AlexNet, Image(224, 1000))


def resnet18() -> Task:
    return on_noise("resnet18", resnet18_model, Image(224, 1000))
