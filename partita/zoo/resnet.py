"""ResNet (He et al., 2016), for [n, 3, size, size]: 50 layers have 25.6 M parameters at 1000 classes."""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn

GROUPS: Final = ((64, 1), (128, 2), (256, 2), (512, 2))  # of blocks: their width, the stride of the first
LAYERS: Final = (3, 4, 6, 3)  # blocks of each group; of 152 layers (3, 8, 36, 3)
EXPANSION: Final = 4


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a shortcut; the stride sits on the 3x3, as in all current implementations."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.reduce = _convolution(inputs, width, 1)
        self.middle = _convolution(width, width, 3, stride)
        self.expand = _convolution(width, outputs, 1)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _convolution(inputs, outputs, 1, stride)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """[n, c, h, w] -> [n, c', h', w']."""
        y = self.activation(self.middle(self.activation(self.reduce(x))))
        return self.activation(self.expand(y) + self.shortcut(x))  # type: ignore[no-any-return]


class ResNet50(nn.Module):
    """ResNet-50: [n, 3, size, size] -> logits [n, classes]."""

    def __init__(self, classes: int = 1000, layers: tuple[int, ...] = LAYERS) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
        blocks: list[nn.Module] = []
        channels = 64
        for count, (width, stride) in zip(layers, GROUPS, strict=True):
            for place in range(count):
                blocks.append(Bottleneck(channels, width, stride if place == 0 else 1))
                channels = width * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, pixels: Tensor) -> Tensor:
        """[n, 3, h, w] -> [n, classes]."""
        return self.classifier(self.pool(self.blocks(self.stem(pixels))).flatten(1))  # type: ignore[no-any-return]
