"""Prints the files of each walk as JSON: `python -m tests.paths`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.paths.walks import WALKS


def main() -> None:
    files = {}
    for title, walk in WALKS.items():
        with tempfile.TemporaryDirectory() as folder:
            files[title] = walk.run(Path(folder))
    print(json.dumps(files, indent=1))


if __name__ == "__main__":
    main()
