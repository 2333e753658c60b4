"""Codecs of differences: each sender i keeps h_i, what it has said; all that hear keep the sum of all h_i.

what is sent         d_i = C(g_i - h_i)
what it stands for   sum of h_i + sum of d_i
and then             h_i += a d_i,   sum of h_i += a sum of d_i         a: `Codec.difference`

With a = 1 that is EF21, for any C that brings numbers nearer (Richtarik, Sokolov & Fatkhullin, NeurIPS 2021, algorithm
2); with a below, DIANA, for a C that is right in the mean (Mishchenko et al. 2019, algorithm 1).
"""

from __future__ import annotations

from partita.errors import PlanError
from partita.plan.wire import Codec


def check_differences(codec: Codec, remembers: bool) -> None:
    """Raises PlanError for a codec that is to encode differences and cannot, as one that `remembers` by itself."""
    why = ""
    if not 0 <= codec.difference <= 1:
        why = "a difference of 0 (none) to 1 is allowed"
    elif codec.where != "end":
        why = "partial sums and answers have nothing that was said before; use where=end"
    elif codec.error_feedback:
        why = "what a difference lacks is in the next one; leave feedback out"
    elif remembers:
        why = "it has a memory or rounds of its own; use a codec of numbers as they are, such as topk"
    if codec.difference and why:
        raise PlanError(f"{codec.name}(difference={codec.difference:g}): {why}")
