"""What functions of torch make of rows that a mask chooses (`chosen`): the same of all rows, where they go row by row;
what they make of all that is chosen, where they sum.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any, Final

import torch
from torch import Tensor

from partita.graph.patterns_pointwise import NAMES
from partita.tracing.chosen import Chosen, Count, filled, is_chosen, named, refuse
from partita.tracing.numbers import Number

IGNORED: Final = -100  # of likelihoods, unless given
OTHERS: Final = """
    absolute divide greater greater_equal less less_equal logsigmoid multiply negative not_equal subtract truediv
    zeros_like and or xor invert radd rmul rsub rtruediv rdiv rpow rand ror rxor floordiv mod
"""
DRAWN: Final = frozenset(("rand_like", "randn_like", "bernoulli", "native_dropout", "fill"))
POINTWISE: Final = frozenset((*NAMES.split(), *OTHERS.split())) - DRAWN
CASTS: Final = frozenset(("bool", "clone", "contiguous", "detach", "double", "float", "int", "long", "to", "type_as"))
ALONG: Final = {  # which argument is the dimension, and what it is unless given
    "softmax": (1, None), "log_softmax": (1, None), "logsumexp": (1, None), "cumsum": (1, None), "argmax": (1, None),
    "argmin": (1, None), "amax": (1, None), "amin": (1, None), "max": (1, None), "min": (1, None), "var": (1, None),
    "std": (1, None), "prod": (1, None), "topk": (2, -1), "normalize": (2, 1), "norm": (2, None), "gather": (1, None),
    "cosine_similarity": (2, 1), "linalg_norm": (2, None), "linalg_vector_norm": (2, None), "sort": (1, -1),
    "chunk": (2, 0), "split": (2, 0), "unbind": (1, 0), "unsqueeze": (1, None),
}  # fmt: skip
BINARY: Final = "binary_cross_entropy"
LOSSES: Final = frozenset(
    ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", BINARY, f"{BINARY}_with_logits")
)
LIKELIHOODS: Final = frozenset(("cross_entropy", "nll_loss"))


Found: Final = namedtuple("Found", ("values", "indices"))  # along a dimension, and where


def computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function of torch makes of rows that are chosen. Raises CaptureError where that needs their number."""
    name = func.__name__.strip("_") if not func.__name__.endswith("_") or func.__name__.startswith("__") else ""
    given = given_rows(args, kwargs)
    for one in given:
        one.read = True
    if name in ("max", "min") and len(args) > 1 and isinstance(args[1], Tensor):
        return _by_rows(func, args, kwargs, given)
    if name in ("sum", "mean", "any", "all"):
        return _reduced(func, name, given[0], *args[1:], **kwargs)
    if name in POINTWISE:
        return _by_rows(func, args, kwargs, given)
    if name in CASTS and not is_chosen(args[0]):
        return func(*_rows(args), **_rows(kwargs))
    if name in CASTS:
        return given[0].like(func(*_rows(args), **_rows(kwargs)))
    if name in ALONG:
        return _along(func, name, args, kwargs, given)
    if name in LOSSES or name in LIKELIHOODS:
        return _loss(func, name, args, kwargs, given)
    special = SPECIAL.get(name)
    if special is None:
        refuse(named(func))
    return special(func, args, kwargs, given)


def given_rows(args: Iterable[Any], kwargs: dict[str, Any]) -> list[Chosen]:
    """What is chosen of the arguments of a function."""
    values = (*args, *kwargs.values())
    parts = (part for value in values for part in (value if isinstance(value, list | tuple) else (value,)))
    return [part for part in parts if is_chosen(part)]


def _each(values: Any, of: Callable[[Chosen], Tensor]) -> Any:
    """Arguments with what `of` makes of those that are chosen."""
    if isinstance(values, dict):
        return {name: _each(value, of) for name, value in values.items()}
    if type(values) in (list, tuple):
        return type(values)(_each(value, of) for value in values)
    return of(values) if is_chosen(values) else values


def _rows(values: Any) -> Any:
    """Arguments with all rows in place of those that are chosen."""
    return _each(values, lambda given: given.rows)


def _filled(values: Any) -> Any:
    """Arguments with plain numbers in rows that do not count, for gradients of others are sums over all rows."""
    return _each(values, Chosen.filled)


def _check_alike(name: str, given: list[Chosen]) -> Chosen:
    """The first of some, of which all are the same rows of as many dimensions."""
    if any(one.key != given[0].key or one.dim() != given[0].dim() for one in given):
        refuse(f"{name} with rows of another mask")
    return given[0]


def _by_rows(func: Any, args: Any, kwargs: Any, given: list[Chosen]) -> Chosen:
    """A function of elements, or of rows, with other tensors that are alike for every row."""
    first = _check_alike(func.__name__, given)
    others = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and not is_chosen(t)]
    if any(t.dim() > first.dim() or (t.dim() == first.dim() and t.shape[0] != 1) for t in others):
        refuse(f"{func.__name__} with a tensor that has rows")
    if func in (torch.where, Tensor.where) and len(args) + len(kwargs) == 1:
        refuse("a question for their places")
    if not any(t.requires_grad for t in others):
        return first.like(func(*_rows(args), **_rows(kwargs)))
    return first.like(filled(func(*_filled(args), **_filled(kwargs)), first.mask))


def _dims(name: str, dim: Any, rank: int) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(rank))
    return tuple(d % rank for d in (dim if isinstance(dim, list | tuple) else (dim,)))


def _reduced(func: Any, name: str, given: Chosen, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Sums and means, also over what is chosen."""
    rows, own = given.rows, {} if dtype is None else {"dtype": dtype}
    dims = _dims(name, dim, rows.dim())
    if 0 not in dims:
        return given.like(func(rows, dim, keepdim, **own))
    if name in ("any", "all"):
        return getattr(given.like(rows.bool()).filled(name == "all"), name)(*(() if dim is None else (dim, keepdim)))
    if name == "sum":
        return given.filled(0).sum(dims, keepdim, **own)
    if dtype is not None or not rows.is_floating_point():
        refuse("a mean in another dtype")
    wide = torch.float32 if rows.dtype.itemsize < torch.float32.itemsize else rows.dtype  # a sum may be too large
    count = given.mask.sum() * math.prod(rows.shape[d] for d in dims if d)
    return (given.filled(0).sum(dims, keepdim, dtype=wide) / count).to(rows.dtype)


def _along(func: Any, name: str, args: Any, kwargs: Any, given: list[Chosen]) -> Any:
    """A function along dimensions of a row."""
    first = _check_alike(name, given)
    place, usual = ALONG[name]
    dim = kwargs.get("dim", args[place] if len(args) > place else usual)
    rank = first.dim() + (name == "unsqueeze")
    others = (t for t in (*args, *kwargs.values()) if isinstance(t, Tensor))
    if dim is None or 0 in _dims(name, dim, rank) or not all(map(is_chosen, others)):
        refuse(f"{name} along them")
    made = func(*_rows(args), **_rows(kwargs))
    if isinstance(made, Tensor):
        return first.like(made)
    parts = map(first.like, made)
    return Found(*parts) if hasattr(made, "indices") else tuple(parts)


def _loss(func: Any, name: str, args: Any, kwargs: Any, given: list[Chosen]) -> Any:
    """A loss of chosen rows; one that says which labels to leave out leaves out those that do not count."""
    how = signature(func).bind(*args, **kwargs).arguments
    first, reduction = how["input"], how.get("reduction", "mean")
    legacy = how.get("size_average") is not None or how.get("reduce") is not None
    if legacy or not is_chosen(first) or not is_chosen(how["target"]):
        refuse(name)
    own = {key: value for key, value in how.items() if key not in ("input", "target", "reduction")}
    target = how["target"]
    if name in LIKELIHOODS:
        if target.key != first.key or target.dtype.is_floating_point or any(map(is_chosen, own.values())):
            refuse(f"{name} with other targets")
        labels = target.filled(own.get("ignore_index", IGNORED))
        made = func(first.filled(), labels, reduction=reduction, **own)
        return first.like(made) if reduction == "none" else made
    losses = _by_rows(func, (first, target), {**own, "reduction": "none"}, given)
    if reduction == "none":
        return losses
    total = losses.filled(0).sum()
    return total / losses.mask.sum() if reduction == "batchmean" else _reduced(func, reduction, losses)


def _reshaped(func: Any, args: Any, kwargs: Any, given: list[Chosen]) -> Chosen:
    """view, reshape: other sizes of a row, or all elements in one dimension."""
    first, sizes = given[0], args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    row, (lead, *rest) = first.rows.shape[1:], sizes
    counted = isinstance(lead, Count) and lead.of == (first.key, 1 if rest else math.prod(row))
    known = counted or (not isinstance(lead, Number) and lead == -1)
    if kwargs or not known or not all(type(size) is int for size in rest):
        refuse(func.__name__)
    if not rest:
        return _flat(first)
    whole = counted if -1 in rest else math.prod(rest) == math.prod(row)
    if not whole:
        refuse(func.__name__)
    return first.like(first.rows.reshape(first.rows.shape[0], *rest))


def _flat(given: Chosen) -> Chosen:
    """All elements in one dimension."""
    each = math.prod(given.rows.shape[1:])
    if each == 1:
        return Chosen(given.rows.reshape(-1), given.mask, given.key, given.column(0))
    mask = given.mask[:, None].expand(-1, each).reshape(-1)
    return Chosen(given.rows.reshape(-1), mask, (*given.key, each))


def _flattened(func: Any, args: Any, kwargs: Any, given: list[Chosen]) -> Chosen:
    first = given[0]
    start = kwargs.get("start_dim", args[1] if len(args) > 1 else 0) % first.dim()
    return first.like(func(first.rows, *args[1:], **kwargs)) if start else _flat(first)


def _squeezed(func: Any, args: Any, kwargs: Any, given: list[Chosen]) -> Chosen:
    """Without dimensions of one element, but that of the rows."""
    first = given[0]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    dims = [d for d in _dims("squeeze", dim, first.dim()) if d or dim is not None]
    if 0 in dims:
        refuse("squeeze along them")
    rows = first.rows.squeeze(tuple(dims))
    return Chosen(rows, first.mask, first.key, first.column(0) if rows.dim() == 1 else first.places)


def _joined(func: Any, args: Any, kwargs: Any, given: list[Chosen]) -> Chosen:
    """cat and stack along a row, and rows of several masks behind each other."""
    parts, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if not all(map(is_chosen, parts)):
        refuse(f"{func.__name__} with other rows")
    if dim % (parts[0].dim() + (func is torch.stack)):
        return _check_alike(func.__name__, parts).like(func(_rows(parts), dim))
    if func is torch.stack:
        refuse("stack along them")
    return Chosen(torch.cat(_rows(parts)), torch.cat([part.mask for part in parts]), tuple(part.key for part in parts))


def _layer(func: Any, args: Any, kwargs: Any, given: list[Chosen]) -> Chosen:
    """A layer, or layer norm, of each row."""
    norm = func.__name__ == "layer_norm"
    over = len(args[1] if len(args) > 1 else kwargs["normalized_shape"]) if norm else 1
    if over >= given[0].dim() or not is_chosen(args[0]):
        refuse(f"{func.__name__} over them")
    return given[0].like(filled(func(*_filled(args), **_filled(kwargs)), given[0].mask))


def _part(func: Any, args: Any, kwargs: Any, given: list[Chosen]) -> Chosen:
    """x[mask][:, 3:]: parts of each row."""
    first, index = args
    whole = index if isinstance(index, tuple) else (index,)
    taken = [part for part in whole if part is not None and part is not Ellipsis]
    ahead = isinstance(whole[0], slice) and whole[0] == slice(None)
    ahead = ahead or (whole[0] is Ellipsis and len(taken) < first.dim())
    if not is_chosen(first) or not ahead or not all(isinstance(part, slice) or type(part) is int for part in taken):
        refuse("an index")
    single = len(taken) == first.dim() == 2 and type(taken[1]) is int
    places = first.column(taken[1] % first.rows.shape[1]) if single else None
    return Chosen(func(first.rows, index), first.mask, first.key, places)


SPECIAL: Final[dict[str, Callable[..., Any]]] = {
    "view": _reshaped, "reshape": _reshaped, "flatten": _flattened, "ravel": _flattened, "squeeze": _squeezed,
    "cat": _joined, "stack": _joined, "layer_norm": _layer, "linear": _layer, "getitem": _part,
}  # fmt: skip
