"""A decoder-only transformer in the form of GPT-2 (Radford et al., 2019), small enough to read."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each normalised first and added to the stream [n, s, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """[n, s, width] -> the same shape."""
        n, s, width = x.shape
        parts = self.query_key_value(self.attention_norm(x)).view(n, s, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(n, s, width))
        return x + self.feed(self.feed_norm(x))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """Tokens [n, s] -> logits [n, s, vocabulary]; token weights are not tied to the output's."""

    def __init__(
        self, vocabulary: int = 256, length: int = 128, width: int = 128, heads: int = 4, layers: int = 4
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """[n, s] -> [n, s, vocabulary]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))  # type: ignore[no-any-return]
