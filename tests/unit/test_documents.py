"""Python in the documents: it compiles as it is pasted, and what it takes from us exists."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.+?)^```", re.DOTALL | re.MULTILINE)
OURS = frozenset({"engine", "gateway", "pipelines"})


def blocks() -> Iterator[tuple[str, str]]:
    """Each with the place where it stands."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start(1)) + 1
            yield f"{path.relative_to(ROOT)}:{line}", match[1]


BLOCKS = dict(blocks())


@pytest.mark.parametrize("place", BLOCKS)
def test_python_of_a_document_compiles_as_it_is_pasted(place: str) -> None:
    compile(BLOCKS[place], place, "exec")


@pytest.mark.parametrize("place", BLOCKS)
def test_what_a_document_imports_from_us_is_there(place: str) -> None:
    for node in ast.walk(ast.parse(BLOCKS[place])):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            module = importlib.import_module(node.module or "")
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert missing == []
