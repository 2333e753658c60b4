"""What encoding and decoding cost is timed for every codec, and is what a program is charged."""

from __future__ import annotations

import pytest
import torch

from partita.cost.demand import demand_of, hop_cores
from partita.cost.touch import Touch
from partita.probes.codecs import codec_seconds, coded_elements, numbers_for, trial_of
from partita.program.instruction import Collective, Decode, Encode
from partita.recipes.catalogue import call
from partita.wire.codec import read_codecs, text_of
from tests.priced import priced, whole_cores
from tests.programs import program_by
from tests.small import two_layers


def test_every_way_of_a_codec_has_its_price() -> None:
    found = codec_seconds({"threshold": 2**20, "powersgd(rank=2.0)": 2**20})
    assert found.keys() == {"threshold", "powersgd(rank=2.0)"}
    assert all(each > 0 and number > 0 and first >= 0 for ways in found.values() for each, number, first in ways)


def test_a_threshold_is_timed_on_numbers_of_which_it_sends_what_it_says() -> None:
    """Also in later steps, with what it held back: four bytes each."""
    torch.manual_seed(3)
    for text, density in (("threshold", 0.01), ("threshold(threshold=0.5,density=0.1)", 0.1)):
        (codec,) = read_codecs(text)
        values, held = numbers_for(codec, 512**2)
        sent = [trial_of(codec, values, held).bytes / 4 / values.numel() for _ in range(20)]
        assert sent == pytest.approx([density] * 20, rel=0.1)


def test_a_codec_is_timed_on_as_many_numbers_as_it_encodes_at_once() -> None:
    """At the ends, and where a backend sums codes, a whole bucket; in hops a part of it; the most of all plans."""
    graph, machines = two_layers(), whole_cores(4, 1e6)
    plans = [call(text, graph, machines) for text in ("ddp(codec=onebit)", "ddp(codec=q8)", "ddp(codec=fp16)", "ddp")]
    assert coded_elements(graph, plans, machines) == {"onebit": 36, "q8": 9, "fp16": 36}
    assert coded_elements(graph, [], machines) == {}
    plans.append(call("ddp(codec=q8(where=end))", graph, machines))
    assert coded_elements(graph, plans, machines)["q8"] == 36


def test_a_program_is_charged_for_its_codec() -> None:
    """36 numbers encoded once, and decoded once a worker, of which the first one finds its code in no cache."""
    graph, machines = two_layers(), whole_cores(4, 1e6)
    program = program_by("ddp(codec=onebit)", graph, machines)
    costs = priced(graph, machines, [2])
    costs.codecs["onebit"] = Touch(1.0, 0.5, 8.0), Touch(2.0, 0.25, 16.0)  # type: ignore[index]
    acts = {type(i.act): i.act for _, i in program.instructions()}
    assert demand_of(costs, program, acts[Encode]).core == 8 + 1 + 36 * 0.5
    assert demand_of(costs, program, acts[Decode]).core == 16 + 4 * (2 + 36 * 0.25)


def test_in_a_collective_of_hops_a_rank_calls_its_codec_in_a_row() -> None:
    """Four ranks in a ring: 4 of its 6 hops encode and all decode; the first of each finds its code in no cache."""
    graph, machines = two_layers(), whole_cores(4, 1e6)
    program = program_by("ddp(codec=q8)", graph, machines)
    costs = priced(graph, machines, [2])
    (act,) = program.roles[0].acts(Collective)
    costs.codecs["q8"] = Touch(0.0, 0.0), Touch(0.0, 0.0)  # type: ignore[index]
    free = hop_cores(costs, program, act, 4)
    costs.codecs["q8"] = Touch(1e3, 0.0, 1e6), Touch(1.0, 0.0, 1e9)  # type: ignore[index]
    beyond = [whole - own for whole, own in zip(hop_cores(costs, program, act, 4), free, strict=True)]
    assert beyond == pytest.approx([4e3 + 1e6 + 6 + 1e9] * 4)


def test_a_codec_is_charged_with_its_own_numbers() -> None:
    """Those of its text where it was timed with them, else those of its kind."""
    costs = priced(two_layers(), whole_cores(4, 1e6), [2])
    own, kind = (Touch(1.0, 0.0), Touch(2.0, 0.0)), (Touch(3.0, 0.0), Touch(4.0, 0.0))
    costs.codecs.update({"topk(ratio=0.5)": own, "topk": kind})  # type: ignore[attr-defined]
    assert costs.codec(*read_codecs("topk(ratio=0.5)")) == own
    assert costs.codec(*read_codecs("topk(ratio=0.25)")) == costs.codec(*read_codecs("topk")) == kind
    assert text_of(*read_codecs("topk(ratio=0.01)")) == "topk"
