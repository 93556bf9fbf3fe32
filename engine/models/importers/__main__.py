"""``python -m engine.models.importers IMPORTER SOURCE TARGET``: an import for the store.

It has a process of its own because half a gigabyte of what an import needs would stay with whoever
pulls a model and then serves it. What is wrong with the source is the last line on standard error.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main() -> None:
    importer, source, target = sys.argv[1:]
    module = importlib.import_module(f"engine.models.importers.{importer}")
    try:
        module.convert(Path(source), Path(target))
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
