"""Peers in environments of their own: a folder with one virtual environment per peer."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

SETUP_S = 600.0
_PICTURES = ("onnxruntime==1.32.0", "opencv-python-headless==5.0.0.93")
REQUIREMENTS = {
    "litserve": ("litserve==0.2.19", *_PICTURES),
    "mosec": ("mosec==0.9.8", *_PICTURES),
}


def python_of(peer: str, folder: Path) -> Path:
    """The peer's interpreter; made with pip the first time.

    Raises:
        subprocess.CalledProcessError: pip could not install it; its message is printed.
    """
    home = folder / peer
    python = home / "bin" / "python"
    stamp = home / ".installed"
    wanted = " ".join(REQUIREMENTS[peer])
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing {wanted} into {home}", file=sys.stderr)
        venv.create(home, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS[peer]]
        subprocess.run(command, check=True, timeout=SETUP_S)
        stamp.write_text(wanted)
    return python
