"""Data parallelism for people who keep their own training loop.

backward   hooks: .grad times this rank's share of the minibatch -> bucket -> all-reduce, while backward goes on
           at its end: wait for every bucket; .grad is then that of the whole minibatch
backward   again before the step: what .grad has is alike on all ranks, whose shares add up to one, so it stays
step       local_sgd: after every `period`-th step the weights are averaged
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from partita.cluster.cluster import Cluster
from partita.cluster.text import load_cluster
from partita.errors import InputError, OptionError, PlanError
from partita.graph.graph import Graph, Parameter
from partita.graph.operator import Ref
from partita.graph.tensor import Tensor
from partita.plan.plan import Plan, agreement_of
from partita.plan.sync import Payload, Sync
from partita.program.layout import even
from partita.recipes.reading import read_text
from partita.runtime.generators import generators_kept, host_states, seed_all, set_host_states
from partita.tracing.spelling import spelt
from partita.units import Bytes


@dataclass
class Slices:
    """A DataLoader of this rank's part of every minibatch of another DataLoader; `share` is the current part's fraction
    of the minibatch.

    All ranks draw the same minibatches, from `seed` and the epoch, and take different positions of each. Minibatches
    with fewer samples than ranks are left out, and do not count; of those of a batch sampler nobody knows the sizes.
    """

    whole: DataLoader[Any]
    rank: int
    world: int
    seed: int
    epoch: int = 0
    share: float = 1.0

    def __iter__(self) -> Iterator[Any]:
        shares: deque[float] = deque()
        w = self.whole
        loader: DataLoader[Any] = DataLoader(
            w.dataset, batch_sampler=self._own(shares), num_workers=w.num_workers, collate_fn=w.collate_fn,
            pin_memory=w.pin_memory, timeout=w.timeout, worker_init_fn=w.worker_init_fn,
            multiprocessing_context=w.multiprocessing_context,
        )  # fmt: skip
        for samples in loader:
            self.share = shares.popleft()
            yield samples

    def __len__(self) -> int:
        w = self.whole
        if w.batch_size is None:
            return len(w)
        full, last = divmod(len(w.sampler), w.batch_size)  # type: ignore[arg-type]
        return full * (w.batch_size >= self.world) + (last >= self.world and not w.drop_last)

    def _own(self, shares: deque[float]) -> Iterator[list[Any]]:
        """This rank's positions of an epoch's minibatches, each drawn when it is asked for, as a sampler may have no
        end; what it draws is apart from what the loop draws. `shares` is told of each."""
        with generators_kept():
            seed_all(self.seed + self.epoch)
            batches, drawn = iter(() if self.whole.batch_sampler is None else self.whole.batch_sampler), host_states()
        self.epoch += 1
        while True:
            with generators_kept():
                set_host_states(drawn)
                batch, drawn = next(batches, None), host_states()
            if batch is None:
                return
            if len(batch := list(batch)) >= self.world:
                part = self._part(batch)
                shares.append(len(part) / len(batch))
                yield part

    def _part(self, batch: list[Any]) -> list[Any]:
        edges = even(len(batch), self.world)
        return batch[edges[self.rank] : edges[self.rank + 1]]


@dataclass
class Reducer:
    """All-reduces the gradients of `buckets` as backward completes them; in the same order on all ranks."""

    buckets: list[list[torch.Tensor]]
    loader: Slices
    missing: list[set[int]] = field(default_factory=list)
    sent: list[tuple[Any, torch.Tensor]] = field(default_factory=list)

    def watch(self) -> None:
        """Register a hook on every parameter."""
        self.begin()
        for i, bucket in enumerate(self.buckets):
            for parameter in bucket:
                hooked: Any = parameter
                hooked.register_post_accumulate_grad_hook(partial(self.ready, i))

    def begin(self) -> None:
        """Prepare for the next backward."""
        self.missing = [{id(p) for p in bucket} for bucket in self.buckets]
        self.sent = []

    def ready(self, i: int, parameter: torch.Tensor) -> None:
        """A gradient is complete: send complete buckets, as long as all buckets before them are sent."""
        if not self.sent and all(len(m) == len(b) for m, b in zip(self.missing, self.buckets, strict=True)):
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self.finish)
        self.missing[i].discard(id(parameter))
        while len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
            self.send()

    def send(self) -> None:
        """Start the next bucket's all-reduce; a parameter that backward did not reach counts as zero."""
        bucket = self.buckets[len(self.sent)]
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([part.reshape(-1) for part in parts]) * self.loader.share
        self.sent.append((dist.all_reduce(flat, async_op=True), flat))

    def finish(self) -> None:
        """At the end of backward: send the rest, wait for all, and store the sums as gradients."""
        while len(self.sent) < len(self.buckets):
            self.send()
        for (work, flat), bucket in zip(self.sent, self.buckets, strict=True):
            work.wait()
            for parameter, part in zip(bucket, torch.split(flat, [p.numel() for p in bucket]), strict=True):
                if parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)
                parameter.grad.copy_(part.view_as(parameter))
        self.begin()


def apply(plan: Plan | str, model: Any, optimizer: Any, loader: Any) -> tuple[Any, Any, Any]:
    """What `partita.api.apply` promises, carried out."""
    rank, world = _place()
    made = _plan_of(plan, model, world)
    sync = agreement_of(made)
    _refuse(made, sync, world)
    if world == 1:
        return model, optimizer, loader
    if (
        not isinstance(loader, DataLoader)
        or loader.batch_sampler is None
        or isinstance(loader.dataset, IterableDataset)
    ):
        raise OptionError(
            f"the loader is {type(loader).__name__}; give a DataLoader with batches of a map-style dataset"
        )
    if any(getattr(each, "num_replicas", 1) > 1 for each in _drawing(loader)):
        raise OptionError(
            "the loader's sampler divides the samples among ranks already; give the DataLoader of one process, without "
            "a DistributedSampler: partita.apply divides its minibatches"
        )
    seed = torch.randint(2**31, (1,), device=next(model.parameters()).device)
    with torch.no_grad():
        for tensor in (seed, *model.parameters(), *model.buffers()):
            dist.broadcast(tensor, 0)
    for generator in _generators(loader):
        state = generator.get_state().to(seed.device)
        dist.broadcast(state, 0)
        generator.set_state(state.cpu())
    slices = Slices(loader, rank, world, int(seed))
    if sync.payload is Payload.PARAMETER:
        _average(model, optimizer, sync.frequency.period, world)
        return model, optimizer, slices
    reducer = Reducer(_buckets(model, sync.wire.first_bucket_bytes, sync.wire.bucket_bytes), slices)
    reducer.watch()
    return model, optimizer, slices


def _drawing(loader: DataLoader[Any]) -> tuple[Any, ...]:
    """What draws a loader's minibatches."""
    return loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)


def _generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    """The generators of its own from which a loader draws minibatches."""
    found = {
        id(own): own
        for each in _drawing(loader)
        if isinstance(own := getattr(each, "generator", None), torch.Generator)
    }
    return list(found.values())


def _place() -> tuple[int, int]:
    """(rank, world size); joins the other ranks unless the caller has."""
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            raise OptionError(
                "partita.apply needs the ranks that torchrun starts; run torchrun --nproc-per-node=N FILE"
            )
        dist.init_process_group()
        atexit.register(_leave)
    return dist.get_rank(), dist.get_world_size()


def _leave() -> None:
    """Ends the process group before the interpreter does, whose threads it would outlive."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _plan_of(plan: Plan | str, model: Any, world: int) -> Plan:
    """The Plan of a text, for `world` equal devices and a graph that has only the model's parameters."""
    wanted = plan if isinstance(plan, Plan) else read_text(plan)
    if isinstance(wanted, Plan):
        return wanted
    if wanted is None:
        raise PlanError("auto needs a captured task; choose a plan with `partita plan` and give its name here")
    cluster: Cluster = load_cluster(f"local:{world}")
    parameters = tuple(Parameter(name, Tensor(tuple(p.shape), spelt(p.dtype))) for name, p in model.named_parameters())
    bare = Graph("model", world, (), parameters, (), (), (), Ref("loss"), None, ())
    try:
        return wanted.plan(bare, cluster)
    except InputError:
        raise
    except Exception as error:
        raise PlanError(f"{wanted.name} needs a captured task ({error}); give the Plan that it makes of one") from error


def _refuse(plan: Plan, sync: Sync, world: int) -> None:
    # Order, slices and algorithms say when messages are sent, which the backend decides here; codecs what they hold.
    plain = Sync(over=sync.over, payload=sync.payload, frequency=sync.frequency, wire=replace(sync.wire, codecs=()))
    shape = Plan(plan.name, plan.mesh, sync=plan.sync)
    gradients = sync.payload is Payload.GRADIENT and sync.frequency.period == 1
    weights = sync.payload is Payload.PARAMETER and sync.frequency.period >= 1
    same = sync == plain and plan == shape and len(plan.sync) <= 1 and (gradients or weights)
    if not same or any(axis != "data" and length > 1 for axis, length in plan.mesh.axes):
        raise PlanError(
            f"{plan.name} is more than a loop's backward() and step() can mean; partita.apply takes single, ddp and "
            "local_sgd without microbatches, and partita.train carries out the others"
        )
    if plan.mesh.size != world or (world > 1 and not plan.sync):
        raise PlanError(f"{plan.name} is for {plan.mesh.size} ranks and torchrun started {world}; make them equal")


def _buckets(model: Any, first: Bytes, limit: Bytes) -> list[list[torch.Tensor]]:
    """Trainable parameters from the last to the first, about as backward completes them, in buckets of one dtype that
    close once they hold `limit` bytes (the first one `first`)."""
    found: list[list[torch.Tensor]] = []
    held = 0
    for parameter in reversed([p for p in model.parameters() if p.requires_grad]):
        most = min(first or limit, limit) if len(found) == 1 else limit
        if not found or held >= most or found[-1][0].dtype != parameter.dtype:
            found.append([])
            held = 0
        found[-1].append(parameter)
        held += parameter.numel() * parameter.element_size()
    return found


def _average(model: Any, optimizer: Any, period: int, world: int) -> None:
    steps = 0

    def averaged(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps % period:
            return
        with torch.no_grad():
            works = [dist.all_reduce(p, async_op=True) for p in model.parameters() if p.requires_grad]
            for work in works:
                work.wait()
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter /= world

    optimizer.register_step_post_hook(averaged)
