"""What stands in the package's source: imports, sizes, docstrings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import partita

PACKAGE = Path(partita.__file__).parent
ORDER = (
    "errors", "units", "arrays", "telling", "files", "task", "graph", "cluster", "plan", "program", "wire", "cost",
    "lowering", "simulator", "recipes", "searches", "zoo", "tracing", "kernels", "transport", "runtime", "checkpoints",
    "runs", "oracles", "probes", "lab", "report", "api", "commands", "__main__",
)  # fmt: skip
TORCH_FREE = (*ORDER[: ORDER.index("zoo")], "report", "commands", "__main__")


@dataclass(frozen=True)
class Import:
    """`file` of `room`, at `line`, imports `target`; `typing_only` if under `if TYPE_CHECKING:`."""

    file: str
    room: str
    line: int
    target: str
    typing_only: bool

    @property
    def target_room(self) -> str:
        """The room imported from, or "" for what is not ours."""
        parts = self.target.split(".")
        return parts[1] if parts[0] == "partita" and len(parts) > 1 else ""


@cache
def sources() -> tuple[tuple[Path, ast.Module], ...]:
    """Every file of the package and its tree, read once."""
    return tuple((path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(PACKAGE.rglob("*.py")))


@cache
def imports() -> tuple[Import, ...]:
    """Every import of the package, also those inside functions."""
    found: list[Import] = []
    for path, tree in sources():
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        room = "" if parts == ("__init__",) else parts[0]
        found += imports_of(tree, str(path.relative_to(PACKAGE.parent)), room)
    return tuple(found)


def imports_of(tree: ast.Module, file: str, room: str) -> Iterator[Import]:
    guarded = {id(inner) for node in ast.walk(tree) if _typing_only(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module else []
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            yield Import(file, room, node.lineno, name, id(node) in guarded)


def _typing_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def reaches_up(found: Import) -> bool:
    """Whether it imports from a room below its own in the order: rooms know only those before them."""
    return found.target_room in ORDER and ORDER.index(found.target_room) > ORDER.index(found.room)


def loads_torch(found: Import) -> bool:
    return found.target.split(".")[0] == "torch" and not found.typing_only
