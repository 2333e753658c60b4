"""A graph survives the file, and a file that is no graph is refused with a sentence."""

from __future__ import annotations

import json
import random
import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from partita.cost.datasheet import datasheet_costs
from partita.errors import InputError, PartitaError
from partita.graph.graph import Buffer, Constant, Graph, Optimizer, Parameter, Repeat
from partita.graph.operator import Operator, Phase, Ref, Symbol
from partita.graph.tensor import Affine, Ratio, Tensor
from partita.graph.text import read_graph, write_graph
from partita.simulator.simulate import simulate
from tests.places import changed, places
from tests.programs import program_by
from tests.small import cluster_of, two_layers

ROWS = Tensor((Affine(1), 6), "float32")
GRAPH = Graph(
    name="every kind of thing",
    batch=8,
    operators=(
        Operator(
            "mul_0", "aten.mul.Tensor",
            (Ref("input.0"), None, True, 3, 2.5, "text", float("inf"), -float("inf"), ((), (1,))),
            (("dtype", Symbol("dtype", "float32")),), (ROWS,), False, Phase.FORWARD, "layer.0", "model.py:12",
        ),
        Operator(
            "mul_1", "aten.mul.Tensor", (Ref("mul_0"), Affine(2, -1), Ratio(0.125, -1), Ratio(2.0, -1, -0.5)), (),
            (ROWS, None, ROWS), True, Phase.BACKWARD, "layer.0", "model.py:12", "mul_0",
        ),
    ),
    parameters=(Parameter("w", Tensor((6,), "float32"), False, ("v", "u")),),
    buffers=(Buffer("b", Tensor((), "int64"), False),),
    constants=(Constant("tangent", Tensor((), "float32"), b"\x00\x00\x80?"), Constant("none", Tensor((0,), "bool"))),
    inputs=(("input.0", Tensor((Affine(1), 6), "float32", (1, Affine(1)))),),
    loss=Ref("mul_0"),
    weight=Ref("mul_1", 0),
    gradients=(("w", Ref("mul_1", 2)),),
    mutations=(("b", Ref("b")),),
    optimizer=Optimizer("Adam", (("exp_avg", 1.0, "float32"),), False),
    repeats=(Repeat(0, 1, 2),),
    rung="opaque",
    blind="Nothing is seen.",
    global_batch=16,
    samples=100,
    clip_norm=1.5,
)  # fmt: skip


def test_the_round_trip_is_exact(tmp_path: Path) -> None:
    write_graph(GRAPH, tmp_path / "g.json")
    assert read_graph(tmp_path / "g.json") == GRAPH
    assert json.loads((tmp_path / "g.json").read_text())["schema"] == 1


def test_a_graph_that_finds_no_room_leaves_the_one_that_is_there(tmp_path: Path) -> None:
    place, soft_hard = tmp_path / "g.json", resource.getrlimit(resource.RLIMIT_FSIZE)
    write_graph(GRAPH, place)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, soft_hard[1]))
    try:
        with pytest.raises(InputError, match=r"cannot be written to .*g\.json"):
            write_graph(GRAPH, place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, soft_hard)
        signal.signal(signal.SIGXFSZ, ignored)
    assert read_graph(place) == GRAPH
    assert list(tmp_path.iterdir()) == [place]


def test_what_is_no_graph_is_refused(tmp_path: Path) -> None:
    write_graph(GRAPH, tmp_path / "g.json")
    text = (tmp_path / "g.json").read_text()
    for name, content, words in (
        ("broken", text[: len(text) // 2], "is not valid JSON"),
        ("other", "{}", "holds no graph"),
        ("list", "[]", "holds no graph"),
        ("newer", text.replace('"schema":1', '"schema":2'), "has schema 2"),
        ("damaged", text.replace('"tables"', '"chairs"'), "is damaged"),
        ("base64", text.replace("AACAPw==", "!"), "is damaged"),
    ):
        path = tmp_path / f"{name}.json"
        path.write_text(content)
        with pytest.raises(InputError, match=words) as raised:
            read_graph(path)
        assert str(path) in str(raised.value)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="is not valid JSON"):
        read_graph(tmp_path / "deep.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_graph(tmp_path / "absent.json")
    with pytest.raises(InputError, match="cannot be written"):
        write_graph(GRAPH, tmp_path / "absent" / "g.json")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("batch", 0, "a batch of 0 samples"),
        ("batch", "x", "batch is 'x'"),
        ("batch", None, "batch is None"),
        ("global_batch", -1, "-1 of 100"),
        ("symbolic", 1, "symbolic is 1"),
        ("name", [], r"name is \[\]"),
        ("operators", [], "nothing makes mul_0"),
        ("inputs", [], "mul_0 reads input.0, which nothing makes before it"),
        ("constants", [], "has no backward pass"),
        ("gradients", [], "has no backward pass"),
        ("inputs", [["input.0", 0], ["w", 0]], "two values have one name"),
    ],
)
def test_a_step_that_is_not_whole_is_refused(field: str, value: object, words: str, tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    write_graph(GRAPH, path)
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(InputError, match=words):
        read_graph(path)


@pytest.mark.parametrize(
    ("was", "now"),
    [('"float32"', '"float64"'), ("[0.125,-1]", "[0.125,-2]"), ("mul.Tensor", "mul.Scalar")],
)
def test_damage_that_leaves_a_graph_whole_is_found(was: str, now: str, tmp_path: Path) -> None:
    """A flipped letter would end in an error of whatever reads it first, or plan for another step."""
    path = tmp_path / "g.json"
    write_graph(GRAPH, path)
    text = path.read_text()
    path.write_text(text.replace(was, now))
    assert was in text
    with pytest.raises(InputError, match=r"g.json is damaged \(.*its sha256 is not that of its contents"):
        read_graph(path)


def test_a_graph_without_a_digest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    write_graph(GRAPH, path)
    record = json.loads(path.read_text())
    assert len(record.pop("sha256")) == 64
    path.write_text(json.dumps(record, indent=1))
    assert read_graph(path) == GRAPH


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        ('"float32"', '"float3x"', "of the type .*'float3x'"),
        ('"float32"', "[]", r"\[\] stands where a str belongs"),
        ('"a":[1,0]', '"a":[1,"x"]', "'x' stands where a int belongs"),
        ('"a":[1,0]', '"a":[1000000000000000000,0]', "which no machine holds"),
        ('"a":[1,0]', '"a":[-1,0]', "which no machine holds"),
        ('"a":[2,-1]', '"a":[2,null]', "None stands where a int belongs"),
        ('"q":[0.125,-1]', '"q":["x",-1]', "'x' stands where a float belongs"),
        ('"r":["mul_1",2]', '"r":["mul_1",1]', r"nothing makes mul_1\[1\]"),
        ('"r":["mul_1",2]', '"r":["mul_1",3]', r"nothing makes mul_1\[3\]"),
        ('"aten.mul.Tensor"', "{}", r"\{\} stands where a str belongs"),
        ('["dtype",', "[7,", "7 stands where a str belongs"),
    ],
)
def test_a_part_of_another_type_is_named(was: str, now: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    write_graph(GRAPH, path)
    text = path.read_text()
    assert was in text
    path.write_text(text.replace(was, now))
    with pytest.raises(InputError, match=words):
        read_graph(path)


def test_a_graph_with_any_value_in_any_place_is_refused_or_simulated(tmp_path: Path) -> None:
    path, machines = tmp_path / "g.json", cluster_of(2)
    write_graph(two_layers(), path)
    record, draw, done = json.loads(path.read_text()), random.Random(5), 0
    del record["sha256"]
    for _ in range(120):
        path.write_text(json.dumps(changed(record, draw.choice(list(places(record))), draw, VALUES)))
        with suppress(PartitaError):
            graph = read_graph(path)
            simulate(program_by("ddp", graph, machines), datasheet_costs(graph, machines, (4,)))
            done += 1
    assert 5 < done < 60


VALUES: tuple[Any, ...] = (
    None, True, -1, 2**62, 10**18, 1.5, "", "x", [], {}, [[]], {"r": ["x", 0]}, {"a": [10**18, 0]}, {"s": ["x", 1]},
)  # fmt: skip
