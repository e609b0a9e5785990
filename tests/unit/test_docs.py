"""The documents are checked against the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from roundhouse.protocol import errors
from roundhouse.protocol.errors import RoundhouseError
from roundhouse.protocol.frames import ENGINE_CORE_DEAD, ENGINE_TYPES, FRONTEND_TYPES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "roundhouse"
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
WALK = (ROOT / "docs" / "walk.md").read_text()

NAMED_FILES = sorted(set(re.findall(r"\b([a-z_]+/[a-z_]+\.py)\b", WALK)))
NAMED_THINGS = sorted(set(re.findall(r"`([a-z_]+/[a-z_]+\.py):(\w+)`", WALK)))


def test_the_walk_names_files_and_things() -> None:
    assert len(NAMED_FILES) > 30
    assert len(NAMED_THINGS) > 30


@pytest.mark.parametrize("path", NAMED_FILES)
def test_a_file_of_the_walk_is_there(path: str) -> None:
    assert (SOURCE / path).is_file()


@pytest.mark.parametrize(("path", "name"), NAMED_THINGS)
def test_a_thing_of_the_walk_is_in_its_file(path: str, name: str) -> None:
    tree = ast.parse((SOURCE / path).read_text())
    defined = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
    assert name in defined


def test_the_types_in_the_protocol_page_are_those_on_the_wire() -> None:
    rows = re.findall(r"^\| [A-Z_]+ \| `(\w+)` \| `(\w+)` \|", PROTOCOL, re.MULTILINE)
    types = [*FRONTEND_TYPES.items(), *ENGINE_TYPES.items()]
    assert rows == [(ENGINE_CORE_DEAD.decode() if b == ENGINE_CORE_DEAD else b.hex(), t.__name__) for t, b in types]


def test_the_names_of_failures_in_the_protocol_page_are_wire_codes_or_refusals() -> None:
    """`no_engine` and the like are codes of the error tree; the reasons of REFUSED are spelled there."""
    table = PROTOCOL[PROTOCOL.index("| name | who says it |") :].split("\n\n")[0]
    names = set(re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines()[2:])))
    codes = {cls.code for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, RoundhouseError)}
    refusals = "".join(
        (SOURCE / "frontend" / name).read_text() for name in ("engine_set.py", "hello_halves.py", "guard.py")
    )
    assert names
    assert [name for name in sorted(names) if name not in codes and f'"{name}"' not in refusals] == []


@pytest.mark.parametrize("document", sorted((ROOT / "docs").rglob("*.md")) + sorted(ROOT.glob("*.md")), ids=str)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target
