"""Pages for people say what is so: rooms in their order, files that are there, links that lead somewhere, options that
commands have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.rooms import ORDER, PACKAGE
from tests.architecture.test_contract import CONTRACT

ROOT: Final = PACKAGE.parent
PAGE: Final = ROOT / "docs" / "architecture.md"
PAGES: Final = (
    ROOT / "README.md", PAGE, ROOT / "docs" / "catalogue.md", *sorted(ROOT.glob("benchmarks/*/README.md")),
)  # fmt: skip
WIDEST: Final = 120
MOST: Final = 40_000  # bytes that a stranger takes in
PATHS: Final = re.compile(r"`([\w*]+(?:/[\w*]+)+(?:\.\w+)?/?)`")
SECTION: Final = re.compile(r"^### (.+?): .*\n((?:(?!#).*\n)*)", re.MULTILINE)
LINK: Final = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
LONG: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
SCRIPT: Final = re.compile(r"python benchmarks/(\w+)/(\w+\.py)([^`\n]*)")


def sections(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """(rooms of a heading, what stands below it)."""
    for heading, body in SECTION.findall(text):
        yield tuple(heading.replace("\\", "").split(", ")), body


def absent(path: str) -> bool:
    """Whether there is neither a file or folder of that name, nor a file of the package, nor a name in one."""
    if any(any(place.glob(path.rstrip("/") + end)) for place in (ROOT, PACKAGE) for end in ("", ".py")):
        return False
    stem, _, name = path.rpartition(".")
    file = PACKAGE / f"{stem}.py"
    return not (name and file.is_file() and re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")))


def strangers(room: str, body: str) -> list[str]:
    """The names in what is said of a room that are neither files of it nor words in them."""
    said = " ".join(path.read_text(encoding="utf-8") for path in (PACKAGE / room).glob("*.py"))
    known = {path.stem for path in (PACKAGE / room).iterdir()} | set(re.findall(r"\w+", said)) | set(ORDER)
    return [name for name in re.findall(r"`([a-z_]+)`", body) if name not in known]


def unknown_options(line: str) -> list[str]:
    """The options in a command line of ours that the command does not have; the command itself, if there is none."""
    words = shlex.split(line, comments=True)
    name = next((name for name in (" ".join(words[1:3]), *words[1:2]) if name in CONTRACT), "")
    if not name:
        return [] if words[1:2] == ["--help"] else [" ".join(words[:2])]
    inner = words[: words.index("--")] if "--" in words else words
    return [word for word in inner if LONG.fullmatch(word) and word not in CONTRACT[name]]


def command_lines(text: str) -> Iterator[str]:
    """The lines of a page that are commands of ours."""
    text = re.sub(r"\\\n\s*", "", text)
    yield from re.findall(r"^(?:    |\$ ?)?(?:\.venv/bin/)?(partita [a-z].*)$", text, re.MULTILINE)


def test_the_page_has_all_rooms_in_their_order() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [room for rooms, _ in sections(text) for room in rooms if room in ORDER] == list(ORDER)


def test_what_the_page_names_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert not [path for path in PATHS.findall(text) if "ROOM" not in path and absent(path)]
    for rooms, body in sections(text):
        if len(rooms) == 1 and (PACKAGE / rooms[0]).is_dir():
            assert not strangers(rooms[0], body), rooms[0]


def test_the_page_is_short() -> None:
    assert len(PAGE.read_bytes()) <= MOST


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere_and_lines_are_wrapped(page: Path) -> None:
    """But for lines of tables and commands."""
    text = page.read_text(encoding="utf-8")
    assert not [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert not [line for line in text.splitlines() if len(line) > WIDEST and not line.startswith(("|", "    "))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_have_their_options(page: Path) -> None:
    """Ours those of the command line, a benchmark's those that one of its scripts reads."""
    text = page.read_text(encoding="utf-8")
    assert not [(line, wrong) for line in command_lines(text) if (wrong := unknown_options(line))]
    for folder, script, given in SCRIPT.findall(re.sub(r"\\\n\s*", "", text)):
        read = (ROOT / "benchmarks" / folder / script).read_text(encoding="utf-8")
        assert not [option for option in LONG.findall(given) if f'"{option}"' not in read], (folder, script)


def test_the_guards_can_fail() -> None:
    named = ("runtime/schedules", "runtime/worker.steered", "runtime/worker.drive")
    assert [absent(path) for path in named] == [True, True, False]
    assert strangers("runtime", "`acts` in an order (`schedules`)") == ["schedules"]
    assert unknown_options("partita train t.py:task --cluster c --plans ddp") == ["--plans"]
    assert unknown_options("partita cluster lab c -- python x.py --any") == []
    assert unknown_options("partita trian x") == ["partita trian"]
    assert list(command_lines("    partita plan x \\\n        --top 3\n")) == ["partita plan x --top 3"]
