"""What `--json` prints: plain dicts of the documented keys.

A prediction and a measurement have one shape: seconds, bytes a rank, joules and money of one step; None is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from partita.cluster.cluster import Cluster, in_all
from partita.graph.tensor import PRECISION_OF
from partita.program.timeline import Timeline
from partita.recipes.catalogue import Recipe
from partita.report.comparison import Comparison, Row, error_of
from partita.report.setting import Setting
from partita.searches.candidate import recipe_of
from partita.searches.objective import money_of
from partita.searches.search import Search
from partita.searches.sweep import Sweep


def timeline_body(timeline: Timeline, setting: Setting) -> dict[str, Any]:
    """One prediction or measurement."""
    step = timeline.step_seconds
    devices, dtype = setting.devices[: timeline.ranks or None], PRECISION_OF.get(timeline.dtype, setting.dtype)
    peak = in_all(dict(device.flops).get(dtype, 0.0) * device.handling for device in devices)
    watts = in_all(device.power for device in devices)
    return {
        "plan": timeline.plan,
        "origin": timeline.origin,
        "step_seconds": step,
        "samples_per_second": timeline.batch / step if step else None,
        "epoch_seconds": step * (setting.samples // timeline.batch) if setting.samples else None,
        "peak_memory_bytes": list(timeline.memory),
        "resident_bytes": list(timeline.resident),
        "wire_bytes_sent": list(timeline.wire_sent),
        "breakdown": asdict(timeline.breakdown),
        "mfu": setting.flops / (step * peak) if step and peak and setting.flops else None,
        "energy_joules": watts * step if watts else None,
        "money": money_of(timeline, setting.devices) or None,
        "n": timeline.n,
        "low": timeline.low or step,
        "high": timeline.high or step,
    }


def search_body(search: Search, setting: Setting) -> dict[str, Any]:
    """The ranked candidates, best first, and how the search went."""
    return {
        "candidates": [
            timeline_body(c.timeline, setting)
            | {"plan": c.plan.name, "class": c.semantics, "fits": c.fits}
            | ({"steps_to_loss": search.steps_to_loss * c.needs} if search.steps_to_loss else {})
            | {"lower_bound_seconds": search.lower_bound_seconds, "gap": c.gap, "explanation": c.explanation}
            for c in search.candidates
        ],
        "search_seconds": search.search_seconds,
        "lower_bound_seconds": search.lower_bound_seconds,
        "objective": search.objective,
        "lower_bound": search.lower_bound,
        "gap": search.gap,
        "explanation": search.explanation,
        "space": search.space,
        "clocked": search.clocked,
        "fitting": search.fitting,
        "costs": search.costs,
        "costs_because": search.because,
        "refused": refused_body(search.refused),
        "codecs": [
            {"plan": p.plan, "gain": p.gain, "break_even_bandwidth": p.even or None, "explanation": str(p)}
            for p in search.pays
        ],
        "minibatches": [
            {
                "batch": m.point.batch, "rate": m.point.rate or None, "steps": m.steps, "step_seconds": m.step_seconds,
                "seconds": m.seconds, "plan": m.plan, "fits": m.fits, "costs": m.costs, "good": m.good,
                "loss": m.point.loss or None,
            }
            for m in search.minibatches
        ],
    }  # fmt: skip


def refused_body(refused: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Each refusal once: where several settings of a recipe get the same sentence, `plan` is the recipe, and `settings`
    how many they are."""
    alike: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for plan, why in refused:
        recipe = recipe_of(plan)
        alike.setdefault((recipe, why.replace(plan, recipe)), []).append((plan, why))
    return [
        {"plan": plan, "error": why, "settings": len(same)}
        for key, same in alike.items()
        for plan, why in [same[0] if len(same) == 1 else key]
    ]


def sweep_body(found: Sweep) -> dict[str, Any]:
    """The steps at other bandwidths, in bytes a second."""
    rows = [
        {
            "bandwidth": point.bandwidth, "step_seconds": point.seconds, "exposed_communication": point.waiting,
            "without_codec_seconds": point.plain or None,
        }
        for point in found.points
    ]  # fmt: skip
    even = (found.pays.even or None) if found.pays else None
    return {"sweep": {"over": "bandwidth", "own_bandwidth": found.own, "rows": rows, "break_even_bandwidth": even}}


def comparison_body(comparison: Comparison) -> dict[str, Any]:
    """The rows in the order in which the plans were given."""
    return {
        "task": comparison.task,
        "cluster": comparison.cluster.name,
        "rows": [row_body(row, comparison.setting) for row in comparison.rows],
        "notes": list(comparison.notes),
    }


def row_body(row: Row, setting: Setting) -> dict[str, Any]:
    """One plan of a comparison; `error` is there only where the plan could not be run."""
    body = {
        "plan": row.plan,
        "class": row.semantics or None,
        "predicted": timeline_body(row.predicted, setting) if row.predicted else None,
        "measured": timeline_body(row.measured, setting) if row.measured else None,
        "step_error": error_of(row),
        "naive": dict(row.naive),
        "loss": [list(point) for point in row.loss],
        "seconds_to_target": row.seconds_to_target,
        "steps_to_target": row.steps_to_target,
        "target_loss": row.target_loss,
        "final_loss": row.final_loss,
        "evaluations": [list(each) for each in row.evaluations],
    }
    over = {"over": "bandwidth", "rows": [{"bandwidth": at, "step_seconds": seconds} for at, seconds in row.over]}
    return body | ({"sweep": over} if row.over else {}) | ({"error": row.error} if row.error else {})


def recipes_body(recipes: Mapping[str, Recipe]) -> dict[str, Any]:
    """Every recipe with its knobs and their defaults; what is listed is lowered, so both readers take it."""
    return {
        "recipes": [
            {
                "name": name,
                "catalogue": list(recipe.catalogue),
                "group": recipe.group,
                "paper": recipe.paper,
                "fields": recipe.knobs,
                "simulates": True,
                "runs": True,
            }
            for name, recipe in recipes.items()
        ]
    }


def cluster_body(cluster: Cluster) -> dict[str, Any]:
    """The devices by rank, each with its own port into the lowest switch."""
    ports = [climb[-1].link for climb in cluster.climbs]
    return {
        "name": cluster.name,
        "size": cluster.size,
        "emulated": cluster.emulated,
        "devices": [
            asdict(device) | {"flops": dict(device.flops), "port": asdict(port)}
            for device, port in zip(cluster.devices, ports, strict=True)
        ],
    }
