"""Peers in environments of their own: a folder with one virtual environment per peer."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

SETUP_S = 600.0
REQUIREMENTS = {"litserve": ("litserve==0.2.19",), "mosec": ("mosec==0.9.8",)}


def python_of(peer: str, folder: Path) -> Path:
    """The peer's interpreter; made with pip the first time.

    Raises:
        subprocess.CalledProcessError: pip could not install it; its message is printed.
    """
    home = folder / peer
    python = home / "bin" / "python"
    stamp = home / ".installed"
    if not stamp.exists():
        print(f"installing {' '.join(REQUIREMENTS[peer])} into {home}", file=sys.stderr)
        venv.create(home, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS[peer]]
        subprocess.run(command, check=True, timeout=SETUP_S)
        stamp.touch()
    return python
