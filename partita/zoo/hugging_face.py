"""Any Hugging Face model as a Task, from its config alone: random weights, synthetic data, the loss of its family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.errors import TaskError
from partita.task import Task
from partita.zoo.data import Image, Synthetic, Tokens

FAMILIES: Final = {
    "seq2seq": ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING"),
    "image": ("AutoModelForImageClassification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING"),
    "masked": ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING"),
    "causal": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING"),
    "classification": ("AutoModelForSequenceClassification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING"),
}
MASKED_SHARE: Final = 0.15  # Devlin et al., 2019
IGNORED: Final = -100


def transformers() -> Any:
    """The module. Raises TaskError where it is not installed."""
    try:
        import transformers
    except ImportError:
        raise TaskError("transformers, which builds this task, is not installed; pip install transformers") from None
    return transformers


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy [n, s, vocabulary] against [n, s], the mean over tokens that are not ignored."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def causal_loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of the next token."""
    return token_loss(model(input_ids=batch[0], use_cache=False).logits, batch[1])


def masked_loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of the masked tokens."""
    return token_loss(model(input_ids=batch[0]).logits, batch[1])


def seq2seq_loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of the decoder's tokens."""
    source, shifted, targets = batch
    return token_loss(model(input_ids=source, decoder_input_ids=shifted, use_cache=False).logits, targets)


def classification_loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of the label of a text."""
    return F.cross_entropy(model(input_ids=batch[0]).logits, batch[1])


def image_loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of the label of an image."""
    return F.cross_entropy(model(pixel_values=batch[0]).logits, batch[1])


LOSSES: Final = {
    "causal": causal_loss, "masked": masked_loss, "seq2seq": seq2seq_loss,
    "classification": classification_loss, "image": image_loss,
}  # fmt: skip


@dataclass(frozen=True)
class FromConfig:
    """Builds the model of `config` with a head of `family`; weights are random."""

    config: Any
    family: str

    def __call__(self) -> nn.Module:
        return getattr(transformers(), FAMILIES[self.family][0]).from_config(self.config)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Masked:
    """Draws `(tokens with 15 % masked, targets)`; as many in every sample, so that samples weigh the same."""

    length: int
    vocabulary: int

    def __call__(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(1, self.vocabulary, (self.length,), generator=generator)
        hidden = torch.randperm(self.length, generator=generator)[: max(1, round(MASKED_SHARE * self.length))]
        targets = torch.full_like(tokens, IGNORED)
        targets[hidden] = tokens[hidden]
        tokens[hidden] = 0
        return tokens, targets


@dataclass(frozen=True)
class Pairs:
    """Draws `(source, target shifted by one, target)`, each [length]."""

    length: int
    vocabulary: int

    def __call__(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        source = torch.randint(self.vocabulary, (self.length,), generator=generator)
        target = source.flip(0)
        return source, target.roll(1), target


@dataclass(frozen=True)
class Labelled:
    """Draws `(tokens, label)`; the last token is never padding (0), which some heads look for."""

    length: int
    vocabulary: int
    classes: int

    def __call__(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(1, self.vocabulary, (self.length,), generator=generator)
        return tokens, torch.randint(self.classes, (), generator=generator)


def family_of(config: Any) -> str:
    """The first family that has a model for this config, encoder-decoders first. Raises TaskError if none has."""
    library = transformers()
    if getattr(config, "is_encoder_decoder", False):
        return "seq2seq"
    for family, (_, mapping) in FAMILIES.items():
        if type(config) in getattr(library, mapping):
            return family
    raise TaskError(
        f"transformers has no {', '.join(FAMILIES)} model for {type(config).__name__}; "
        "write the Task by hand with its own loss"
    )


def _draw(config: Any, family: str, length: int) -> Callable[[torch.Generator], Any]:
    if family == "image":
        size = getattr(config, "image_size", 224)
        return Image(size if isinstance(size, int) else size[0], config.num_labels)
    vocabulary = config.vocab_size
    if family == "classification":
        return Labelled(length, vocabulary, config.num_labels)
    if family == "masked":
        return Masked(length, vocabulary)
    return Pairs(length, vocabulary) if family == "seq2seq" else Tokens(length, vocabulary)


def hugging_face(
    config: Any,
    *,
    name: str = "",
    family: str = "",
    length: int = 0,
    batch_size: int = 8,
    samples: int = 1024,
    learning_rate: float = 3e-4,
    data: Any = None,
    validation: Any = None,
) -> Task:
    """The Task that trains the model of a transformers `config` with AdamW.

    `family` (seq2seq, image, masked, causal, classification) is chosen by the config's architecture where it is not
    given; `length` counts tokens (default: the config's limit, at most 512); `data` replaces the synthetic samples.
    Raises TaskError where transformers or a model of the family is missing.
    """
    transformers()
    if family and family not in FAMILIES:
        raise TaskError(f"the family {family!r} is not known; allowed are {', '.join(FAMILIES)}")
    chosen = family or family_of(config)
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 512
    draw = _draw(config, chosen, length or min(limit, 512))
    return Task(
        name=name or f"{config.model_type}-{chosen}",
        model=FromConfig(config, chosen),
        loss=LOSSES[chosen],
        data=Synthetic(samples, draw) if data is None else data,
        optimizer=partial(torch.optim.AdamW, lr=learning_rate),
        batch_size=batch_size,
        validation=Synthetic(max(batch_size, 64), draw, seed=1) if data is None else validation,
    )
