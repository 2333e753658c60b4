"""A small U-Net (Ronneberger et al., 2015) for [n, 3, size, size], two classes a pixel."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def _block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """`size` must divide by 2 ** (number of widths - 1); 0.49 M parameters as it stands."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128), classes: int = 2) -> None:
        super().__init__()
        self.down = nn.ModuleList(_block(i, o) for i, o in zip((3, *widths), widths, strict=False))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.up = nn.ModuleList(_block(2 * w, w) for w in reversed(widths[:-1]))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, size, size] -> logits of each pixel."""
        levels: list[Tensor] = []
        for depth, block in enumerate(self.down):
            x = block(self.pool(x) if depth else x)
            levels.append(x)
        for grow, block, level in zip(self.grow, self.up, reversed(levels[:-1]), strict=True):
            x = block(torch.cat([level, grow(x)], 1))
        return self.head(x)  # type: ignore[no-any-return]
