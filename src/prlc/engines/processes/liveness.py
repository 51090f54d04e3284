"""Who of the run is alive: every process answers when it is asked, and asks when it waits too long.

In the sharded layout everybody waits for everybody: if one process hangs, the one awaited may
itself only be waiting. So whoever has waited too long asks all others directly; the one that does
not answer hangs. Nothing stands between the two: a store or a server that hangs is found out like
any other.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prlc.errors import PeerError

Address = tuple[str, int]

_LEAST_PATIENCE, _MOST_PATIENCE = 3.0, 10.0  # seconds until an answer must have come
_CONNECTIONS = 64  # at once


class Answering:
    """A thread that tells whoever connects that this process is alive."""

    def __init__(self, word: str) -> None:
        """`word` is what only this process says."""
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._socket = socket.create_server(
            ("", 0), family=family, backlog=_CONNECTIONS, dualstack_ipv6=both
        )
        self.word = word
        threading.Thread(target=self._answer, daemon=True, name="answering").start()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def _answer(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(1.0)
                connection.sendall(self.word.encode())

    def close(self) -> None:
        """From now on this process looks dead."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@dataclass(frozen=True)
class Peer:
    """Where a process answers, and what it says then."""

    addresses: Sequence[Address]
    """Any of which may be the one that can be reached."""
    word: str


class Liveness:
    """Asks the other processes; ends this one if it waits for a run that hangs."""

    def __init__(self, rank: int, peers: Sequence[Peer], timeout: float, own: Answering) -> None:
        """`timeout`: seconds of waiting after which the others are asked."""
        self._rank, self._peers, self._own = rank, peers, own
        self.timeout = timeout
        self._patience = min(max(timeout / 4, _LEAST_PATIENCE), _MOST_PATIENCE)
        self._waits: dict[int, tuple[float, Callable[[list[int]], PeerError]]] = {}
        self._stopped = threading.Event()
        #: Who has ever answered: others may be behind a firewall, so their silence means nothing.
        self._reachable = {rank}
        threading.Thread(target=self._watch, daemon=True, name="watch").start()

    def silent(self) -> list[int]:
        """The ranks that do not answer. Takes seconds if there are any."""
        others = sorted(self._reachable - {self._rank})
        answering = ask([self._peers[rank] for rank in others], self._patience)
        return [rank for rank, answers in zip(others, answering, strict=True) if not answers]

    @contextlib.contextmanager
    def waiting(self, explain: Callable[[list[int]], PeerError]) -> Iterator[None]:
        """While this thread waits: if somebody is silent past the timeout, end with `explain`.

        A wait inside torch cannot be broken off, and some may rightly take longer.
        """
        thread = threading.get_ident()
        self._waits[thread] = (time.monotonic(), explain)
        try:
            yield
        finally:
            del self._waits[thread]

    def stop(self) -> None:
        self._stopped.set()
        self._own.close()

    def _watch(self) -> None:
        others = [rank for rank in range(len(self._peers)) if rank != self._rank]
        answers = ask([self._peers[rank] for rank in others], self._patience)
        self._reachable |= {rank for rank, yes in zip(others, answers, strict=True) if yes}
        while not self._stopped.wait(min(self.timeout / 4, 1.0)):
            limit = time.monotonic() - self.timeout - 1.0  # whoever waits may say it first
            late = [explain for since, explain in list(self._waits.values()) if since < limit]
            if late and (silent := self.silent()) and not self._stopped.is_set():
                print(f"error (rank {self._rank}): {late[0](silent)}", file=sys.stderr, flush=True)
                os._exit(PeerError.exit_code)


def ask(peers: Sequence[Peer], seconds: float) -> list[bool]:
    """Whether each of the peers answers within so many seconds."""
    answers = [False] * len(peers)
    for start in range(0, len(peers), _CONNECTIONS):
        numbers = range(start, min(start + _CONNECTIONS, len(peers)))
        _ask_some([(number, peers[number]) for number in numbers], seconds, answers)
    return answers


def _ask_some(peers: Sequence[tuple[int, Peer]], seconds: float, answers: list[bool]) -> None:
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as opened:
        for number, peer in peers:
            for host, port in peer.addresses:
                with contextlib.suppress(OSError):
                    connection = opened.enter_context(_begin(host, port))
                    selector.register(connection, selectors.EVENT_READ, (number, peer.word))
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                number, word = key.data
                said = b""
                with contextlib.suppress(OSError):
                    said = key.fileobj.recv(64)  # type: ignore[union-attr]
                selector.unregister(key.fileobj)
                answers[number] |= said.decode(errors="replace") == word
            if all(answers[number] for number, _ in peers):
                return


def _begin(host: str, port: int) -> socket.socket:
    """A connection in the making."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    connection = socket.socket(family)
    connection.setblocking(False)
    connection.connect_ex((host, port))
    return connection


def own_addresses(meeting_place: str, port: int) -> list[str]:
    """Where this machine may be reached: as gloo would choose, and as seen from the store."""
    found = []
    with contextlib.suppress(OSError):
        found.append(socket.gethostbyname(socket.gethostname()))
    with contextlib.suppress(OSError):
        kind, address = socket.getaddrinfo(meeting_place, port, type=socket.SOCK_DGRAM)[0][::4]
        with socket.socket(kind, socket.SOCK_DGRAM) as way:
            way.connect(address)  # sends nothing
            found.append(str(way.getsockname()[0]))
            if found[-1] == address[0] or found[-1].startswith("127."):
                found.append(str(address[0]))  # the store is on this machine
    return list(dict.fromkeys(found))
