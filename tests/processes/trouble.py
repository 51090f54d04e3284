"""Things that go wrong in one worker at one step, on purpose."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from unittest import mock

import torch

from prlc.engines.base import StepReport
from prlc.engines.processes.peer import Peer
from prlc.engines.processes.wire import Pending, Tag, Wire
from prlc.engines.processes.worker import Worker
from prlc.engines.roles.local_model import LocalModel
from prlc.engines.roles.notes import Kind
from prlc.engines.roles.packing import Vector

Cause = Callable[[Worker, float | None], float | None]


def _nan_loss(worker: Worker, loss: float | None) -> float | None:
    del worker, loss
    return math.nan


def _fill_gradients(worker: Worker, value: float) -> None:
    for parameter in worker.local.model.parameters():
        assert parameter.grad is not None
        parameter.grad.fill_(value)


def _infinite_gradient(worker: Worker, loss: float | None) -> float | None:
    _fill_gradients(worker, math.inf)
    return loss


def _huge_gradient(worker: Worker, loss: float | None) -> float | None:
    """Finite, and so is its update; but not the sum of several such."""
    _fill_gradients(worker, 1.7e308)
    return loss


def _long_gradient(worker: Worker, loss: float | None) -> float | None:
    """Finite in every way, and far longer than anybody else's."""
    _fill_gradients(worker, 1e30)
    return loss


def _new_type(worker: Worker, loss: float | None) -> float | None:
    first = next(worker.local.model.parameters())
    first.grad = None
    first.data = first.data.float()
    return loss


def _new_shape(worker: Worker, loss: float | None) -> float | None:
    first = next(worker.local.model.parameters())
    first.grad = None
    first.data = torch.ones(3, 3, dtype=first.dtype)
    return loss


def _poison(worker: Worker, loss: float | None) -> float | None:
    """Spoil the update behind the back of the worker's own check."""
    update = LocalModel.update

    def spoilt(local: LocalModel, into: Vector) -> Kind:
        kind = update(local, into)
        into[0][-1] = math.nan
        patch.stop()
        return kind

    del worker
    patch = mock.patch.object(LocalModel, "update", spoilt)
    patch.start()
    return loss


def _slow_payload(worker: Worker, loss: float | None) -> float | None:
    """From now on updates are late, but the notes of them are not."""
    del worker
    send = Wire.send

    def late(wire: Wire, tensors: Vector, peer: int, tag: Tag) -> Pending:
        if tag is not Tag.PUSH:
            return send(wire, tensors, peer, tag)
        timer = threading.Timer(0.25, lambda: send(wire, tensors, peer, tag))
        timer.start()
        return Pending(wire, peer, [_Timed(timer)], tensors)

    mock.patch.object(Wire, "send", late).start()
    return loss


class _Timed:
    """The end of a timer, as something to wait for."""

    def __init__(self, timer: threading.Timer) -> None:
        self._timer = timer

    def wait(self, limit: timedelta) -> None:
        self._timer.join(limit.total_seconds())


def _raise(worker: Worker, loss: float | None) -> float | None:
    del worker, loss
    raise RuntimeError("a mistake in the script")


def _signal(what: str) -> Cause:
    def send(worker: Worker, loss: float | None) -> float | None:
        del worker
        os.kill(os.getpid(), SIGNALS[what])
        return loss

    return send


SIGNALS = {"stop": signal.SIGSTOP, "die": signal.SIGKILL}
KINDS: dict[str, Cause] = {
    "nan loss": _nan_loss,
    "infinite gradient": _infinite_gradient,
    "huge gradient": _huge_gradient,
    "long gradient": _long_gradient,
    "new shape": _new_shape,
    "new type": _new_type,
    "poison": _poison,
    "slow payload": _slow_payload,
    "raise": _raise,
    "stop": _signal("stop"),
    "die": _signal("die"),
}


def make(what: str, step: int, worker: int | None = None, server: int | None = None) -> None:
    """From now on in this process: trouble at that step, for one worker or for all.

    Or for the server on one rank, which can only stop or die.
    """
    cause, take, serve = KINDS[what], Worker.step, Peer.serve

    def troubled_server(peer: Peer, at: int) -> StepReport | None:
        if peer.connection.rank == server and at == step:
            os.kill(os.getpid(), SIGNALS[what])
        return serve(peer, at)

    def troubled_worker(own: Worker, loss: float | None = None) -> bool:
        if worker in (None, own.number) and own.next_step == step:
            loss = cause(own, loss)
        return take(own, loss)

    if server is None:
        mock.patch.object(Worker, "step", troubled_worker).start()
    else:
        mock.patch.object(Peer, "serve", troubled_server).start()
