"""Devices that need no description: the parts of `devices.toml`, by name."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from typing import Any

from partita.errors import ClusterError, did_you_mean


def parts() -> dict[str, dict[str, Any]]:
    """The table of each part, as it would stand in a cluster file."""
    return tomllib.loads((files("partita.cluster") / "devices.toml").read_text(encoding="utf-8"))


def part_table(name: str, where: str) -> dict[str, Any]:
    """The table of a part. Raises ClusterError where there is none of that name."""
    known = parts()
    if name not in known:
        hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
        raise ClusterError(f"{where} is {name!r}, which is no part that partita knows; {hint}")
    return known[name]


def words_of(card: str) -> list[str]:
    """The words of a card's name, in lower case."""
    return re.findall("[a-z0-9]+", card.lower())


def part_of(card: str) -> str:
    """The part that a card is by the name that its driver has for it: 'a100-sxm-40gb' for NVIDIA A100-SXM4-40GB. The
    first word of a part's name is in the card's, and of such parts it has most other words in common. "" for none."""
    words = words_of(card)
    joined = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}

    def common(name: str) -> int:
        return sum(any(word.startswith(each) for word in words) for each in name.split("-")[1:])

    return max((name for name in parts() if name.split("-")[0] in joined), key=common, default="")
