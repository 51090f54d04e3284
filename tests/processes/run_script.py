"""Run a script in two processes, as torchrun would, forked after the imports (see forks.py)."""

from __future__ import annotations

import importlib
import os
import runpy
import sys

from .run_cases import end, keep_store


def main() -> None:
    """Arguments: what to import before there are two of us, the script, and the script's own."""
    library, script, *arguments = sys.argv[1:]
    importlib.import_module(library)
    store = keep_store()
    os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = []
    for rank in ("0", "1"):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
            sys.argv = [script, *arguments]
            runpy.run_path(script, run_name="__main__")
            sys.exit()
        ranks.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks]
    end(store)
    sys.exit(any(codes))
