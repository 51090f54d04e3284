"""A rank reads its pushes to itself where they are: nobody may write to one until it is read."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from torch import nn

from prlc.engines.job import travelling
from prlc.engines.processes import Layout, RunSettings
from prlc.engines.processes import server as servers
from prlc.engines.processes.asynchronous import AsynchronousServer, AsynchronousWorker
from prlc.engines.processes.lazy import DecidingWorker, LazyServer
from prlc.engines.processes.scheduled import ScheduledServer, ScheduledWorker
from prlc.engines.processes.server import Inbox, Server
from prlc.engines.processes.wire import Pending, Tag, Wire
from prlc.engines.processes.worker import Worker
from prlc.engines.roles.local_model import ScriptModel
from prlc.engines.roles.notes import Kind, Note
from prlc.engines.roles.packing import Packing, Vector
from prlc.engines.roles.selection import Models, Selection
from prlc.errors import PeerError
from prlc.methods import Asynchronous, Lazy, parse_method

STEPS = 12
METHODS = [
    "nsgd",
    "prlc:0.3",
    "local-sgd:3",
    "prlc:0.3:every=2:delay=2",
    "prlc:0.3:blocks=2",
    "prlc:0.3:up=topk,0.5",
    "demo",
    "asgd",
    "ssp:1",
    "lag-wk",
]


class SlowReader(Inbox):
    """Takes its time to read pushes, then looks whether they are what they were."""

    looked = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._seen: list[tuple[Vector, Vector]] = []

    def update(self, worker: int, what: str) -> Vector:
        found = super().update(worker, what)
        self._seen.append((found, [tensor.clone() for tensor in found]))
        return found

    def done(self) -> None:
        time.sleep(0.01)
        for now, before in self._seen:
            assert all(map(torch.equal, now, before)), "somebody wrote to a push"
            self.looked += 1
        self._seen.clear()
        super().done()


def alone(text: str) -> tuple[nn.Module, torch.optim.Optimizer, Worker, Server]:
    """The worker and the server of a rank that has no others."""
    method, wire = parse_method(text), Wire(0, 5.0, ["rank 0"], {}, None)
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    models = Models([model], [optimizer])
    chosen = Selection(models.models, models.trained())
    packing, settings = Packing(chosen, method=method), RunSettings(method, 1, steps=STEPS)
    values = packing.zeros()
    packing.pack([tensor.detach() for tensor in travelling(chosen)], values)
    shard = packing.shard(values, 0)
    local = ScriptModel(chosen, models, packing, method=method)
    served = (settings, wire, [0], shard, packing, 0, lambda: None)
    working = (local, settings, Layout("sharded", 1), wire, packing)
    if isinstance(method, Asynchronous):
        server: Server = AsynchronousServer(*served, asks_for_saves=False)
        return model, optimizer, AsynchronousWorker(*working), server
    if isinstance(method, Lazy):
        server = LazyServer(*served, sum_over_shards=lambda _: None)
        return model, optimizer, DecidingWorker(*working), server
    return model, optimizer, ScheduledWorker(*working), ScheduledServer(*served)


@pytest.mark.parametrize("text", METHODS)
def test_a_push_stays_as_it_is_while_it_is_read(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "Inbox", SlowReader)
    model, optimizer, worker, server = alone(text)
    failed: list[BaseException] = []

    def serve() -> None:
        try:
            server.begin(0)
            for step in range(STEPS):
                server.step(step)
            server.drain()
            server.send_final_model()
        except BaseException as error:
            failed.append(error)

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    goes_on = worker.begin()
    while goes_on and not failed:
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        worker.prepare()
        optimizer.step()
        goes_on = worker.stepped()
    if not failed:
        worker.finish()
    serving.join(10.0)
    assert not failed
    assert isinstance(server._inbox, SlowReader)
    assert server._inbox.looked > 1


def test_who_lends_waits_until_it_is_given_back() -> None:
    wire, push = Wire(0, 5.0, ["rank 0"], {}, None), torch.ones(3)
    reading, sending = wire.borrow(Tag.PUSH), wire.send([push], 0, Tag.PUSH)
    reading.wait("a push")
    assert reading.buffers[0] is push
    with pytest.raises(PeerError):
        sending.wait("that it is read", 0.05)
    reading.give_back()
    sending.wait("that it is read", 0.05)


def test_an_update_that_was_not_sent_keeps_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(0, 5.0, ["rank 0", "rank 1"], {}, None)

    def receive(tensors: Vector, rank: int, tag: Tag) -> Pending:
        if tag is Tag.PUSH_NOTE:
            tensors[0].copy_(Note(Kind.NOTHING, 0).tensor())
        return Pending(wire, rank, [], tensors)

    monkeypatch.setattr(wire, "receive", receive)
    inbox = Inbox(wire, [1], lambda: [torch.zeros(3)], 2)
    for _ in range(3):
        while inbox.has_room(0):
            inbox.expect(0)
        for _ in range(2):
            inbox.note(0, "a note")
    inbox.expect(0)
    first, second = inbox.update(0, "an update"), inbox.update(0, "an update")
    assert first[0] is not second[0]
    inbox.done()
