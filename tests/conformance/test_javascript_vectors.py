"""Runs the JavaScript client's own tests; they read the same golden vectors as Python's."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.conformance

HERE = Path(__file__).parent / "js"
ROOT = Path(__file__).parents[2]
MIN_NODE = 20  # CustomEvent is a global from here on
LIMIT_S = 60


@pytest.fixture(scope="module")
def node() -> str:
    path = shutil.which("node")
    if path is None:
        pytest.skip("node is missing: install Node.js 20 or newer")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.removeprefix("v").split(".")[0]) < MIN_NODE:
        pytest.skip(f"node {version.strip()} is older than {MIN_NODE}")
    return path


@pytest.mark.parametrize("name", sorted(path.name for path in HERE.glob("*.test.mjs")))
def test_javascript_passes(node: str, name: str) -> None:
    finished = subprocess.run(
        [node, "--test", str(HERE / name)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert finished.returncode == 0, finished.stdout[-4000:]
    counted = re.search(r"^# pass (\d+)$", finished.stdout, re.MULTILINE)
    assert counted is not None
    assert int(counted[1]) > 0


def test_javascript_modules_are_no_longer_than_others() -> None:
    lengths = {
        path.name: len(path.read_text().splitlines())
        for path in (ROOT / "web_demo" / "js").glob("*.js")
    }
    assert lengths
    assert {name: length for name, length in lengths.items() if length > 400} == {}
