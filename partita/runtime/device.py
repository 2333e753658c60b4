"""Where a rank computes: what distinguishes processors from accelerators.

            "cpu"                            "cuda:1"
samples     as they are                      through pinned memory, so that nothing waits for the copy
times       the clock, read at once          events, read once the device has reached them
groups      gloo                             NCCL for tensors on the device, gloo for others

All lanes of a rank launch into one stream, the device's default one, in the order in which they carry out instructions:
work that is launched after work that it depends on runs after it, and freed memory can be reused at once. Only
collectives run in streams of the backend. The thread of their lane waits for them, not the stream, so that computing
goes on meanwhile.

Spans are measured by events. If the host waited for the device at the end of each instruction, the device would be idle
until the next launch, and measured rounds would take longer than others; an event is one more entry in the queue. The
end of a message or collective is taken from the host's clock.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Final

import torch

from partita.cluster.cluster import Cluster
from partita.errors import ClusterError
from partita.graph.precision import TF32
from partita.program.timeline import Span
from partita.units import Seconds

CPU: Final = "cpu"
GLOO: Final = "gloo"
BOTH: Final = "cpu:gloo,cuda:nccl"
AMPERE: Final = (8, 0)  # compute capability
AHEAD: Final = 1024  # moments that may be open: the host is never further ahead of the device

Ends = list[tuple[Seconds, Seconds]]


def device_of(cluster: Cluster, rank: int) -> str:
    """What a rank computes on in this process: an accelerator by its place on the machine (LOCAL_RANK, else its place
    in the cluster), or the processor, which ghosts have too.

    Raises ClusterError where this machine has no such accelerator.
    """
    here = cluster.devices[rank]
    if here.ghost or here.backend == CPU:
        return CPU
    place = int(os.environ.get("LOCAL_RANK", cluster.machines[:rank].count(cluster.machines[rank])))
    if place >= (count := torch.cuda.device_count()):
        raise ClusterError(
            f"cluster {cluster.name} puts rank {rank} on {here.backend}:{place} and this process sees {count} such "
            f"devices with torch {torch.__version__}; take a cluster of cpu devices, or mark its devices ghost = true"
        )
    return f"{here.backend}:{place}"


def backend_of(cluster: Cluster) -> str:
    """What torch.distributed moves the tensors of a cluster with."""
    real = any(device.backend != CPU and not device.ghost for device in cluster.devices)
    return BOTH if real else GLOO


def taken_up(device: str, seed: int) -> None:
    """Make an accelerator the current one of this thread, and seed its random numbers."""
    if device != CPU:
        torch.cuda.set_device(device)
        torch.cuda.manual_seed(seed)


def clear_workspaces() -> None:
    """Give back the memory that cuBLAS keeps on accelerators; its next product takes it again."""
    clear: Any = torch._C._cuda_clearCublasWorkspaces
    clear()


def on(device: str) -> AbstractContextManager[Any]:
    """A context in which a thread launches to the device."""
    return nullcontext() if device == CPU else torch.cuda.device(device)


def in_tf32(code: Callable[..., None], device: str) -> Callable[..., None]:
    """`code` with fp32's products on a card in TF32, and as they were when it is done.

    By the setting of which all of torch knows: torch.compile cannot read what `backends.cuda.matmul.fp32_precision`
    alone was set to (pytorch issue 166387). Raises ClusterError for a card that has no TF32.
    """
    if torch.cuda.get_device_capability(device) < AMPERE:
        raise ClusterError(
            f"precision=tf32 asks for TF32, and {torch.cuda.get_device_name(device)} has none: NVIDIA's cards do from "
            "Ampere on; use precision=fp32"
        )

    def rounding(*given: Any) -> None:
        if torch.backends.cuda.matmul.fp32_precision == TF32:
            return code(*given)
        torch.set_float32_matmul_precision("high")
        try:
            code(*given)
        finally:
            torch.set_float32_matmul_precision("highest")

    return rounding


def to_device(tensor: torch.Tensor, device: str, floating: torch.dtype | None) -> torch.Tensor:
    """A sample's tensor on the device, a float as `floating` where it is given."""
    dtype = floating if floating is not None and tensor.is_floating_point() else tensor.dtype
    if device == CPU:
        return tensor.to(device, dtype)
    return tensor.pin_memory().to(device, dtype, non_blocking=True)


class Clock:
    """The times of a processor: an instruction is done when the clock is read."""

    def __call__(self, noted: bool) -> Seconds:
        """The time now; `noted` if it will be read later."""
        return time.perf_counter()

    def settle(self, spans: list[Span], ends: Ends) -> None:
        """Replace the host's times by the device's."""


class Moment(float):
    """A time on the host, and `at`, the time at which the device reached the same point, once known."""

    event: Any = None
    at: Seconds = 0.0


class Events(Clock):
    """The times of an accelerator, each measured from the one before, on the host's clock."""

    def __init__(self, device: str) -> None:
        self.event: Any = torch.cuda.Event
        self.stream = torch.cuda.default_stream(device)
        self.open: deque[Moment] = deque()
        self.order = threading.Lock()
        self.last = self._moment()
        self.last.event.synchronize()
        self.last.at = time.perf_counter()

    def __call__(self, noted: bool) -> Seconds:
        if not noted:
            return time.perf_counter()
        with self.order:  # events stand here as in the stream
            self.open.append(self._moment())
            if len(self.open) > AHEAD:
                self._close()
            return self.open[-1]

    def settle(self, spans: list[Span], ends: Ends) -> None:
        """Replace the times of `spans` and `ends` by those of their events."""
        with self.order:
            while self.open:
                self._close()
        spans[:] = [replace(span, start=_at(span.start), end=_at(span.end)) for span in spans]
        ends[:] = [(_at(end), core) for end, core in ends]

    def _moment(self) -> Moment:
        made = Moment(time.perf_counter())
        made.event = self.event(enable_timing=True)
        made.event.record(self.stream)
        return made

    def _close(self) -> None:
        """Read the oldest: from event to event, as an event's times are short numbers."""
        moment = self.open.popleft()
        moment.event.synchronize()
        moment.at = self.last.at + self.last.event.elapsed_time(moment.event) * 1e-3
        self.last = moment


def _at(moment: Seconds) -> Seconds:
    return moment.at if isinstance(moment, Moment) else moment


def clock_of(device: str) -> Clock:
    """The clock of a device."""
    return Clock() if device == CPU else Events(device)
