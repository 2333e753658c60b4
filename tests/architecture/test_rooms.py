from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.architecture.rooms import ORDER, PACKAGE, TORCH_FREE, imports, imports_of, loads_torch, reaches_up, sources

MOST_LINES = 320
MOST_FUNCTION_LINES = 60


def test_every_room_has_its_place_in_the_order() -> None:
    rooms = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__init__", "__pycache__"} == set(ORDER)


def test_imports_point_to_rooms_above() -> None:
    wrong = [f"{i.file}:{i.line} reaches for {i.target}" for i in imports() if i.room and reaches_up(i)]
    assert not wrong, "\n".join(wrong)


def test_rooms_without_torch_do_not_import_it() -> None:
    wrong = [f"{i.file}:{i.line} imports {i.target}" for i in imports() if i.room in TORCH_FREE and loads_torch(i)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", [room for room in ORDER if (PACKAGE / room).is_dir() and room != "recipes"])
def test_a_room_tells_which_of_its_files_has_what(room: str) -> None:
    """But for recipes, whose files have the names of what they return."""
    told = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text()), clean=False) or ""
    names = [name for row in re.findall(r"^ *(\w+(?:, \w+)*)  +\S", told, re.MULTILINE) for name in row.split(", ")]
    assert sorted(names) == sorted({path.stem for path in (PACKAGE / room).glob("*.py")} - {"__init__"})


@pytest.mark.parametrize(
    ("room", "line", "caught"),
    [
        ("plan", "from partita.runs.assembly import run", (True, False)),
        ("plan", "import partita.lab.lab", (True, False)),
        ("plan", "def f():\n    from partita import api", (True, False)),
        ("plan", "from partita.graph.graph import Graph", (False, False)),
        ("cost", "import torch.nn", (False, True)),
        ("cost", "from torch import nn", (False, True)),
        ("cost", "if TYPE_CHECKING:\n    import torch", (False, False)),
    ],
)
def test_the_guard_can_fail(room: str, line: str, caught: tuple[bool, bool]) -> None:
    (found,) = imports_of(ast.parse(line), "made-up.py", room)
    assert (reaches_up(found), loads_torch(found)) == caught


BLOCKED = """
import importlib, pkgutil, sys
sys.modules["torch"] = None
import partita
for name in dir(partita):
    if name != "recipes":
        getattr(partita, name)
for room in {rooms!r}:
    module = importlib.import_module("partita." + room)
    for found in pkgutil.iter_modules(getattr(module, "__path__", [])):
        importlib.import_module("partita." + room + "." + found.name)
"""


def test_planning_works_without_torch() -> None:
    """Every room of the torch-free ones, and every public name, loads on a machine that has no torch."""
    code = BLOCKED.format(rooms=TORCH_FREE)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_loads_none_of_it() -> None:
    code = "import sys, partita; print([m for m in sys.modules if m.startswith(('partita.', 'torch', 'numpy'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_public_names_are_what_they_say() -> None:
    import partita

    shown = set(re.findall(r"pt\.(\w+)", partita.__doc__ or ""))
    assert set(partita.__all__) - shown == {"Graph", "Timeline"}, "help(partita) leads to every verb"
    assert shown <= set(partita.__all__)
    assert set(partita.PLACES) | set(partita.ROOMS) == set(partita.__all__)
    assert partita.Cluster.load("local:2").size == 2
    assert partita.errors.PlanError.exit_code == 2
    assert partita.__version__ == tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]["version"]
    with pytest.raises(AttributeError, match="has no 'nothing'"):
        _ = partita.nothing


def test_files_and_functions_stay_short() -> None:
    long = [
        f"{path.name}: {n} lines" for path, _ in sources() if (n := len(path.read_text().splitlines())) > MOST_LINES
    ]
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                n = (node.end_lineno or node.lineno) - node.lineno + 1
                long += [f"{path.name}: {node.name} has {n} lines"] if n > MOST_FUNCTION_LINES else []
    assert not long, "\n".join(long)


def test_every_public_name_has_a_docstring() -> None:
    """Classes, functions and methods."""
    bare = [
        f"{path.relative_to(PACKAGE).as_posix()}: {name}" for path, tree in sources() for name in undocumented(tree)
    ]
    assert not bare, "\n".join(bare)


def undocumented(tree: ast.Module) -> Iterator[str]:
    """The public functions, classes and methods of a module that have no docstring, by qualified name."""
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            yield node.name
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            public = isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_")
            if public and not ast.get_docstring(inner):
                yield f"{node.name}.{inner.name}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f():\n    pass", ["f"]),
        ("def _f():\n    pass", []),
        ("class C:\n    'A class.'\n    def m(self):\n        pass", ["C.m"]),
    ],
)
def test_missing_docstrings_are_found(text: str, found: list[str]) -> None:
    assert list(undocumented(ast.parse(text))) == found


def array_aliases(tree: ast.Module) -> Iterator[str]:
    """What the module's own names for arrays stand for, as text."""
    for node in tree.body:
        if (
            isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value
            and ast.unparse(node.value).startswith("NDArray[")
        ):
            yield ast.unparse(node.value)


def test_each_kind_of_array_has_one_name() -> None:
    named = Counter(alias for _, tree in sources() for alias in array_aliases(tree))
    assert named["NDArray[np.float64]"] == 1
    assert not [f"{alias} is named {count} times" for alias, count in named.items() if count > 1]
