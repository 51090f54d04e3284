"""Worker and server as state machines without input or output: messages in, messages out.

Written once for all real transports (`engines/processes`); `memory.py` runs them in one process,
for tests.

packing.py       a model as flat vectors, cut into shards
local_model.py   a worker's model: from gradients to an update
rule.py          what a server does with a mean update
notes.py         the few numbers that go with a message
scheduled.py     scheduled methods: what both sides know, and the calls in order
scheduled_worker.py, scheduled_server.py    the two sides
lazy.py, asynchronous.py                    worker and server of the other families
memory.py        all roles in one process, message by message
"""
