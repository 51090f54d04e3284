"""Processes that start at once, forked from one that has imported everything.

Importing torch, prlc and what they import late takes four seconds of a core; a fork takes none.
One server forks for all of pytest's processes, and ends with them. What it starts runs the `main()`
of a module, in a session of its own, and ends like any program.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).parent


class Process:
    """A process that was forked, as far as `subprocess.Popen` would show it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._told = connection.makefile()
        self.pid = int(self._told.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """How it ended, once it has."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def kill_all(self) -> None:
        """End it and all in its session that did not leave its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], timeout)[0]:
            self.returncode = int(self._told.readline())
            self._told.close()
            self._connection.close()
        return self.returncode


def start(module: str, *arguments: str | Path, output: int, errors: int | None = None) -> Process:
    """Fork a process that runs `module.main()` here and now, writing to these file descriptors."""
    job = {
        "module": module,
        "arguments": [str(argument) for argument in arguments],
        "folder": str(Path.cwd()),
        "environment": dict(os.environ),
    }
    connection = _connect()
    socket.send_fds(connection, [json.dumps(job).encode()], [output, errors or output])
    connection.shutdown(socket.SHUT_WR)
    return Process(connection)


def _connect() -> socket.socket:
    """A connection to the server, which the first to ask starts."""
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    address = Path(tempfile.gettempdir()) / f"prlc-forks-{owner}"
    with address.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(ConnectionError, FileNotFoundError):
            connection.connect(str(address))
            return connection
        address.unlink(missing_ok=True)
        command = [sys.executable, "-m", "forks", str(address), str(owner)]
        subprocess.run(command, cwd=TESTS, check=True)
        connection.connect(str(address))
        return connection


# -- the server ------------------------------------------------------------------------------------


def main() -> None:
    address, owner = Path(sys.argv[1]), int(sys.argv[2])
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen()
    if os.fork() > 0:
        os._exit(0)  # there is somebody to connect to
    os.setsid()
    _warm_up()
    run = _serve(listener, owner)
    if run is not None:
        run()  # here, so that what it raises ends the program as usual
    else:
        for file in (address, address.with_suffix(".lock")):
            file.unlink(missing_ok=True)


def _warm_up() -> None:
    """Import what is imported late, too, before there are many of us."""
    import torch

    import prlc
    from processes.problems import problem, settings

    torch.set_num_threads(1)
    usual = settings({"steps": 1, "eval_every": 1, "method": "nsgd"}, 1)
    for optimizer in ("sgd", "momentum"):
        prlc.train(*problem("bn"), engine="reference", optimizer=optimizer, **usual)
    prlc.train(*problem("bn"), execution=prlc.Execution(1, 1), **usual)
    gc.collect()
    gc.freeze()  # or every process looks at all of that at its end


def _serve(listener: socket.socket, owner: int) -> Callable[[], None] | None:
    """Fork whenever asked; gives what to do in a new process, and None when the owner is gone."""
    listener.settimeout(1.0)
    while _lives(owner):
        with contextlib.suppress(TimeoutError):
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                connection.settimeout(None)
                return _attend(connection)
            connection.close()
        with contextlib.suppress(ChildProcessError):  # there are none
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _attend(connection: socket.socket) -> Callable[[], None]:
    """Fork the process asked for, tell its id and how it ended; returns only in the new one."""
    text, files, *_ = socket.recv_fds(connection, 1 << 20, 2)
    while more := connection.recv(1 << 20):
        text += more
    pid = os.fork()
    if pid > 0:
        for file in files:
            os.close(file)
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(f"{pid}\n".encode())
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            connection.sendall(f"{code}\n".encode())
        os._exit(0)
    connection.close()
    os.setsid()
    for file, place in zip(files, (1, 2), strict=True):
        os.dup2(file, place)
        os.close(file)
    job = json.loads(text)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    sys.argv = [job["module"], *job["arguments"]]
    run: Callable[[], None] = importlib.import_module(job["module"]).main
    return run


if __name__ == "__main__":
    main()
