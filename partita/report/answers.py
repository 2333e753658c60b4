"""What commands answer, made from what their verbs returned: a body for programs, text for people, an exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from partita.cluster.cluster import Cluster
from partita.errors import OptionError
from partita.graph.graph import Graph
from partita.program.held_out import best_of
from partita.program.timeline import Timeline
from partita.recipes.catalogue import RECIPES, parse
from partita.recipes.values import values_of
from partita.report.answer import Answer, lines_of
from partita.report.comparison import Comparison, verdict
from partita.report.json import (
    comparison_body,
    recipes_body,
    search_body,
    sweep_body,
    timeline_body,
)
from partita.report.map import map_about, map_lines, turns
from partita.report.setting import setting_of
from partita.report.table import (
    comparison_table,
    costs_line,
    minibatch_table,
    recipes_table,
    refusals,
    search_table,
    sweep_table,
    timeline_table,
)
from partita.report.trained import Trained
from partita.report.verdict import Verdict
from partita.searches.break_even import in_lines
from partita.searches.fit import Fit
from partita.searches.memory_bound import MemoryBound, memory_bound_of
from partita.searches.objective import DOES, show_objective
from partita.searches.search import Search
from partita.searches.sweep import Sweep
from partita.units import show_bandwidth, show_bytes, show_seconds


def search_answer(found: Search, graph: Graph, cluster: Cluster) -> Answer:
    """A ranking; its answer is no where nothing fits."""
    chosen = replace(graph, global_batch=found.minibatches[0].point.batch) if found.minibatches else graph
    body = search_body(found, setting_of(chosen, cluster))
    table = search_table(found, cluster.devices)
    if not any(candidate.fits for candidate in found.candidates):
        why = bound_words(memory_bound_of(graph, cluster))
        words = f"no plan for {graph.name} fits the memory of {cluster.name}: {why}; partita fit says what would"
        return Answer(body, (table,), 1, words)
    costs = () if found.because in found.explanation else (costs_line(found.costs, found.because),)
    none = "none of those that were timed" if found.costs == "measured" else "none"
    does, least = DOES[found.objective], show_objective(found.lower_bound, found.objective)
    worse = f"than {least}, and the best predicted {does} {found.gap:.2%} more"
    size = (
        f"every one of {found.space:,} points priced by formula, by which {found.fitting:,} fit; {found.clocked:,} "
        f"simulated; {none} {does} less {worse if found.gap > 0 else 'than the best predicted'}; searched for "
        f"{show_seconds(found.search_seconds)}"
    )
    minibatches = (minibatch_table(found),) if found.minibatches else ()
    return Answer(body, (table, *minibatches, found.explanation, *in_lines(found.pays), size, *costs))


def timeline_answer(timeline: Timeline, graph: Graph, cluster: Cluster, source: str, because: str) -> Answer:
    """A prediction by costs from `source`."""
    body = timeline_body(timeline, setting_of(graph, cluster)) | {"costs": source, "costs_because": because}
    return Answer(body, (timeline_table(timeline), costs_line(source, because)))


def sweep_answer(answer: Answer, found: Sweep) -> Answer:
    """A prediction, and the same at other bandwidths; where codecs pay."""
    words = (str(found.pays),) if found.pays else ()
    return replace(answer, body={**answer.body, **sweep_body(found)}, text=(*answer.text, sweep_table(found), *words))


def trained_answer(done: Trained) -> Answer:
    """A finished run. Its notes were told while it ran, so they stand in the body only."""
    body = timeline_body(done.timeline, done.setting) | {
        "final_loss": done.final_loss, "steps": done.steps, "loss": done.loss, "weights": done.weights_path,
        "notes": done.notes, "final_loss_of": done.judged, "evaluations": done.evaluations,
        "best_weights": done.best_path,
    }  # fmt: skip
    of = f", of {done.judged}" if done.judged else ""
    words = f"final loss {done.final_loss:.6g} after {done.steps} steps{of}"
    best, paths = best_of(done.evaluations), {"weights": done.weights_path, "best": done.best_path}
    told = (f"best of {len(done.evaluations)} evaluations: {best[1]:.6g} after {best[0]} steps",) if best else ()
    return Answer(body, (timeline_table(done.timeline), words, *told, *lines_of(paths)))


def comparison_answer(found: Comparison) -> Answer:
    """Plans side by side; the answer is no where none of them could be run."""
    body = comparison_body(found)
    over = turns(map_lines(found))
    words = (f"the quickest {map_about(found)}, by bandwidth: {over}",) if over else ()
    text = (comparison_table(found), *refusals(found), verdict(found), *words, *found.notes)
    none = "none of the plans could be run; each row says why" if all(row.error for row in found.rows) else ""
    return Answer(body, text, int(bool(none)), none)


def verdict_answer(found: Verdict, plan: str) -> Answer:
    """Whether a plan trains as its class says."""
    body = {("class" if key == "semantics" else key): value for key, value in asdict(found).items()}
    measured = f"{found.max_difference:.3g} apart from {found.against}, tolerance {found.tolerance:.3g}"
    single = (
        f"in fp32 {found.fp32_difference:.3g} apart; the serial training fed in two halves is "
        f"{found.control_difference:.3g} from itself"
    )
    if not found.equal:
        why = f"; {found.because}" if found.because else ""
        return Answer(body, (), 1, f"{plan} is not equal ({found.semantics}): {measured} ({single}){why}")
    return Answer(body, (f"{plan} is equal ({found.semantics}): {measured}", single))


def fit_answer(found: Fit, cluster: Cluster) -> Answer:
    """Whether a plan fits, by how much and how surely, what the memory is for, what to change."""
    plan, used = found.plan.name, max(found.used)
    body = {
        "plan": plan, "fits": found.fits, "margin_bytes": found.margin, "error_bytes": found.error,
        "change": found.change or None, "slower": found.slower or None, "peak_memory_bytes": found.used,
        "breakdown_bytes": found.parts, "bound_bytes": found.bound.bytes if found.bound else None,
    }  # fmt: skip
    parts = ", ".join(f"{name} {show_bytes(size)}" for name, size in found.parts.items() if size)
    sure = f"{show_bytes(used)} give or take {show_bytes(found.error)}: {parts}"
    if found.fits:
        words = f"{plan} fits {cluster.name}, with {show_bytes(found.margin)} to spare on the fullest device"
        return Answer(body, (words, sure))
    by = show_bytes(abs(found.margin))
    missing = f"{by} too much" if found.margin < 0 else f"{by} to spare, which is less than the prediction may be off,"
    cost = f" (a step takes {found.slower:.2f} times the fastest plan's)" if found.slower else ""
    words = f"{plan} does not {'surely ' if found.unsure else ''}fit {cluster.name}: {missing} on the fullest device"
    none = f"; no plan of the search fits: {bound_words(found.bound)}" if found.bound else ""
    return Answer(body, (sure,), 1, f"{words}{none}; {found.change}{cost}")


def bound_words(bound: MemoryBound) -> str:
    """What every plan needs."""
    frozen = f" that is trained and {show_bytes(bound.frozen)} of others" if bound.frozen else ""
    where = f"each of {bound.devices} devices" if bound.devices > 1 else "the one device"
    state = f"{bound.each:g} bytes a parameter{frozen} are {show_bytes(bound.state)} on {where}"
    return f"{state}, and {bound.target} alone takes {show_bytes(bound.widest)} for one sample"


def graph_answer(graph: Graph, path: str | None) -> Answer:
    """A captured graph, and where it was written."""
    body: dict[str, Any] = {
        "name": graph.name, "operators": len(graph.operators), "parameters": graph.parameter_elements,
        "batch": graph.minibatch, "samples": graph.samples, "rung": graph.rung, "blind": graph.blind,
        "symbolic": graph.symbolic, "path": path,
    }  # fmt: skip
    whole = (
        f"the model is one operator, since it cannot be traced: {graph.blind.rstrip('.')}. Nothing inside it is seen, "
        "and only its samples can be divided"
    )
    holds = "any number of samples" if graph.symbolic else f"{graph.batch} samples only; {graph.blind}"
    said = {
        "task": graph.name, "operators": f"{len(graph.operators):,}", "parameters": f"{graph.parameter_elements:,}",
        "minibatch": f"{graph.minibatch:,} of {graph.samples:,} samples", "holds for": holds,
        "note": whole if graph.rung == "opaque" else "", "written to": path,
    }  # fmt: skip
    return Answer(body, lines_of(said))


def recipes_answer(name: str) -> Answer:
    """All recipes, or one and its description. Raises PlanError for a name that is none."""
    import inspect

    chosen = {key: RECIPES[key] for key in ([parse(name)[0]] if name else RECIPES)}
    if not name:
        return Answer(recipes_body(chosen), (recipes_table(chosen),))
    [recipe] = chosen.values()
    values, why = _words_of(recipe.knobs)
    words = lines_of({knob: ", ".join(some) for knob, some in values.items()})
    text = filter(None, (inspect.getdoc(recipe.make), "Values of its knobs that are words:", *words, why))
    return Answer({**recipes_body(chosen), "values": values}, (recipes_table(chosen), *text))


def _words_of(knobs: Mapping[str, Any]) -> tuple[dict[str, tuple[str, ...]], str]:
    """The words that knobs allow; where a plugin may add some and cannot be loaded, none and the sentence on it."""
    try:
        values = {knob: values_of(knob, default) for knob, default in knobs.items()}
    except OptionError as error:
        return {}, str(error)
    return {knob: some for knob, some in values.items() if some}, ""


def probe_answer(found: Mapping[str, Any]) -> Answer:
    """The measured links of a cluster."""
    wiring = found["wiring"]
    lines: tuple[str, ...] = ()
    if wiring:
        seconds = {name: show_seconds(wiring[name] * 1e9) for name in ("sent", "received", "reduced")}
        lines = lines_of(
            {
                "payload": f"{show_bandwidth(found['bandwidth'])}, {wiring['efficiency']:.0%} of the narrowest link",
                "latency of a message": show_seconds(wiring["message"]),
                "core-seconds of its call": show_seconds(wiring["start"]),
                "core-seconds of a GB": ", ".join(f"{name} {value}" for name, value in seconds.items()),
            }
        )
    return Answer(dict(found), (found["cluster"], *lines, *found["notes"]))


def doctor_answer(found: Mapping[str, Any]) -> Answer:
    """What this machine has, and a sentence on each thing that it lacks."""
    tools = ", ".join(name for name, path in found["tools"].items() if path)
    has = {name: found[name] for name in ("python", "torch", "processor", "cores")}
    has |= {"memory": show_bytes(found["memory_bytes"]), "cuda": ", ".join(found["cuda"]), "tools": tools}
    return Answer(dict(found), (*lines_of(has), *found["missing"]))
