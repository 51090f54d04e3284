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
from prlc.engines.distributed.member import Member
from prlc.engines.distributed.node import Node
from prlc.engines.distributed.packing import Vector
from prlc.engines.distributed.updates import OwnModel
from prlc.engines.distributed.wire import Kind, Pending, Tag, Wire

Cause = Callable[[Member, float | None], float | None]


def _nan_loss(member: Member, loss: float | None) -> float | None:
    del member, loss
    return math.nan


def _fill_gradients(member: Member, value: float) -> None:
    for parameter in member.own.model.parameters():
        assert parameter.grad is not None
        parameter.grad.fill_(value)


def _infinite_gradient(member: Member, loss: float | None) -> float | None:
    _fill_gradients(member, math.inf)
    return loss


def _huge_gradient(member: Member, loss: float | None) -> float | None:
    """Finite, and so is its update; but not the sum of several such."""
    _fill_gradients(member, 1.7e308)
    return loss


def _new_shape(member: Member, loss: float | None) -> float | None:
    first = next(member.own.model.parameters())
    first.grad = None
    first.data = torch.ones(3, 3, dtype=first.dtype)
    return loss


def _poison(member: Member, loss: float | None) -> float | None:
    """Spoil the update behind the back of the worker's own check."""
    update = OwnModel.update

    def spoilt(own: OwnModel, into: Vector) -> Kind:
        kind = update(own, into)
        into[0][-1] = math.nan
        patch.stop()
        return kind

    del member
    patch = mock.patch.object(OwnModel, "update", spoilt)
    patch.start()
    return loss


def _slow_payload(member: Member, loss: float | None) -> float | None:
    """From now on updates are late, but the notes of them are not."""
    del member
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


def _raise(member: Member, loss: float | None) -> float | None:
    del member, loss
    raise RuntimeError("a mistake in the script")


def _signal(what: str) -> Cause:
    def send(member: Member, loss: float | None) -> float | None:
        del member
        os.kill(os.getpid(), SIGNALS[what])
        return loss

    return send


SIGNALS = {"stop": signal.SIGSTOP, "die": signal.SIGKILL}
KINDS: dict[str, Cause] = {
    "nan loss": _nan_loss,
    "infinite gradient": _infinite_gradient,
    "huge gradient": _huge_gradient,
    "new shape": _new_shape,
    "poison": _poison,
    "slow payload": _slow_payload,
    "raise": _raise,
    "stop": _signal("stop"),
    "die": _signal("die"),
}


def make(what: str, step: int, worker: int | None = None, keeper: int | None = None) -> None:
    """From now on in this process: trouble at that step, of one worker or of all.

    Or of one rank as keeper of the global model, which can but stop or die.
    """
    cause, take, keep = KINDS[what], Member.step, Node.keep

    def troubled_keeper(node: Node, at: int) -> StepReport | None:
        if node.connection.rank == keeper and at == step:
            os.kill(os.getpid(), SIGNALS[what])
        return keep(node, at)

    def troubled(member: Member, loss: float | None = None) -> bool:
        if worker in (None, member.worker) and member.next_step == step:
            loss = cause(member, loss)
        return take(member, loss)

    if keeper is None:
        mock.patch.object(Member, "step", troubled).start()
    else:
        mock.patch.object(Node, "keep", troubled_keeper).start()
