"""Recurrent models: a two-layer LSTM language model and a small GNMT-like translator."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LstmLanguageModel(nn.Module):
    """Tokens [n, s] -> logits [n, s, vocabulary]."""

    def __init__(self, vocabulary: int = 256, width: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.recurrence = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """[n, s] -> [n, s, vocabulary]."""
        return self.head(self.recurrence(self.tokens(tokens))[0])  # type: ignore[no-any-return]


class Gnmt(nn.Module):
    """Encoder and decoder of LSTMs with attention, after Wu et al. (2016): a bidirectional first encoder layer.

    Tokens [n, s] are both the source and, shifted by the data, the target; -> logits [n, s, vocabulary].
    """

    def __init__(self, vocabulary: int = 256, width: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.first = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.encoder = nn.LSTM(width, width, layers, batch_first=True)
        self.decoder = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(2 * width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """[n, s] -> [n, s, vocabulary]."""
        embedded = self.tokens(tokens)
        encoded = self.encoder(self.first(embedded.flip(1))[0])[0]
        decoded = self.decoder(embedded)[0]
        weights = torch.softmax(decoded @ encoded.transpose(1, 2) / decoded.shape[-1] ** 0.5, -1)
        return self.head(torch.cat([decoded, weights @ encoded], -1))  # type: ignore[no-any-return]
