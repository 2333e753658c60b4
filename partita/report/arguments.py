"""Arguments and options that several commands share."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Annotated, Literal

import typer

from partita.zoo.names import NAMES


def finite(value: float | None) -> float | None:
    """A number that may be given; nan lies within no bounds and outside of none."""
    if value is not None and not isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number")
    return value


TaskSpec = Annotated[
    str, typer.Argument(metavar="TASK", help=f"file.py:function, package.module:function, or one of {', '.join(NAMES)}")
]
GraphSpec = Annotated[str, typer.Argument(metavar="TASK", help="as for train, or a saved graph.json")]
CLUSTER = "a TOML file, a catalogue name (h100-dgx; four nodes of it: h100-dgx-x4), or local:N"
ClusterArgument = Annotated[str, typer.Argument(metavar="C", help=CLUSTER)]
ClusterOption = Annotated[str, typer.Option("--cluster", metavar="C", help=CLUSTER)]
PlanOption = Annotated[str, typer.Option("--plan", metavar="P", help="a recipe call, a plan file (.toml), or auto")]
Allow = Annotated[Literal["exact", "lossy", "delayed", "any"], typer.Option(help="what auto may choose")]
AllowAuto = Annotated[
    Literal["exact", "lossy", "delayed", "any"] | None,
    typer.Option("--allow", help="what --plan auto may choose (exact, if not given)"),
]
Objective = Annotated[Literal["time", "memory", "cost", "time-to-loss"], typer.Option(help="what to make small")]
Source = Annotated[
    Literal["measured", "datasheet"] | None,
    typer.Option("--costs", help="measured here, or from data sheets [default: measured where that is possible]"),
]
Known = Annotated[
    Path | None,
    typer.Option("--steps-to-loss", metavar="FILE", help="steps by minibatch or by plan, measured: weighs these too"),
]
Sweep = Annotated[str, typer.Option(metavar="bandwidth=LOW..HIGH", help="predict at these bandwidths too: 10M..10G")]
Output = Annotated[Path | None, typer.Option("-o", metavar="FILE", help="write what was found to a file")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="of the model's weights and the order of samples")]
Steps = Annotated[int | None, typer.Option(min=1, help="minibatches; compare's (10, if not given) follow a warm-up")]
Epochs = Annotated[int | None, typer.Option(min=1, help="passes over the data")]
Trace = Annotated[Path | None, typer.Option(metavar="FILE", help="write a trace for ui.perfetto.dev")]
Top = Annotated[int, typer.Option(min=1, help="how many plans to list")]
Init = Annotated[str, typer.Option(metavar="FILE", help="weights to start from (safetensors)")]
Out = Annotated[str, typer.Option(metavar="DIR", help="where weights and the manifest go")]
Resume = Annotated[bool, typer.Option("--resume", help="go on with the run in --out, or begin it if it has none")]
Every = Annotated[int, typer.Option(min=0, metavar="K", help="write a checkpoint every K steps")]
Keep = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="how many of the newest checkpoints stay (2, if not given)")
]
EvaluateEvery = Annotated[int, typer.Option(min=0, metavar="N", help="compute the held-out loss every N steps too")]
Patience = Annotated[
    int, typer.Option(min=0, metavar="K", help="end after K of these in a row without a better one (0: do not)")
]
Deterministic = Annotated[bool, typer.Option("--deterministic", help="draw the same under every plan")]
Timeout = Annotated[
    float, typer.Option(min=1, max=604800, callback=finite, help="seconds without progress before giving up")
]
Plans = Annotated[str, typer.Option(metavar="P,P,...", help="recipe calls, plan files or auto")]
TargetLoss = Annotated[float | None, typer.Option(callback=finite, help="time how long each plan takes to this loss")]
WriteSteps = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="write how many steps each took to it, for plan --steps-to-loss FILE"),
]
Repeat = Annotated[int, typer.Option(min=1, help="repeats, interleaved")]
Report = Annotated[Path | None, typer.Option(metavar="FILE", help="write an HTML page")]
Kept = Annotated[Path | None, typer.Option(metavar="DIR", help="keep the result for `partita report DIR`")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="a folder that train --out or compare --out wrote")]
# Declared for --help; `main` looks for it itself, since it must also know it where the words cannot be parsed.
Json = Annotated[bool, typer.Option("--json", help="answer with one JSON object on stdout")]
