"""Plans carried out on a made-up second device, which torch keeps apart from the processor; run by test_device.

    on_a_card.py PLAN RANKS PLAN RANKS ...        prints a line a plan: where its state lies, or what was wrong
    on_a_card.py left PLAN RANKS ...              the same with samples that stay where they were read

The device has no kernels: torch's fake tensors stand for its memory, and refuse an operator that finds one of its
tensors and one of the processor's.
"""

from __future__ import annotations

import sys
from unittest import mock

from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from partita import api
from partita.cluster.text import load_cluster
from partita.runs.assembly import train_in_process
from partita.runtime.device import Clock
from partita.runtime.feed import Feed
from partita.runtime.state import State
from partita.runtime.workload import Workload
from partita.tracing.capture import capture
from tests.small import perceptron

POSITIONS = Feed.positions


def places(state: State) -> set[str]:
    """The devices of all that a rank keeps."""
    held = [*state.leaves.values(), *state.parameter.values(), *state.kept.values(), *state.master.values()]
    held += [view for views in state.views.values() for view in views]
    held += [flat for flats in state.gradient.values() for flat in flats]
    return {str(tensor.device) for tensor in held}


def drawn(feed: Feed, *given: int) -> list[int]:
    """The positions of samples, by real numbers."""
    with unset_fake_temporarily():
        return POSITIONS(feed, *given)


def main() -> None:
    _setup_privateuseone_for_python_backend("card")
    task = perceptron()
    graph = capture(task)
    left = sys.argv[1] == "left"
    words = sys.argv[1 + left :]
    there = mock.patch("partita.runtime.feed.to_device", lambda x, device, floating: x if left else x.to(device))
    clock = mock.patch("partita.runs.assembly.clock_of", return_value=Clock())
    losses = mock.patch("partita.runs.assembly.taken_rows", return_value=[])  # numbers that nobody can read
    with there, clock, losses, mock.patch.object(Feed, "positions", drawn):
        for text, ranks in zip(words[::2], words[1::2], strict=True):
            cluster = load_cluster(f"local:{ranks}")
            plan = api.plan_of(text, graph, cluster)
            try:
                with FakeTensorMode(allow_non_fake_inputs=True):
                    states, _ = train_in_process(Workload(task, graph, device="card:0"), plan, cluster, 3)
                found = set().union(*map(places, states.values()))
                print(text, *sorted(found), flush=True)
            except Exception as error:
                print(text, type(error).__name__, str(error).splitlines()[0], flush=True)


if __name__ == "__main__":
    main()
