"""What torch's allocator says of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.profiler import ProfilerActivity, profile


def taken_by(call: Any, given: Sequence[Any]) -> int:
    """Bytes at the peak of a call, less those of its results."""
    call(*given)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        made = call(*given)
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    results = [each for each in (made if isinstance(made, tuple) else (made,)) if each is not None]
    return int(peak - sum(each.nbytes for each in results))
