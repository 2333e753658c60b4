"""A recipe from outside the package: exact sums first, while weights move most, and coded ones after.

PARTITA_PLUGINS=examples/own_recipe.py partita verify digits-cnn --cluster local:4 --plan "coded_later(exact=2)"
"""

from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.mesh import Mesh
from partita.plan.plan import Phase, Plan
from partita.plan.sync import Sync
from partita.plan.wire import Wire
from partita.wire.codec import read_codecs


def coded_later(
    graph: Graph, cluster: Cluster, costs: Costs | None = None, *, exact: int = 100, codec: str = "fp16",
    bucket_bytes: int = 4 * 2**20,
) -> Plan:  # fmt: skip
    """Gradients all-reduced as they are for `exact` steps, by `codec` from then on."""
    mesh, wire = Mesh((("data", cluster.size),)), Wire(bucket_bytes=bucket_bytes, first_bucket_bytes=bucket_bytes)
    first = Plan("coded_later", mesh, sync=(Sync(wire=wire),))
    later = Wire(bucket_bytes=bucket_bytes, first_bucket_bytes=bucket_bytes, codecs=read_codecs(codec))
    return Plan("coded_later", mesh, sync=(Sync(wire=later),), before=(Phase(exact, first),) if exact else ())


RECIPES = {"coded_later": coded_later}
