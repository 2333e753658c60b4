"""Which samples a minibatch consists of, whatever the world size, and how they become a batch.

Epoch e visits `randperm(len(data), generator=manual_seed(seed + e))`; minibatch k is positions k*B to (k+1)*B of it; a
last partial minibatch is dropped.

What a data set draws at random goes by the sample and not by who reads it, or when:

  epoch 3, sample 17   --> seed of (seed, 3, 17) --> torch's, Python's, NumPy's generators --> data[17]

so the first stage's inputs and the last stage's labels are of one draw, every division of a minibatch has the same
samples, and a run that goes on has those that it would have had. (Generators that a data set keeps for itself do not
hear of it.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from partita.errors import Ended, TaskError, first_line
from partita.graph.graph import Graph
from partita.runtime.device import to_device
from partita.runtime.generators import ALONE, generators_kept, host_state, seed_all
from partita.task import Task
from partita.tracing.draws import seed_for
from partita.tracing.leaves import changed
from partita.tracing.prepare import DTYPES, Rest, flatten, read_batch


@dataclass
class Feed:
    """The task's data in the order of `seed`; it keeps the permutation of the current epoch, which `positions` sets.

    `draws` says whether reading samples uses a random generator of this process; the first that are read tell.
    """

    task: Task
    seed: int
    epoch: int = -1
    order: list[int] = field(default_factory=list)
    draws: bool | None = None

    @property
    def at_hand(self) -> bool:
        """Whether samples are in memory (a data set with `collated`), so that reading them does not wait."""
        return self.task.collate is None and hasattr(self.task.data, "collated")

    def positions(self, step: int, start: int, count: int) -> list[int]:
        """Indices into the data of samples `start` to `start + count` of the minibatch of `step` (from 0)."""
        batch = self.task.batch_size
        epoch, k = divmod(step, len(self.task.data) // batch)
        if epoch != self.epoch:
            generator = torch.Generator().manual_seed(self.seed + epoch)
            self.order = torch.randperm(len(self.task.data), generator=generator).tolist()
            self.epoch = epoch
        return self.order[k * batch + start : k * batch + start + count]

    def leaves(self, positions: Sequence[int], device: str, floating: torch.dtype | None = None) -> list[torch.Tensor]:
        """The tensors of the collated samples, in pytree order; floats as `floating` if it is given."""
        return self.read(positions, device, floating)[0]

    def read(
        self, positions: Sequence[int], device: str, floating: torch.dtype | None = None
    ) -> tuple[list[torch.Tensor], Rest]:
        """The tensors of the collated samples, as `leaves` has them, and the rest of the batch. Raises TaskError
        if the data set or the collation raises."""
        try:
            with ALONE if floating is torch.float64 else nullcontext():
                batch = self.batch(positions)
        except Ended:
            raise
        except (Exception, SystemExit) as error:
            raise TaskError(
                f"reading samples {list(positions)[:4]}... of {self.task.name!r} failed ({first_line(error)}); correct "
                "the data set, or Task.collate"
            ) from error
        leaves, rest = flatten(batch)
        rest.leaves = [place(leaf, device, floating) for leaf in rest.leaves]
        return [to_device(leaf, device, floating) for leaf in leaves], rest

    def batch(self, positions: Sequence[int]) -> Any:
        """The samples of the current epoch, collated."""
        if self.at_hand or self.draws is False:
            return read_batch(self.task, self.task.data, positions)
        with generators_kept():
            if self.draws is None:
                before = host_state()
                batch = read_batch(self.task, self.task.data, positions)
                self.draws = bool(host_state() != before)
                if not self.draws:
                    return batch
            return read_batch(self.task, Drawn(self.task.data, self.seed, self.epoch), positions)


@dataclass(frozen=True)
class Drawn:
    """The samples of an epoch whose random numbers go by (seed, epoch, index), read one by one."""

    data: Any
    seed: int
    epoch: int

    def __getitem__(self, index: int) -> Any:
        seed_all(seed_for(self.seed, self.epoch, index))
        many = getattr(self.data, "__getitems__", None)
        return self.data[index] if many is None else many([index])[0]


def check_shapes(graph: Graph, leaves: Sequence[torch.Tensor], count: int, step: int) -> None:
    """Raises TaskError if a batch of `count` samples has other shapes than the captured step."""
    inputs = graph.once(("inputs", count), lambda: [(name, tensor.shape_at(count)) for name, tensor in graph.inputs])
    if len(leaves) != len(inputs):
        raise TaskError(
            f"a batch of {graph.name!r} has {len(leaves)} tensors in step {step}, and its step was captured for "
            f"{len(inputs)}; give samples that are all alike"
        )
    for (name, wanted), leaf in zip(inputs, leaves, strict=True):
        if leaf.shape != wanted:
            raise TaskError(
                f"{name} of a batch of {graph.name!r} has the shape {list(leaf.shape)} in step {step}, which was "
                f"captured for {list(wanted)}; give samples of equal shape, padded to the longest of all"
            )


def floats_of(task: Task, precision: str = "") -> torch.dtype:
    """The dtype that a sample's floats get: that of a precision, the task's unless given."""
    return DTYPES[precision or task.precision]


@contextmanager
def default_floats(floating: torch.dtype | None) -> Iterator[None]:
    """A context in which Python floats become fp64 tensors if the graph is computed in fp64. No samples are read
    meanwhile, since a data set may draw random numbers in the default dtype, which is the whole process's."""
    if floating is not torch.float64:
        yield
        return
    with ALONE:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def place(leaf: Any, device: str, floating: torch.dtype | None) -> Any:
    """A leaf of a batch on the device: a tensor, or an object with its tensors; anything else as it is."""
    return changed(leaf, lambda tensor: to_device(tensor, device, floating))
