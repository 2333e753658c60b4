"""What codecs are: the bytes they make of so many numbers, and what may be done with these bytes on the way."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, inf, isfinite, isqrt, sqrt
from operator import index
from typing import Any, Final

from partita.errors import OptionError, PlanError, did_you_mean, users_code
from partita.graph.tensor import ITEMSIZE
from partita.plan.wire import PLACES, Codec
from partita.units import Bytes
from partita.wire.differences import check_differences
from partita.wire.elias import expected_bits
from partita.wire.lowrank import Shapes, factor_calls, factor_counts
from partita.wire.offered import wrong_field
from partita.wire.plugins import Registry, others

Settings = Mapping[str, float]
SMALLEST: Final = 2.0**-100  # magnitude with a scale: steps by it are finite in fp32; what is smaller is sent as 0
OWN: Final = "own"  # sums of the numbers that the bucket itself holds


@dataclass(frozen=True, slots=True)
class Spec:
    """A codec of catalogue entry `entry`.

    size      `size(elements, item, settings)`: the bytes that it makes of numbers of `item` bytes; what is expected,
              where it `varies` with the numbers
    sums      the dtype in which encoded vectors may be added as they are (OWN: the bucket's; "": they cannot)
    counts    `counts(shapes, settings)`, of one that looks at the shapes of a bucket's pieces and makes several
              codings, each from the sum of the one before: of how many numbers each is
    where, feedback     what it is used with unless told otherwise
    sparse    it speaks of some numbers only: of the part `density` or `ratio` of its settings
    bound     the setting by which each worker's own gradient is bounded first
    ahead     the task's momentum is applied before it
    fresh     it looks at what of the numbers is new as well
    absolute  it compares numbers with one of its settings, so that it matters in which unit they are
    passes    how often encoding and decoding go over the numbers in memory, for want of a measurement
    calls     `calls(settings)`: how many operators either runs for a tensor, for want of one (None: one each)
    """

    entry: str
    size: Callable[[int, int, Settings], Bytes]
    settings: tuple[tuple[str, float], ...] = ()
    sums: str = ""
    varies: bool = False
    where: str = "end"
    feedback: bool = False
    sparse: bool = False
    bound: str = ""
    ahead: bool = False
    fresh: bool = False
    absolute: bool = False
    counts: Callable[[Shapes, Settings], tuple[int, ...]] | None = None
    passes: tuple[float, float] = (2.0, 1.5)
    calls: Callable[[Settings], tuple[float, float]] | None = None


def kept(elements: int, settings: Settings) -> int:
    """How many of `elements` a codec with a `ratio` sends: at least one."""
    return min(max(ceil(settings["ratio"] * elements - 1e-9), 1), elements)


def _chosen(elements: int, item: int, settings: Settings) -> Bytes:
    """An index of four bytes and the number itself for each that is sent; all numbers as they are at ratio 1."""
    k = kept(elements, settings)
    return k * (4 + item) if k < elements else elements * item


def _square(elements: int, item: int, settings: Settings) -> Bytes:
    """The factors of a square matrix of about so many numbers."""
    return item * sum(factor_counts([(max(isqrt(elements), 1),) * 2], settings))


def _bits(elements: int, item: int, settings: Settings) -> Bytes:
    return 4 + -(-elements * int(settings["bits"]) // 8)


def _elias(elements: int, item: int, settings: Settings) -> Bytes:
    """What normal numbers would take."""
    bits = expected_bits(int(settings["levels"]), int(settings["group"]), bool(settings["dense"]))
    return 4 * -(-elements // int(settings["group"])) + ceil(elements * bits / 8)


def _signs(elements: int, item: int, settings: Settings) -> Bytes:
    return -(-elements // 8) + 8 * -(-elements // int(settings["group"]))


OURS: Final[dict[str, Spec]] = {
    "fp16": Spec("QU-01", lambda n, item, s: 2 * n, sums="float16", passes=(1.5, 1.5)),
    "bf16": Spec("QU-01", lambda n, item, s: 2 * n, sums="bfloat16", passes=(1.5, 1.5)),
    "truncate": Spec("QU-15", lambda n, item, s: 2 * n, where="hop", passes=(1.5, 1.5)),
    "q8": Spec("QU-15", lambda n, item, s: n + 4, where="hop", passes=(2.25, 1.25)),
    "fixed": Spec("QU-02", _bits, (("bits", 8.0), ("overflow", 0.0)), passes=(3.0, 1.5)),
    "dettmers8": Spec("QU-04", lambda n, item, s: n + 4, passes=(4.0, 1.25)),
    "qsgd": Spec("QU-07", _elias, (("levels", 4.0), ("group", 512.0), ("dense", 0.0)), varies=True, passes=(8.0, 8.0)),
    "dorefa": Spec("QU-11", _bits, (("bits", 6.0),), passes=(3.0, 1.5)),
    "adaptive": Spec(
        "QU-13",
        lambda n, item, s: 8 + 4 * kept(n, s),
        (("ratio", 0.01),),
        varies=True,
        feedback=True,
        sparse=True,
        passes=(2.0, 1.0),
    ),
    "inceptionn": Spec(
        "QU-14",
        lambda n, item, s: -(-n // 4) + ceil(s["density"] * n),
        (("bound", 2.0**-10), ("density", 0.5)),
        varies=True,
        absolute=True,
        passes=(4.0, 4.0),
    ),
    "onebit": Spec("QU-05", _signs, (("group", 2048.0),), feedback=True, passes=(3.0, 1.1)),
    "terngrad": Spec("QU-06", lambda n, item, s: -(-n // 4) + 4, (("clip", 2.5),), passes=(4.0, 1.1)),
    "threshold": Spec(
        "SP-01",
        lambda n, item, s: 4 * ceil(s["density"] * n),
        (("threshold", 0.01), ("density", 0.01)),
        varies=True,
        absolute=True,
        feedback=True,
        sparse=True,
        passes=(1.5, 1.0),
    ),
    "topk": Spec("SP-02", _chosen, (("ratio", 0.01),), feedback=True, sparse=True, passes=(3.0, 1.0)),
    "dgc": Spec(
        "SP-03",
        _chosen,
        (("ratio", 0.001), ("clip", 0.0)),
        feedback=True,
        sparse=True,
        bound="clip",
        ahead=True,
        passes=(3.0, 1.0),
    ),
    "adacomp": Spec(
        "SP-04",
        lambda n, item, s: 4 + 2 * -(-n // int(s["bin"])) + 2 * ceil(s["density"] * n),
        (("bin", 500.0), ("density", 0.02)),
        varies=True,
        feedback=True,
        sparse=True,
        fresh=True,
        passes=(2.5, 1.0),
    ),
    "powersgd": Spec(
        "EX-02",
        _square,
        (("rank", 4.0),),
        sums=OWN,
        feedback=True,
        counts=factor_counts,
        passes=(3.0, 2.0),
        calls=factor_calls,
    ),
}


def _of_plugin(name: str, spec: Any) -> Spec:
    """A plugin's Spec. Raises OptionError for what is none, or has a field that is wrong."""
    if not isinstance(spec, Spec):
        raise OptionError("give a Spec of partita.wire.codec")
    if wrong := wrong_field(spec):
        raise OptionError(wrong)
    return spec


SPECS: Final[Registry[Spec]] = Registry("CODECS", OURS, _of_plugin)

SIZED: Final = "return a whole number of bytes, such as -(-bits // 8), of (elements, item, settings)"
LIMITS: Final = {
    "ratio": (1e-12, 1.0, "above 0 up to 1"),
    "rank": (1.0, inf, "of 1 or more"),
    "group": (1.0, inf, "of 1 or more"),
    "levels": (1.0, 32767.0, "1 to 32767"),
    "bits": (2.0, 32.0, "2 to 32"),
    "bin": (1.0, 32768.0, "1 to 32768"),
    "bound": (2.0**-15, 1.0, "2^-15 (3.1e-5) to 1"),
    "threshold": (2.0**-126, inf, "above 0"),  # what is sent is +-threshold
}


def spec_of(codec: Codec) -> Spec:
    """What the codec of that name is. Raises PlanError for a name that is none."""
    if codec.name not in SPECS:
        hint = did_you_mean(codec.name, SPECS) or f"there are {', '.join(SPECS)}{others()}"
        raise PlanError(f"there is no codec {codec.name!r}; {hint}")
    return SPECS[codec.name]


def message_dtype(codec: Codec, own: str = "float32") -> str:
    """What a message of the codec is made of: numbers that may be summed, those of a bucket of dtype `own` where they
    stay what they are, or bytes."""
    sums = spec_of(codec).sums
    return own if sums == OWN else sums or "uint8"


def settings_of(codec: Codec) -> dict[str, float]:
    """The numbers that a codec is used with: its own over those of its kind."""
    return dict(spec_of(codec).settings) | dict(codec.settings)


def room(codec: Codec, elements: int, item: int) -> Bytes:
    """Bytes that a message may take where they vary, else those that it takes."""
    return (4 + item) * elements + 16 if spec_of(codec).varies else coded_size(codec, elements, item)


def masks(codec: Codec) -> bool:
    """Whether it speaks of some numbers only, of which a momentum that goes ahead of it is then forgotten (SP-03)."""
    return spec_of(codec).sparse and settings_of(codec).get("ratio", 0.0) < 1


def density_of(codec: Codec, elements: int) -> float:
    """The part of so many numbers of which a codec is expected to speak; 1 of one that speaks of all."""
    settings = settings_of(codec)
    if not spec_of(codec).sparse or "density" in settings:
        return min(settings.get("density", 1.0), 1.0)
    return kept(elements, settings) / elements if "ratio" in settings and elements else 1.0


def bound_of(codec: Codec, workers: int) -> float:
    """The norm by which each of so many workers bounds its own gradient first (0: it does not): that of their sum, as
    if they were independent (SP-03)."""
    return settings_of(codec).get(spec_of(codec).bound, 0.0) / sqrt(workers)


def text_of(codec: Codec) -> str:
    """The codec's name, with those of its numbers that it does not have anyway, as a knob writes them."""
    usual = dict(spec_of(codec).settings)
    own = [f"{name}={value!r}" for name, value in sorted(codec.settings) if usual.get(name) != value]
    return f"{codec.name}({','.join(own)})" if own else codec.name


def coded_size(codec: Codec, elements: int, item: int) -> Bytes:
    """Bytes that a codec makes of `elements` numbers of `item` bytes; the expected ones where they vary.

    Raises PlanError for a plugin's size that fails, or is no number of bytes.
    """
    if not elements:
        return 0
    spec, settings = spec_of(codec), settings_of(codec)
    with users_code(f"the size of codec {codec.name}", SIZED, PlanError):
        size = spec.size(elements, item, settings)
    try:
        whole = index(size)
    except TypeError:
        whole = -1
    if whole < 0:
        raise PlanError(f"the size of codec {codec.name} is {size!r} for {elements} numbers; {SIZED}")
    if spec.sums in ITEMSIZE and whole % ITEMSIZE[spec.sums]:
        raise PlanError(
            f"the size of codec {codec.name} is {whole} for {elements} numbers; return a multiple of "
            f"{ITEMSIZE[spec.sums]}, the bytes of {spec.sums}, in which its messages are summed"
        )
    return whole


def check_codec(codec: Codec) -> Codec:
    """The codec itself. Raises PlanError for a name, a place or a number that it does not have."""
    spec = spec_of(codec)
    known = [name for name, _ in spec.settings]
    if codec.where not in PLACES:
        raise PlanError(f"{codec.name}(where={codec.where}): {', '.join(PLACES)} are allowed")
    for name, value in codec.settings:
        if name not in known:
            raise PlanError(f"{codec.name} has no number {name!r}; it has {', '.join(known) or 'none'}")
        low, high, allowed = LIMITS.get(name, (0.0, inf, "of 0 or more"))
        if not (low <= value <= high and isfinite(value)):
            raise PlanError(f"{codec.name}({name}={value:g}): a {name} {allowed} is allowed")
    if codec.where == "hop" and (spec.varies or spec.counts or codec.error_feedback):
        why = "it looks at whole matrices" if spec.counts else "partial sums have no residual"
        raise PlanError(
            f"{codec.name} cannot be applied to every hop: "
            f"{'its messages vary in length' if spec.varies else why}; use where=end"
        )
    check_differences(codec, spec.ahead or spec.fresh or spec.counts is not None)
    return codec


def read_codecs(text: str, *, hops: bool = True, difference: float | None = None) -> tuple[Codec, ...]:
    """The codecs of a knob: `none`, `q8(where=end)`, `onebit(feedback=false)`, `topk(ratio=0.01,difference=1)`;
    several, each on what the one before left, between `+`. Without `hops` a codec of them is at the end, unless told
    otherwise; a `difference` is the method's, and none may be given. Raises PlanError naming what is allowed."""
    if text in ("", "none"):
        return ()
    return tuple(check_codec(_read(part.strip(), hops, difference)) for part in text.split("+"))


def _read(text: str, hops: bool, method: float | None) -> Codec:
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        tree = None
    name = tree.func if isinstance(tree, ast.Call) else tree
    if not isinstance(name, ast.Name) or (isinstance(tree, ast.Call) and tree.args):
        raise PlanError(f"{text!r} is no codec; write a name such as q8 or topk(ratio=0.01)")
    spec = spec_of(Codec(name.id))
    where, feedback, own = spec.where if hops or spec.where != "hop" else "end", None, dict[str, float]()
    for keyword in tree.keywords if isinstance(tree, ast.Call) else ():
        word = ast.unparse(keyword.value)
        if keyword.arg == "where":
            where = word
        elif keyword.arg == "feedback" and word.lower() in ("true", "false"):
            feedback = word.lower() == "true"
        else:
            try:
                own[str(keyword.arg)] = float(word)
            except ValueError:
                raise PlanError(f"{text!r}: {keyword.arg}={word} is no number") from None
    if method is not None and "difference" in own:
        raise PlanError(f"{text}: the method itself has difference={method:g}; leave difference out")
    difference = own.pop("difference", method or 0.0)
    usual = spec.feedback and where != "hop" and method is None and not difference
    return Codec(name.id, where, usual if feedback is None else feedback, tuple(own.items()), difference)
