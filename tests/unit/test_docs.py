"""The documents are checked against the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "roundhouse"
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


@pytest.mark.parametrize("document", sorted((ROOT / "docs").rglob("*.md")) + sorted(ROOT.glob("*.md")), ids=str)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target
