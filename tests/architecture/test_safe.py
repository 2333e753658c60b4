"""Nothing that is read from a file, a socket or a command line is ever run: what a tool can hold of that."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.rooms import PACKAGE, sources

UNPICKLES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
# Calls that unpickle, evaluate text, or hand a text to a shell; torch's collectives of objects pickle them.
CALLS = {
    "torch.load", "torch.save", "eval", "exec", "os.system", "os.popen", "subprocess.getoutput", "__import__",
    "dist.all_gather_object", "dist.broadcast_object_list", "dist.gather_object", "dist.scatter_object_list",
    "dist.send_object_list", "dist.recv_object_list", "yaml.load", "np.load", "numpy.load",
}  # fmt: skip
# The code of a segment, which the package has written itself from a captured graph.
ALLOWED = {("runtime/segment.py", "exec")}
SHELLS = {"sh", "bash", "/bin/sh", "/bin/bash"}
# Constant text that sets a namespace's own transport.
CONSTANT = {"lab/network.py"}


def unsafe(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what) of all that could run what was read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            yield from ((node.lineno, name) for name in names if name.split(".")[0] in UNPICKLES)
        if isinstance(node, ast.Call):
            if (called := ast.unparse(node.func)) in CALLS:
                yield node.lineno, called
            if any(k.arg == "shell" and ast.unparse(k.value) != "False" for k in node.keywords):
                yield node.lineno, "shell"
            if any(k.arg in ("weights_only", "allow_pickle") for k in node.keywords):
                yield node.lineno, "weights_only"
        first = node.elts[0] if isinstance(node, ast.List) and node.elts else None
        if isinstance(first, ast.Constant) and first.value in SHELLS:
            yield node.lineno, str(first.value)


def test_nothing_is_unpickled_evaluated_or_given_to_a_shell() -> None:
    """FAULTS section 3, rules 2, 4, 5 and 6."""
    found = [
        f"{place}:{line} {what}"
        for path, tree in sources()
        for line, what in unsafe(tree)
        for place in [path.relative_to(PACKAGE).as_posix()]
        if (place, what) not in ALLOWED and not (what in SHELLS and place in CONSTANT)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "import pickle", "from dill import loads", "torch.load(path)", "subprocess.run('ls', shell=True)",
        "torch.load(path, weights_only=False)", "dist.broadcast_object_list(x)", "eval(text)", "run(['sh', '-c', x])",
        "np.load(path, allow_pickle=True)",
    ],
)  # fmt: skip
def test_the_guard_against_it_can_fail(line: str) -> None:
    assert list(unsafe(ast.parse(line)))


def test_code_that_is_harmless_passes() -> None:
    assert not list(unsafe(ast.parse("model.eval()\njson.load(file)\nsubprocess.run([tool, x], shell=False)")))
