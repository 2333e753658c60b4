"""Inception-v3 (Szegedy et al., 2016) without the auxiliary head, for [n, 3, 299, 299]; 23.8 M parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Convolution(nn.Module):
    """A convolution without bias, batch normalisation and ReLU."""

    def __init__(
        self, inputs: int, outputs: int, size: int | tuple[int, int], stride: int = 1, pad: bool = True
    ) -> None:
        super().__init__()
        height, width = (size, size) if isinstance(size, int) else size
        padding = (height // 2, width // 2) if pad else (0, 0)
        self.convolution = nn.Conv2d(inputs, outputs, (height, width), stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=0.001)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """[n, inputs, h, w] -> [n, outputs, h', w']."""
        return self.activation(self.norm(self.convolution(x)))  # type: ignore[no-any-return]


class Branches(nn.Module):
    """Runs each branch on the same input and stacks the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """[n, inputs, h, w] -> the channels of all branches."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def _pooled(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, 1, padding=1), Convolution(inputs, outputs, 1))


def _square(inputs: int, pool: int) -> nn.Module:
    return Branches(
        Convolution(inputs, 64, 1),
        nn.Sequential(Convolution(inputs, 48, 1), Convolution(48, 64, 5)),
        nn.Sequential(Convolution(inputs, 64, 1), Convolution(64, 96, 3), Convolution(96, 96, 3)),
        _pooled(inputs, pool),
    )


def _factored(inputs: int, width: int) -> nn.Module:
    """7x7 as 1x7 and 7x1."""
    row, column = (1, 7), (7, 1)
    return Branches(
        Convolution(inputs, 192, 1),
        nn.Sequential(Convolution(inputs, width, 1), Convolution(width, width, row), Convolution(width, 192, column)),
        nn.Sequential(
            Convolution(inputs, width, 1), Convolution(width, width, column), Convolution(width, width, row),
            Convolution(width, width, column), Convolution(width, 192, row),
        ),
        _pooled(inputs, 192),
    )  # fmt: skip


def _wide(inputs: int) -> nn.Module:
    def fork(channels: int) -> nn.Module:
        return Branches(Convolution(channels, 384, (1, 3)), Convolution(channels, 384, (3, 1)))

    return Branches(
        Convolution(inputs, 320, 1),
        nn.Sequential(Convolution(inputs, 384, 1), fork(384)),
        nn.Sequential(Convolution(inputs, 448, 1), Convolution(448, 384, 3), fork(384)),
        _pooled(inputs, 192),
    )


def _halved(first: nn.Module, second: nn.Module) -> nn.Module:
    return Branches(first, second, nn.MaxPool2d(3, 2))


def inception3(classes: int = 1000) -> nn.Module:
    """The whole model as one chain of blocks."""
    return nn.Sequential(
        Convolution(3, 32, 3, 2, pad=False), Convolution(32, 32, 3, pad=False), Convolution(32, 64, 3),
        nn.MaxPool2d(3, 2), Convolution(64, 80, 1), Convolution(80, 192, 3, pad=False), nn.MaxPool2d(3, 2),
        _square(192, 32), _square(256, 64), _square(288, 64),
        _halved(
            Convolution(288, 384, 3, 2, pad=False),
            nn.Sequential(Convolution(288, 64, 1), Convolution(64, 96, 3), Convolution(96, 96, 3, 2, pad=False)),
        ),
        _factored(768, 128), _factored(768, 160), _factored(768, 160), _factored(768, 192),
        _halved(
            nn.Sequential(Convolution(768, 192, 1), Convolution(192, 320, 3, 2, pad=False)),
            nn.Sequential(
                Convolution(768, 192, 1), Convolution(192, 192, (1, 7)), Convolution(192, 192, (7, 1)),
                Convolution(192, 192, 3, 2, pad=False),
            ),
        ),
        _wide(1280), _wide(2048), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(2048, classes),
    )  # fmt: skip
