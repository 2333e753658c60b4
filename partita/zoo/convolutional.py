"""Plain chains of convolutions: two for the digits, AlexNet, VGG-16."""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn

VGG16: Final = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)  # 0 halves the image


def digits_cnn() -> nn.Module:
    """A small CNN for [n, 1, 8, 8]: 0.20 M parameters, so little that links hardly matter."""
    return nn.Sequential(
        nn.Conv2d(1, 40, 3, padding=1), nn.ReLU(),
        nn.Conv2d(40, 80, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(80 * 16, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def convnet_8m() -> nn.Module:
    """A CNN for [n, 1, 8, 8] with 8.6 M parameters, nearly all in two linear layers: its gradients fill the wire."""
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128 * 16, 2816), nn.ReLU(), nn.Linear(2816, 960), nn.ReLU(), nn.Linear(960, 10),
    )  # fmt: skip


class AlexNet(nn.Module):
    """Krizhevsky, One weird trick (2014), for [n, 3, 224, 224]; 61.1 M parameters."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Dropout(), nn.Linear(256 * 36, 4096), nn.ReLU(),
            nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, classes),
        )  # fmt: skip

    def forward(self, pixels: Tensor) -> Tensor:
        """[n, 3, h, w] -> [n, classes]."""
        return self.classifier(self.features(pixels))  # type: ignore[no-any-return]


class Vgg16(nn.Module):
    """Simonyan and Zisserman (2015), for [n, 3, size, size]; 138.4 M parameters at size 224, 1000 classes.

    `size` 32 is the usual form for small images, with narrow linear layers (15.2 M parameters).
    """

    def __init__(self, size: int = 224, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in VGG16:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
            channels = width or channels
        hidden = 4096 if size >= 64 else 512
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(512 * (size // 32) ** 2, hidden), nn.ReLU(), nn.Dropout(),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(), nn.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, pixels: Tensor) -> Tensor:
        """[n, 3, h, w] -> [n, classes]."""
        return self.classifier(self.features(pixels))  # type: ignore[no-any-return]
