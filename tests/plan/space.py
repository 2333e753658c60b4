"""Twenty-two methods as Plans: the specification of what a Plan must be able to say.

Values, not recipes: the recipes come one by one, and each must give a Plan of the shape that stands here.
"""

from __future__ import annotations

from typing import Final

from partita.plan.memory import Memory, Offload, Recompute, Shard
from partita.plan.mesh import Mesh, Split, Stage
from partita.plan.plan import Correction, Phase, Plan, Update
from partita.plan.schedule import Order, Schedule, Versions
from partita.plan.sync import Consistency, Frequency, Gossip, Outer, Payload, Servers, SharedMemory, Sync
from partita.plan.wire import Codec, Priority, Wire

FOUR: Final = Mesh((("data", 4),))
PIPE: Final = Mesh((("pipe", 4),))
STAGES: Final = tuple(Stage(first) for first in ("", "layers.3", "layers.6", "layers.9"))
RING: Final = Sync()

ddp = Plan("ddp", FOUR, sync=(RING,))
ps_async = Plan("ps_async", FOUR, sync=(Sync(through=Servers(), consistency=Consistency(staleness=-1)),))
ssp = Plan(
    "ssp(staleness=3)",
    FOUR,
    sync=(Sync(through=Servers(2), payload=Payload.DELTA, consistency=Consistency(staleness=3)),),
)
backup_workers = Plan(
    "backup_workers(backup=1)", FOUR, sync=(Sync(through=Servers(), consistency=Consistency(need=3, late="drop")),)
)
ad_psgd = Plan(
    "ad_psgd",
    FOUR,
    sync=(Sync(through=Gossip("pair"), payload=Payload.PARAMETER, consistency=Consistency(staleness=-1)),),
)
easgd = Plan(
    "easgd", FOUR,
    sync=(
        Sync(
            through=Servers(), payload=Payload.ELASTIC, consistency=Consistency(staleness=-1),
            frequency=Frequency(10), outer=Outer(0.1),
        ),
    ),
)  # fmt: skip
diloco = Plan(
    "diloco(period=500,fragments=4)", FOUR,
    sync=(Sync(payload=Payload.DELTA, frequency=Frequency(500, 4), outer=Outer(0.7, 0.9, nesterov=True)),),
)  # fmt: skip
pipe_sgd = Plan("pipe_sgd(warmup=100)", FOUR, sync=(Sync(consistency=Consistency(lag=1)),), before=(Phase(100, ddp),))
zero3 = Plan("zero3", FOUR, sync=(RING,), memory=Memory(Shard.PARAMETERS))
gpipe = Plan(
    "gpipe(microbatches=8)",
    PIPE,
    STAGES,
    schedule=Schedule(Order.FILL_DRAIN, 8),
    memory=Memory(recompute=Recompute.FULL),
)
pipedream = Plan(
    "pipedream", Mesh((("pipe", 3),)), (Stage("", (0, 1)), Stage("layers.4", (2,)), Stage("layers.8", (3,))),
    schedule=Schedule(Order.ONE_F_ONE_B, flush=False, versions=Versions.STASH, update_every=1), sync=(RING,),
)  # fmt: skip
gems = Plan("gems(times=2)", PIPE, STAGES, schedule=Schedule(Order.BIDIRECTIONAL, 4), sync=(RING,))
ampnet = Plan(
    "ampnet", PIPE, STAGES,
    schedule=Schedule(Order.MESSAGE, flush=False, in_flight=8, update_every=4),
)  # fmt: skip
megatron = Plan(
    "megatron(tensor=2)", Mesh((("data", 2), ("tensor", 2))), sync=(RING,),
    splits=(Split(), Split("*.attn.c_attn", "head", "tensor"), Split("*.mlp.c_fc", "output", "tensor"),
            Split("*.mlp.c_proj", "reduce", "tensor")),
)  # fmt: skip
owt = Plan(
    "owt(scheme=b)", FOUR, sync=(Sync(parameters="features.*"),),
    splits=(Split("features.*"), Split("classifier.*", "output", "data", scheme="b")),
)  # fmt: skip
spatial = Plan(
    "spatial", Mesh((("height", 2), ("width", 2))), sync=(Sync(over="height"), Sync(over="width")),
    splits=(Split("*", "height", "height"), Split("*", "width", "width")),
)  # fmt: skip
flexflow = Plan(
    "flexflow", FOUR, sync=(RING,),
    splits=(Split("conv1", "sample", "data", (0, 1)), Split("conv2", "height", "data", (2, 3)), Split("fc", "output")),
)  # fmt: skip
karma = Plan(
    "karma", FOUR, sync=(RING,),
    memory=Memory(recompute=Recompute.SELECTIVE, recomputed=("layers.1", "layers.3"),
                  offload=(Offload("activations", "layers.0", "host", 2), Offload("optimizer", update=True))),
)  # fmt: skip
bytescheduler = Plan(
    "bytescheduler", FOUR,
    sync=(Sync(wire=Wire(order=Priority.CREDIT, slice_bytes=4 * 10**6, credit_bytes=16 * 10**6)),),
)  # fmt: skip
hogwild = Plan("hogwild", FOUR, sync=(Sync(through=SharedMemory(), consistency=Consistency(staleness=-1)),))


def dgc_of(ratio: float) -> Codec:
    return Codec("dgc", settings=(("ratio", ratio),))


dgc = Plan(
    "ddp(codec=dgc)", FOUR,
    sync=(Sync(wire=Wire(codecs=(Codec("dgc", error_feedback=True, settings=(("ratio", 0.001), ("clip", 2.0))),))),),
    update=Update(corrections=(Correction("momentum", (("factor", 0.9),)),)),
    before=tuple(
        Phase(steps, Plan("ddp(codec=dgc)", FOUR, sync=(Sync(wire=Wire(codecs=(dgc_of(r),))),)))
        for steps, r in ((50, 0.25), (50, 0.0625))
    ),
)  # fmt: skip
powersgd = Plan(
    "ddp(codec=powersgd)", FOUR,
    sync=(Sync(wire=Wire(codecs=(Codec("powersgd", error_feedback=True, settings=(("rank", 4.0),)),))),),
)  # fmt: skip

SPACE: Final = (
    ddp, ps_async, ssp, backup_workers, ad_psgd, easgd, diloco, pipe_sgd, zero3, gpipe, pipedream, gems, ampnet,
    megatron, owt, spatial, flexflow, karma, bytescheduler, hogwild, dgc, powersgd,
)  # fmt: skip
