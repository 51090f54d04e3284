"""A process that owns a testbed until it is ended: main is told FOLDER NAME."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from prlc.testbed import Testbed, cleanup


def main() -> None:
    folder, name = sys.argv[1:]
    cleanup.RECORDS = Path(folder)
    with Testbed(workers=2, name=name) as bed:
        bed.start({"w01": ["sleep", "600"]}, logs=folder)
        print("there", flush=True)
        time.sleep(600)
