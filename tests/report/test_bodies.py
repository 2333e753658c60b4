from __future__ import annotations

import json
from dataclasses import replace
from inspect import getdoc

import pytest

from partita.cluster.cluster import Cluster, Group
from partita.cluster.show import show_cluster
from partita.plan.memory import Shard
from partita.plan.wire import Priority
from partita.recipes.catalogue import RECIPES
from partita.recipes.values import values_of
from partita.report.answer import write_json
from partita.report.answers import recipes_answer
from partita.report.json import cluster_body, comparison_body, recipes_body, refused_body, timeline_body
from partita.report.setting import Setting, setting_of
from partita.units import show_bytes, show_seconds
from tests.report.timelines import comparison, measured, predicted
from tests.small import cluster_of, two_layers

KEYS = {
    "plan", "step_seconds", "samples_per_second", "epoch_seconds", "peak_memory_bytes", "wire_bytes_sent", "breakdown",
    "mfu", "energy_joules", "money", "n", "low", "high",
}  # fmt: skip
PARTS = ["forward", "backward", "optimizer", "codec", "data", "exposed_communication", "idle"]


def test_a_prediction_has_the_documented_keys() -> None:
    body = timeline_body(predicted(), Setting())
    assert set(body) >= KEYS
    assert list(body["breakdown"]) == PARTS


def test_what_is_not_known_is_null() -> None:
    body = timeline_body(predicted(), Setting())
    assert [body[key] for key in ("epoch_seconds", "mfu", "energy_joules", "money")] == [None] * 4


def test_numbers_of_a_step() -> None:
    device = replace(cluster_of(1).devices[0], flops=(("fp32", 100.0),), power=200.0, price=36.0)
    body = timeline_body(predicted(), Setting(samples=35, flops=50.0, devices=(device,) * 4))
    assert body["samples_per_second"] == 16
    assert body["epoch_seconds"] == 0.5 * 4
    assert body["mfu"] == 50 / (0.5 * 200)  # two ranks of the four devices
    assert body["energy_joules"] == 0.5 * 400
    assert body["money"] == pytest.approx(0.5 * 2 * 36 / 3600)


def test_what_one_device_does_not_state_is_known_of_none() -> None:
    stated = replace(cluster_of(1).devices[0], flops=(("fp32", 100.0),), power=200.0, price=36.0)
    for other in (replace(stated, flops=()), replace(stated, power=0.0), replace(stated, price=0.0)):
        body = timeline_body(predicted(), Setting(flops=50.0, devices=(stated, other)))
        unknown = [key for key in ("mfu", "energy_joules", "money") if body[key] is None]
        assert len(unknown) == 1, unknown
        group = Group("root", (stated, other), cluster_of(2).root.ports)
        assert (" kW" in show_cluster(Cluster("two", group))) is (other.power > 0)


def test_one_run_is_its_own_range() -> None:
    assert (timeline_body(predicted(), Setting())["low"], timeline_body(measured(), Setting())["low"]) == (0.5, 0.39)


def test_model_flops_are_those_of_the_products() -> None:
    """Five products of 8 samples: x a, h b, their gradients but x's."""
    found = setting_of(two_layers(), cluster_of(2))
    assert found.flops == 2 * 8 * (4 * 6 + 6 * 2 + 6 * 2 + 6 * 2 + 4 * 6)
    assert (found.samples, found.dtype, len(found.devices)) == (64, "fp32", 2)


def test_rows_keep_their_order_and_say_their_errors() -> None:
    body = comparison_body(comparison())
    assert [row["plan"] for row in body["rows"]] == ["ddp", "x(<b>\x1b[31m)", "slow"]
    assert ["error" in row for row in body["rows"]] == [False, True, False]
    assert body["rows"][0]["step_error"] == pytest.approx(0.25)


def test_rows_have_the_mfu_of_their_setting() -> None:
    device = replace(cluster_of(1).devices[0], flops=(("fp32", 100.0),))
    row = comparison_body(replace(comparison(), setting=Setting(8, 20.0, devices=(device,) * 2)))["rows"][0]
    assert (row["predicted"]["mfu"], row["measured"]["mfu"]) == (20 / (0.5 * 200), 20 / (0.4 * 200))
    assert row["measured"]["epoch_seconds"] == 0.4


def test_what_a_step_costs_is_that_of_the_devices_it_occupies() -> None:
    """Also of a training, whose memory was not measured; by the speed of the precision that it computes in."""
    device = replace(cluster_of(1).devices[0], flops=(("fp32", 100.0), ("bf16", 800.0)), power=3.0, price=7200.0)
    setting = Setting(8, 20.0, devices=(device,) * 4)
    trained = replace(measured(), memory=(), dtype="bfloat16")
    assert trained.ranks == 2
    body = timeline_body(trained, setting)
    assert (body["mfu"], body["energy_joules"], body["money"]) == (20 / (0.4 * 1600), 6 * 0.4, 4 * 0.4)
    assert timeline_body(replace(trained, dtype=""), setting)["mfu"] == 20 / (0.4 * 200)


def test_json_is_one_valid_object_whatever_the_numbers() -> None:
    body = json.loads(write_json(comparison_body(comparison())))
    assert body["schema"] == 1
    assert body["rows"][0]["loss"] == [[0, 0.0, 2.5], [1, 0.4, 1.5], [2, 0.8, None]]


def test_numbers_are_printed_in_full_up_to_the_next_unit() -> None:
    assert [show_bytes(size) for size in (999, 1023, 1020 * 2**20, 5000 * 2**40)] == [
        "999 B", "1023 B", "1020 MiB", "5000 TiB"
    ]  # fmt: skip
    assert [show_seconds(time) for time in (0.0, 0.0123, 0.9999, 3600 * 2000)] == [
        "0 ns",
        "12.3 ms",
        "1000 ms",
        "2000 h",
    ]


@pytest.mark.parametrize("call", ["ddp", "ddp(bucket_bytes=3)"])
def test_a_recipe_is_described_whatever_its_knobs(call: str) -> None:
    assert getdoc(RECIPES["ddp"].make) in recipes_answer(call).text


def test_a_recipe_says_which_words_its_knobs_allow() -> None:
    said = "\n".join(map(str, recipes_answer("ddp").text))
    for words in (
        "none, optimizer, gradients, parameters",
        "none, fp16, bf16",
        "backend, auto, ring",
        "fifo, priority",
    ):
        assert words in said
    values = recipes_answer("ddp").body["values"]
    assert (values["order"], values["shard"]) == (tuple(Priority), tuple(Shard))
    assert "bucket_bytes" not in values
    assert "push, pull, pair" in "\n".join(map(str, recipes_answer("gossip").text))


@pytest.mark.parametrize("name", RECIPES)
def test_what_a_knob_is_by_itself_is_among_the_words_it_allows(name: str) -> None:
    for knob, default in RECIPES[name].knobs.items():
        if isinstance(default, str | bool):
            assert str(default).lower() in values_of(knob, default), knob


def test_recipes_say_their_knobs() -> None:
    entries = {entry["name"]: entry for entry in recipes_body(RECIPES)["recipes"]}
    assert set(entries["ddp"]) == {"name", "catalogue", "group", "paper", "fields", "simulates", "runs"}
    assert entries["ddp"]["fields"]["microbatches"] == 1


def test_a_cluster_lists_its_devices_by_rank() -> None:
    inner = cluster_of(2).root
    body = cluster_body(Cluster("two", Group("root", (inner, inner), inner.ports)))
    assert body["size"] == len(body["devices"]) == 4
    assert body["devices"][0]["port"]["bandwidth"] == 1.25e8


def test_a_refusal_of_several_settings_is_said_once() -> None:
    late = "its class is delayed and --allow is exact"
    refused = [(f"pipe_sgd(staleness={k})", late) for k in (1, 2)]
    refused += [(f"ps_sync(own={own})", f"ps_sync(own={own}): too few devices") for own in (True, False)]
    refused += [("easgd", late), ("ssp(staleness=1)", "ssp(staleness=1): no")]
    assert refused_body(refused) == [
        {"plan": "pipe_sgd", "error": late, "settings": 2},
        {"plan": "ps_sync", "error": "ps_sync: too few devices", "settings": 2},
        {"plan": "easgd", "error": late, "settings": 1},
        {"plan": "ssp(staleness=1)", "error": "ssp(staleness=1): no", "settings": 1},
    ]
