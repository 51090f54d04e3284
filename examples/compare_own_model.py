"""Your own model and data, three methods, one table and one plot."""

import torch
from torch.nn import functional as F

import prlc

inputs = torch.randn(2_000, 20, generator=torch.Generator().manual_seed(0))
targets = (inputs[:, :4].sum(1) + inputs[:, 4] * inputs[:, 5] > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))

comparison = prlc.compare(
    model,
    F.cross_entropy,
    data=((inputs[:1_600], targets[:1_600]), (inputs[1_600:], targets[1_600:])),
    methods=[prlc.NSGD(), prlc.PR(pull_ratio=0.1), prlc.PRLC(pull_ratio=0.1)],
    workers=10,
    epochs=20,
    lr=0.2,
)
print(comparison.table.to_string(index=False))
comparison.plot("comparison.png", title="A model of my own")
