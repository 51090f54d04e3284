"""Run cases in real processes, forked after the imports (see forks.py).

FOLDER/cases.json lists the cases; what became of each is in a folder of its name.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import prlc
from prlc import cli
from prlc.engines.processes import Cluster

from . import trouble
from .problems import outcome, problem, settings


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run: of `prlc.train` with `settings`, or of a command line."""

    name: str
    layout: str = "server"
    workers: int = 4
    processes: int | None = None
    """How many, if not as many as that takes."""
    model: str = "bn"
    other_model: str | None = None
    """What the last rank has instead."""
    other_settings: dict[str, Any] = field(default_factory=dict)
    """What the last rank is told besides."""
    other_cluster: dict[str, Any] = field(default_factory=dict)
    other_command: list[str] = field(default_factory=list)
    seed_by_rank: bool = False
    """Whether the first weights differ."""
    settings: dict[str, Any] = field(default_factory=dict)
    """A `folder` is within that of all cases; those with the same one take turns."""
    cluster: dict[str, Any] = field(default_factory=dict)
    command: list[str] | None = None
    trouble: dict[str, Any] | None = None
    """What `trouble.make` is told. Started again, who does not go on but begins anew shall die."""
    starts: int = 1
    """How often, while it fails, it is started."""
    again: bool = False
    """Whether to start it once more when it has gone well."""
    limit: float = 120.0
    """Seconds until a start counts as hung."""

    @property
    def world(self) -> int:
        return self.processes or self.workers + (self.layout == "server")


def keep_store() -> int:
    """Start the process in which all ranks find each other; gives its id.

    It has a port that the system chose and that nobody else can take meanwhile.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writing, str(store.port).encode())
        signal.pause()
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": os.read(reading, 10).decode(),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    os.close(reading)
    os.close(writing)
    return child


class Start:
    """All ranks of a case, started once."""

    def __init__(self, case: Case, folder: Path, number: int) -> None:
        self.case, self.number = case, number
        self.codes: dict[int, int | str] = {}
        self._since = time.monotonic()
        folder = folder / case.name
        folder.mkdir(exist_ok=True)
        self._store = keep_store()
        os.environ["WORLD_SIZE"] = str(case.world)
        self._pids = []
        for rank in range(case.world):
            child = os.fork()
            if child == 0:
                _be_rank(case, folder, rank, number)
            self._pids.append(child)

    def poll(self) -> bool:
        """Whether it is over: all have ended but those who were stopped, or it took too long."""
        for rank, pid in enumerate(self._pids):
            if self.codes.get(rank) in (None, "stopped"):
                found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
                if found and os.WIFSTOPPED(status):
                    self.codes[rank] = "stopped"
                elif found:
                    self.codes[rank] = os.waitstatus_to_exitcode(status)
        late = time.monotonic() - self._since > self.case.limit
        if len(self.codes) < len(self._pids) and not late:
            return False
        for rank, pid in enumerate(self._pids):
            if self.codes.get(rank) in (None, "stopped"):
                end(pid)
                self.codes.setdefault(rank, "hung")
        end(self._store)
        return True


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _be_rank(case: Case, folder: Path, rank: int, number: int) -> None:
    """In a forked process: do a rank's part.

    A command ends as any program does. Elsewhere nobody takes the interpreter down properly, which
    takes longer than the run.
    """
    os.environ["RANK"] = str(rank)
    said = os.open(folder / f"{number}-{rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    if case.trouble is not None:
        anew = {"what": "die", "step": 3} if number > 0 else {}
        trouble.make(**case.trouble | anew)
    if case.command is not None:
        more = case.other_command if rank == case.world - 1 else []
        sys.argv = ["prlc", *case.command, *more]
        cli.main()
        sys.exit(0)
    model, told, among = case.model, case.settings, case.cluster
    if rank == case.world - 1:
        model, told = case.other_model or model, told | case.other_settings
        among = among | case.other_cluster
    given = settings(told, case.workers)
    cluster = Cluster(**{"layout": case.layout, "peer_timeout": 60.0, **among})
    try:
        result = prlc.train(
            *problem(model, seed=1 + rank * case.seed_by_rank),
            engine="distributed",
            cluster=cluster,
            **given,
        )
    except prlc.PrlcError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(error.exit_code)
    torch.save(outcome(result), folder / f"outcome-{rank}.pt")
    os._exit(0)


def main() -> None:
    folder = Path(sys.argv[1])
    os.chdir(folder)  # where runs are to be written
    given = json.loads((folder / "cases.json").read_text())
    waiting = [Case(**case) for case in given["cases"]]
    torch.set_num_threads(1)
    running: list[Start] = []
    ended: dict[str, list[dict[int, int | str]]] = {case.name: [] for case in waiting}
    while waiting or running:
        taken = {start.case.settings.get("folder") for start in running} - {None}
        free = [case for case in waiting if case.settings.get("folder") not in taken]
        if free and len(running) < given["at_once"]:
            waiting.remove(free[0])
            running.append(Start(free[0], folder, 0))
        for start in [start for start in running if start.poll()]:
            running.remove(start)
            codes = ended[start.case.name]
            codes.append(start.codes)
            failed, once = any(start.codes.values()), len(codes) == 1
            if (failed and len(codes) < start.case.starts) or (start.case.again and once):
                running.append(Start(start.case, folder, len(codes)))
        time.sleep(0.01)
    (folder / "codes.json").write_text(json.dumps(ended))


if __name__ == "__main__":
    main()
