"""Files of weights: those of a finished run, and those with which every rank of a run begins.

Ranks map the file of the first weights. The kernel drops mapped pages when memory is short, so they cost a rank nothing
besides the parts that it copies into its state.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from partita.checkpoints.shard import write_tensors, write_unsynced
from partita.errors import OptionError, TaskError, first_line
from partita.files import temporary
from partita.runs.assembly import Values, initial, values_of
from partita.task import Task
from partita.tracing.spelling import spelt

RANDOM: Final = "random state"


def save_weights(model: Any, path: Path, words: dict[str, str] | None = None) -> None:
    """Write a module's parameters and persistent buffers under their own names, tied ones once, and `words` in the
    header; whole or not at all. Raises OptionError where there is no room, or no folder any more."""
    kept = dict(model.named_parameters())
    kept |= {name: buffer for name, buffer in model.named_buffers() if name in model.state_dict()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors({name: tensor.detach().contiguous() for name, tensor in kept.items()}, path, words)
    except OSError as error:
        raise OptionError(
            f"{path} cannot be written ({first_line(error)}); make room, and --resume goes on from the last checkpoint"
        ) from None


def load_weights(model: Any, path: Path) -> None:
    """Load such a file into a module. Raises TaskError listing what differs."""
    try:
        found = load_file(path)
    except (SafetensorError, OSError) as error:
        raise TaskError(
            f"{path} holds no weights ({first_line(error)}); give a file that `partita train --out` wrote"
        ) from None
    stored = model.state_dict().keys()
    own = {name for name, _ in (*model.named_parameters(), *model.named_buffers()) if name in stored}
    if missing := sorted(own - found.keys()):
        raise TaskError(f"{path} lacks {', '.join(missing[:5])}; it belongs to another model")
    if beyond := sorted(found.keys() - stored):
        raise TaskError(f"{path} also holds {', '.join(beyond[:5])}; it belongs to another model")
    with torch.no_grad():
        for name, tensor in values_of(model).items():
            if name in found:
                if found[name].shape != tensor.shape:
                    raise TaskError(
                        f"{path} has {name} of shape {tuple(found[name].shape)} instead of {tuple(tensor.shape)}; "
                        "it belongs to another model"
                    )
                if loses(found[name].dtype, tensor.dtype):
                    raise TaskError(
                        f"{path} has {name} in {spelt(found[name].dtype)} instead of {spelt(tensor.dtype)}, in "
                        "which values are lost; save weights in the dtype in which the model has them"
                    )
                tensor.copy_(found[name])


def loses(kept: torch.dtype, own: torch.dtype) -> bool:
    """Whether numbers of a tensor in `kept` are others in `own`: whole numbers lose their fractions, or what a shorter
    type cannot hold. Another precision of floats rounds them, which is no loss."""
    if not kept.is_floating_point and not own.is_floating_point:
        return torch.promote_types(kept, own) != own
    return not torch.can_cast(kept, own) or kept.is_floating_point != own.is_floating_point


def first_weights(task: Task, seed: int, init: str) -> Values:
    """Parameters and buffers by name: of the module built under the seed, or of the weights file `init`."""
    model, values = initial(task, seed)
    if init:
        load_weights(model, Path(init))
    return {name: tensor.detach() for name, tensor in values.items()}


def write_first(task: Task, seed: int, init: str, path: Path) -> None:
    """Write the first weights for other processes, and the state of torch's random generator after building the
    model. Raises OptionError where there is no room."""
    with torch.random.fork_rng(devices=[]):
        values = first_weights(task, seed, init)
        whole = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in values.items()}
        with temporary(path.parent):
            write_unsynced({**whole, RANDOM: torch.get_rng_state()}, path)


def map_first(path: Path) -> tuple[Values, torch.Tensor]:
    """(the first weights that another process wrote, mapped; the state of its random generator)."""
    values = load_file(path)
    return values, values.pop(RANDOM).clone()
