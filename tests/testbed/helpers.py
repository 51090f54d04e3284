"""Shared by tests on real namespaces: skipping where they cannot run, sockets on the nodes."""

from __future__ import annotations

import ctypes
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from prlc.testbed import Node, Topology, machine
from prlc.testbed import Testbed as Bed

T = TypeVar("T")
Pair = tuple[socket.socket, socket.socket]  # the sender's end, the receiver's end

_NETWORK_NAMESPACE = 0x40000000  # CLONE_NEWNET


def missing(topology: Topology) -> str | None:
    """What this machine lacks for a testbed, as a reason to skip."""
    for need in machine.requirements_of(topology):
        if not need.is_met():
            return f"needs {need.name} for {need.purpose}"
    return None


def _where(topology: Topology) -> pytest.MarkDecorator:
    lacks = missing(topology)
    return pytest.mark.skipif(lacks is not None, reason=str(lacks))


on_a_real_machine = _where(Topology("probe"))
where_packets_can_get_lost = _where(Topology("probe", loss=0.5))


def left_of(name: str) -> list[str]:
    """The namespaces of the testbed `name` that exist."""
    return [each for each in machine.namespaces() if each.startswith(f"prlc-{name}-")]


def runs(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    return Path(f"/proc/{pid}/exe").exists()


def inside(node: Node, make: Callable[[], T]) -> T:
    """Call `make` in the node's namespace: a socket created there stays there."""
    made: list[T] = []

    def enter() -> None:
        handle = os.open(f"/run/netns/{node.namespace}", os.O_RDONLY)
        try:
            assert ctypes.CDLL(None).setns(handle, _NETWORK_NAMESPACE) == 0
        finally:
            os.close(handle)
        made.append(make())

    thread = threading.Thread(target=enter)  # only this thread moves, and it ends
    thread.start()
    thread.join()
    return made[0]


def connect(sender: Node, receiver: Node) -> Pair:
    """A TCP connection between two nodes."""
    listener = inside(receiver, lambda: socket.create_server((receiver.address, 0)))
    with listener:
        ours = inside(sender, lambda: socket.create_connection(listener.getsockname(), timeout=5))
        theirs, _ = listener.accept()
    return ours, theirs


def goodput(pairs: Sequence[Pair], warm_up: float = 0.4, seconds: float = 1.0) -> list[float]:
    """Bytes/s that arrive on each connection while all send as fast as they can."""
    received = [0] * len(pairs)
    before, began = received, 0.0
    chunk, buffer = bytes(1 << 18), bytearray(1 << 18)
    with selectors.DefaultSelector() as ready:
        for i, (sender, receiver) in enumerate(pairs):
            for end in (sender, receiver):
                end.setblocking(False)
            ready.register(sender, selectors.EVENT_WRITE, (None, sender))
            ready.register(receiver, selectors.EVENT_READ, (i, receiver))
        start = time.monotonic()
        while (now := time.monotonic()) < start + warm_up + seconds:
            if not began and now >= start + warm_up:
                before, began = list(received), now
            for key, _ in ready.select(0.1):
                index, socket_ = key.data
                if index is None:
                    socket_.send(chunk)
                else:
                    received[index] += socket_.recv_into(buffer)
    for pair in pairs:
        for end in pair:
            end.close()
    return [(after - then) / (now - began) for after, then in zip(received, before, strict=True)]


def ups(bed: Bed) -> list[Pair]:
    return [connect(worker, bed.server) for worker in bed.workers]


def downs(bed: Bed) -> list[Pair]:
    return [connect(bed.server, worker) for worker in bed.workers]
