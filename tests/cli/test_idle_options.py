"""Each option changes what a command answers or writes, or is refused by a sentence where it would do nothing.

Those of commands that run something are handed on here; what they then do is held where they run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from partita import api
from partita.__main__ import main
from partita.graph.text import write_graph
from tests.architecture.test_contract import CONTRACT
from tests.small import layers

PRICED = """
schema = 1
[device.card]
backend = "cuda"
flops = {{ fp32 = "1 TFLOP/s" }}
memory = "8 GiB"
price = 2.5
[network]
link = {{ bandwidth = "{}" }}
members = [{{ device = "card", count = 2 }}]
"""
STEPS = """
schema = 1
target = 0.5
points = [{batch = 12, steps = 900.0}, {batch = 24, steps = 500.0}, {batch = 48, steps = 300.0}]
"""
PLAN, SIMULATE = "plan g.json --cluster slow.toml", "simulate g.json --cluster slow.toml --plan ddp"
FIT, SHOW = "fit g.json --cluster slow.toml", "cluster show slow.toml"
# verb and option: a command without, or with another, and what of it becomes what
ACTS = {
    "plan task": (PLAN, "g.json", "h.json"), "plan --cluster": (PLAN, "slow", "fast"),
    "plan --objective": (PLAN, "", " --objective memory"), "plan --top": (PLAN, "", " --top 1"),
    "plan -o": (PLAN, "", " -o new.toml"), "plan --allow": (PLAN, "", " --allow any"),
    "plan --costs": (PLAN, "", " --costs datasheet"),
    "simulate task": (SIMULATE, "g.json", "h.json"), "simulate --cluster": (SIMULATE, "slow", "fast"),
    "simulate --plan": (SIMULATE, "ddp", "zero1"), "simulate --trace": (SIMULATE, "", " --trace new.json"),
    "simulate --costs": (SIMULATE, "", " --costs datasheet"),
    "simulate --sweep": (SIMULATE, "", " --sweep bandwidth=10M..1G/2"),
    "fit task": (FIT, "g.json", "h.json"), "fit --cluster": (FIT, "slow", "small"),
    "fit --plan": (FIT, "", " --plan zero3"),
    "cluster show cluster": (SHOW, "slow", "fast"), "cluster show -o": (SHOW, "", " -o new.toml"),
    "recipes name": ("recipes", "", " ddp"),
}  # fmt: skip
TRAIN = "train digits-cnn --cluster local:2 --plan ddp --steps 1"
REFUSED = {
    f"{PLAN} --steps-to-loss steps.toml": "--objective is time; it weighs minibatches and plans",
    f"{PLAN} --costs measured": "costs cannot be measured",
    f"{SIMULATE} --costs measured": "costs cannot be measured",
    f"{SIMULATE} --allow any": "says what --plan auto may choose, and --plan is ddp",
    "simulate g.json --cluster local:1 --plan single --sweep bandwidth=1M..1G": "has no links between devices to sweep",
    "compare digits-cnn --cluster local:2 --plans ddp --write-steps s.toml": "--write-steps is given without a loss",
    f"{TRAIN} --keep 2": "--keep says how many checkpoints stay",
    f"{TRAIN} --resume": "--resume goes on with the run in a directory",
    f"{TRAIN} --checkpoint-every 2": "--checkpoint-every writes to a directory",
    f"{TRAIN} --epochs 1": "--steps N or --epochs N; give one of them",
}  # fmt: skip
# verb: its words, and by option the keyword of `api` and the value that is handed on
HANDED_ON: dict[str, tuple[str, dict[str, tuple[str, Any]]]] = {
    "train": (
        "--plan ddp",
        {
            "--steps": ("steps", 2), "--epochs": ("epochs", 3), "--seed": ("seed", 4), "--init": ("init", "w"),
            "--out": ("out", "run"), "--checkpoint-every": ("checkpoint_every", 5), "--keep": ("keep", 6),
            "--timeout": ("timeout", 7.0), "--resume": ("resume", True), "--deterministic": ("deterministic", True),
            "--evaluate-every": ("evaluate_every", 8), "--patience": ("patience", 9),
        },
    ),
    "compare": (
        "--plans ddp",
        {
            "--steps": ("steps", 3), "--seed": ("seed", 4), "--target-loss": ("target_loss", 0.5),
            "--repeat": ("repeat", 2),
        },
    ),
    "verify": ("--plan ddp", {"--seed": ("seed", 4)}),
}  # fmt: skip
# what a run is of, and what is written of it: tests of processes, the lab and the report read that; searches' hold two
ELSEWHERE = {
    "train": {"task", "--cluster", "--plan"}, "verify": {"task", "--cluster", "--plan"},
    "compare": {"task", "--cluster", "--plans", "--report", "--trace", "--out", "--sweep", "--write-steps"},
    "report": {"run", "-o"}, "plan": {"--steps-to-loss"}, "simulate": {"--allow"},
    "capture": {"task", "-o"}, "cluster probe": {"cluster"},
    "cluster lab": {"cluster", "command"},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, link in (("slow", "100 kbit/s"), ("fast", "100 Gbit/s")):
        (tmp_path / f"{name}.toml").write_text(PRICED.format(link))
    (tmp_path / "small.toml").write_text(PRICED.format("100 kbit/s").replace("8 GiB", "1 kB"))
    (tmp_path / "steps.toml").write_text(STEPS)
    write_graph(layers(2, batch=24), tmp_path / "g.json")
    write_graph(layers(3, batch=12), tmp_path / "h.json")
    return tmp_path


def answered(words: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, str, int]:
    """Exit code, what is said but how long it took, and how many files are there then."""
    capfd.readouterr()
    code = main([*words.split(), "--json"])
    said = [part for part in capfd.readouterr().out.split(", ") if "search_seconds" not in part]
    return code, ", ".join(said), len(list(folder.iterdir()))


@pytest.mark.parametrize("option", ACTS)
def test_an_option_acts(option: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words, old, new = ACTS[option]
    usual = answered(words, folder, capfd)
    changed = answered(words.replace(old, new) if old else words + new, folder, capfd)
    assert (usual[0], changed[0] in (0, 1)) == (0, True), changed
    assert changed != usual


@pytest.mark.parametrize("words", REFUSED)
def test_an_option_that_would_do_nothing_is_refused(
    words: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, said, _ = answered(words, folder, capfd)
    assert (code, REFUSED[words] in said) == (2, True), said


@pytest.mark.parametrize(("verb", "option"), [(verb, option) for verb in HANDED_ON for option in HANDED_ON[verb][1]])
def test_an_option_is_handed_on(verb: str, option: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: dict[str, Any] = {}

    def taken(*given: Any, **order: Any) -> None:
        found.update(order)
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, verb, taken)
    words, options = HANDED_ON[verb]
    keyword, value = options[option]
    steps = ["--steps", "1"] if verb == "train" and option not in ("--steps", "--epochs") else []
    given = [option] if value is True else [option, str(value)]
    assert main([verb, "digits-cnn", "--cluster", "local:1", *words.split(), *steps, *given]) == 130
    assert found[keyword] == value


@pytest.mark.parametrize("verb", CONTRACT)
def test_each_option_is_looked_at(verb: str) -> None:
    acts = {option.rpartition(" ")[2] for option in ACTS if option.rpartition(" ")[0] == verb}
    known = acts | {*HANDED_ON.get(verb, ("", {}))[1]} | ELSEWHERE.get(verb, set()) | {"--json"}
    assert known == CONTRACT[verb]
