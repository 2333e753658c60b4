"""What codecs need from the plan around them: momentum before the codec, and phases with denser codecs before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from partita.errors import PlanError
from partita.graph.graph import Graph
from partita.plan.plan import Correction, Phase, Plan, Update, alone
from partita.plan.wire import Codec
from partita.wire.codec import read_codecs, settings_of, spec_of

DENSEST: Final = 0.25
THINNER: Final = 4


def coded(plan: Plan, graph: Graph, ramp: int = 0, *, ahead: bool = False) -> Plan:
    """The plan with what its codecs need (SP-03): the task's momentum applied before dgc, or `ahead` of any codec; with
    `ramp`, phases of so many steps in which a quarter, a sixteenth, ... of the elements are sent, until the codec's own
    ratio.

    Raises PlanError for a momentum that cannot go before a codec, and for a ramp without a codec that has a ratio.
    """
    codecs = [codec for sync in plan.sync for codec in sync.wire.codecs]
    own = graph.optimizer.momentum
    if (own or ahead) and not alone(plan) and (ahead or any(spec_of(codec).ahead for codec in codecs)):
        fixed = graph.optimizer.fixed_to or ("" if own else "its optimizer has none")
        if fixed:
            raise PlanError(
                f"{plan.name} applies the task's momentum before its codec, and {fixed}; give SGD one momentum that "
                f"stays, without dampening, or {'leave ahead out' if ahead else 'another codec, such as topk'}"
            )
        rule = (("factor", own), ("nesterov", 1.0)) if graph.optimizer.nesterov else (("factor", own),)
        plan = with_update(plan, replace(plan.update, corrections=(Correction("momentum", rule),)))
    if not ramp:
        return plan
    ratios = [settings_of(codec)["ratio"] for codec in codecs if "ratio" in settings_of(codec)]
    if not ratios:
        raise PlanError(
            f"{plan.name}(ramp={ramp}) has no codec with a ratio, which could begin denser; give one, such as topk or "
            "dgc, or leave ramp out"
        )
    found, ratio = list[Phase](), DENSEST
    before = tuple(Phase(phase.steps, thinned(phase.plan, DENSEST)) for phase in plan.before)
    while ratio > min(ratios):
        found.append(Phase(ramp, replace(thinned(plan, ratio), before=())))
        ratio /= THINNER
    return replace(plan, before=(*before, *found))


def of_differences(plan: Plan, codec: str, share: float) -> Plan:
    """The plan with codecs, at the ends, of how gradients differ from what was said of them before, which moves by
    that `share` of what a message says. Raises PlanError where there is no codec, or one cannot do that."""
    if not (codecs := read_codecs(codec, hops=False, difference=share)):
        raise PlanError(f"{plan.name} encodes differences, and codec=none encodes nothing; give one, or take ddp")
    return replace(plan, sync=tuple(replace(s, wire=replace(s.wire, codecs=codecs)) for s in plan.sync))


def with_update(plan: Plan, update: Update) -> Plan:
    """The plan, and the phases before it, with another update."""
    before = tuple(replace(phase, plan=replace(phase.plan, update=update)) for phase in plan.before)
    return replace(plan, update=update, before=before)


def thinned(plan: Plan, ratio: float) -> Plan:
    """The plan with codecs that send at least the fraction `ratio` of the elements."""

    def denser(codec: Codec) -> Codec:
        settings = settings_of(codec)
        if settings.get("ratio", 1.0) >= ratio:
            return codec
        rest = tuple(one for one in codec.settings if one[0] != "ratio")
        return replace(codec, settings=(("ratio", ratio), *rest))

    return replace(
        plan,
        sync=tuple(replace(s, wire=replace(s.wire, codecs=tuple(map(denser, s.wire.codecs)))) for s in plan.sync),
    )
