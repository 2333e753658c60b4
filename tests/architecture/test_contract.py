"""Names that checks outside the repository use: add freely, rename never."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

import partita
from partita.commands import app

CONTRACT = {
    "plan": {"task", "--cluster", "--objective", "--top", "-o", "--allow", "--costs", "--steps-to-loss", "--json"},
    "simulate": {"task", "--cluster", "--plan", "--trace", "--allow", "--costs", "--sweep", "--json"},
    "train": {
        "task", "--cluster", "--plan", "--steps", "--epochs", "--seed", "--init", "--out", "--resume",
        "--checkpoint-every", "--keep", "--evaluate-every", "--patience",
        "--deterministic", "--timeout", "--json",
    },
    "compare": {
        "task", "--cluster", "--plans", "--steps", "--target-loss", "--repeat", "--seed", "--report",
        "--trace", "--out", "--sweep", "--write-steps", "--json",
    },
    "report": {"run", "-o", "--json"},
    "verify": {"task", "--cluster", "--plan", "--seed", "--json"},
    "fit": {"task", "--cluster", "--plan", "--json"},
    "capture": {"task", "-o", "--json"},
    "cluster show": {"cluster", "-o", "--json"},
    "cluster probe": {"cluster", "--json"},
    "cluster lab": {"cluster", "command", "--json"},
    "recipes": {"name", "--json"},
    "doctor": {"--json"},
}  # fmt: skip
OBJECTIVES = ["time", "memory", "cost", "time-to-loss"]
CLASSES = ["exact", "lossy", "delayed", "any"]


def commands() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, command in get_command(app).commands.items():
        inner = getattr(command, "commands", None)
        found |= {f"{name} {part}": each for part, each in inner.items()} if inner else {name: command}
    return found


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def test_no_new_command_without_notice() -> None:
    assert set(commands()) == set(CONTRACT)


@pytest.mark.parametrize("name", CONTRACT)
def test_no_new_option_without_notice(name: str) -> None:
    assert options(commands()[name]) == CONTRACT[name]


@pytest.mark.parametrize("name", CONTRACT)
def test_every_command_shows_an_example(name: str) -> None:
    command: Any = commands()[name]
    assert command.epilog.startswith(f"Example: partita {name}")
    assert command.help


@pytest.mark.parametrize(("option", "allowed"), [("--objective", OBJECTIVES), ("--allow", CLASSES)])
def test_choices_are_kept(option: str, allowed: list[str]) -> None:
    import inspect
    from typing import get_args, get_type_hints

    from partita.commands import plan

    hint = get_type_hints(inspect.unwrap(plan), include_extras=True)[option.removeprefix("--")]
    assert list(get_args(get_args(hint)[0])) == allowed


# Commands that a name of the package stands for; `lab` is a room, a report is an HTML page.
VERBS = {"plan": "search", "cluster show": "Cluster", "cluster probe": "probe"}
NO_VERBS = {"cluster lab", "report"}


@pytest.mark.parametrize("name", sorted(CONTRACT.keys() - NO_VERBS))
def test_in_python_there_are_the_same_verbs(name: str) -> None:
    assert callable(getattr(partita, VERBS.get(name, name))) or name == "recipes"
