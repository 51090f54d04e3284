"""Published methods that are a choice of parts: each names what it changes.

Defaults are the paper's where it gives them; `prlc methods` prints them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from prlc.encodings import Down, Encoding, TopK, parse_encoding
from prlc.methods.base import Scheduled
from prlc.methods.compensation import (
    Ahead,
    Compensation,
    ControlVariates,
    Eager,
    Hold,
    Mix,
    Own,
    Proximal,
)

# -- the paper ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class NSGD(Scheduled):
    """Synchronous SGD, the paper's "naive SGD": everybody pushes and pulls at every step."""

    summary: ClassVar[str] = "synchronous SGD: all push and pull at every step"
    paper: ClassVar[str] = "the baseline of Wang et al. 2020, arXiv:2001.08277"
    name: ClassVar[str] = "nsgd"


@dataclass(frozen=True)
class PR(Scheduled):
    """Pulling reduction, Algorithm 2: a worker pulls with probability r, otherwise holds still."""

    pull_ratio: float = 0.1
    every: int = 1

    summary: ClassVar[str] = "pull with probability r, else hold still"
    paper: ClassVar[str] = "Wang et al. 2020, arXiv:2001.08277, Algorithm 2"
    name: ClassVar[str] = "pr"

    def _labelled(self) -> dict[str, Any]:
        return {"pull_ratio": self.pull_ratio, **self.changed()}


@dataclass(frozen=True)
class PRLC(PR):
    """Pulling reduction with local compensation, Algorithm 1: otherwise adds its own update."""

    meanwhile: Compensation = field(default_factory=Own, kw_only=True)  # line 5, second case

    summary: ClassVar[str] = "pull with probability r, else add the own update"
    paper: ClassVar[str] = "Wang et al. 2020, arXiv:2001.08277, Algorithm 1"
    name: ClassVar[str] = "prlc"


# -- rare messages ------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalSGD(Scheduled):
    """Every worker takes `every` steps of its own, then all push their sums and pull (FedAvg)."""

    every: int = 10
    meanwhile: Compensation = field(default_factory=Own, kw_only=True)

    summary: ClassVar[str] = "H local steps, then all push the sum and pull"
    paper: ClassVar[str] = "McMahan et al. 2017, arXiv:1602.05629; Stich 2019, arXiv:1805.09767"
    name: ClassVar[str] = "local-sgd"
    title: ClassVar[str] = "Local SGD"

    def _labelled(self) -> dict[str, Any]:
        return {"H": self.every} | {k: v for k, v in self.changed().items() if k != "every"}


@dataclass(frozen=True)
class FedProx(LocalSGD):
    """Local SGD whose steps are drawn back to the last global model, by `mu`."""

    mu: float = 0.01
    meanwhile: Compensation = field(default_factory=Proximal, kw_only=True, init=False, repr=False)

    summary: ClassVar[str] = "H local steps of a loss with mu/2 |x - anchor|^2 added"
    paper: ClassVar[str] = "Li et al. 2020, arXiv:1812.06127"
    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx"

    def __post_init__(self) -> None:
        object.__setattr__(self, "meanwhile", Proximal(self.mu))
        super().__post_init__()


@dataclass(frozen=True)
class SCAFFOLD(LocalSGD):
    """Local SGD whose steps are corrected by control variates, for data that differ.

    `option`: a worker's control variate is its first gradient of the round (1), or its mean
    gradient over the round (2).
    """

    option: int = 2
    meanwhile: Compensation = field(
        default_factory=ControlVariates, kw_only=True, init=False, repr=False
    )

    summary: ClassVar[str] = "H local steps, corrected by control variates that ride along"
    paper: ClassVar[str] = "Karimireddy et al. 2020, arXiv:1910.06378"
    name: ClassVar[str] = "scaffold"

    def __post_init__(self) -> None:
        object.__setattr__(self, "meanwhile", ControlVariates(self.option))
        super().__post_init__()


@dataclass(frozen=True)
class CoCoDSGD(LocalSGD):
    """Local SGD that averages while the next `every` steps run, and adds them to the average."""

    delay: int = field(default=-1, kw_only=True)

    summary: ClassVar[str] = "H local steps while the last average travels, then both together"
    paper: ClassVar[str] = "Shen et al. 2019, arXiv:1906.12043"
    name: ClassVar[str] = "cocod-sgd"
    title: ClassVar[str] = "CoCoD-SGD"

    def __post_init__(self) -> None:
        if self.delay == -1:  # as long as a round
            object.__setattr__(self, "delay", self.every)
        super().__post_init__()

    def changed(self) -> dict[str, Any]:
        changed = {k: v for k, v in super().changed().items() if k != "delay"}
        return changed if self.delay == self.every else changed | {"delay": self.delay}


@dataclass(frozen=True)
class PipeSGD(Scheduled):
    """Synchronous SGD on models that are one step old, so nobody waits for them."""

    delay: int = field(default=1, kw_only=True)
    meanwhile: Compensation = field(default_factory=Hold, kw_only=True)

    summary: ClassVar[str] = "synchronous SGD on models that are one step old"
    paper: ClassVar[str] = "Li et al. 2018, arXiv:1811.03619"
    name: ClassVar[str] = "pipe-sgd"
    title: ClassVar[str] = "Pipe-SGD"


@dataclass(frozen=True)
class DiLoCo(LocalSGD):
    """Local SGD whose server takes a Nesterov step along the mean displacement."""

    summary: ClassVar[str] = "H local steps, then a Nesterov step on the server"
    paper: ClassVar[str] = "Douillard et al. 2023, arXiv:2311.08105"
    name: ClassVar[str] = "diloco"
    title: ClassVar[str] = "DiLoCo"
    server: ClassVar[str] = "nesterov"


@dataclass(frozen=True)
class SparseLoCo(LocalSGD):
    """Local SGD that sends the largest part of its displacement in 2 bits, with error feedback."""

    every: int = 15
    up: Encoding = field(
        default_factory=lambda: parse_encoding("topk,0.0156,bits=2,decay=0.95"), kw_only=True
    )
    down: Down = field(default_factory=lambda: Down(what="gather"), kw_only=True)

    summary: ClassVar[str] = "H local steps, then top-k in 2 bits with error feedback"
    paper: ClassVar[str] = "Sarfi et al. 2025, arXiv:2508.15706"
    name: ClassVar[str] = "sparseloco"
    title: ClassVar[str] = "SparseLoCo"


@dataclass(frozen=True)
class StreamingDiLoCo(DiLoCo):
    """DiLoCo by fragments: each is exchanged at steps of its own, in 4 bits, and mixed in late."""

    blocks: int = field(default=2, kw_only=True)
    delay: int = field(default=2, kw_only=True)
    up: Encoding = field(default_factory=lambda: parse_encoding("int4"), kw_only=True)
    meanwhile: Compensation = field(default_factory=Mix, kw_only=True)
    push_blocks: str = field(default="turn", kw_only=True)
    sends: str = field(default="displacement", kw_only=True)

    summary: ClassVar[str] = "DiLoCo, fragment by fragment, in 4 bits, mixed in late"
    paper: ClassVar[str] = "Douillard et al. 2025, arXiv:2501.18512"
    name: ClassVar[str] = "streaming-diloco"
    title: ClassVar[str] = "Streaming DiLoCo"


@dataclass(frozen=True)
class EagerDiLoCo(CoCoDSGD):
    """DiLoCo that never waits: own displacements count at once, the others' a round later."""

    down: Down = field(default_factory=lambda: Down(what="update"), kw_only=True)
    meanwhile: Compensation = field(default_factory=Eager, kw_only=True)

    summary: ClassVar[str] = "DiLoCo on the own displacement and the others' last"
    paper: ClassVar[str] = "Kale et al. 2025, arXiv:2502.12996"
    name: ClassVar[str] = "eager-diloco"
    title: ClassVar[str] = "Eager DiLoCo"
    server: ClassVar[str] = "nesterov,lr=0.4"  # as each worker's own outer step


# -- small messages -----------------------------------------------------------------------------


@dataclass(frozen=True)
class QSGD(Scheduled):
    """Synchronous SGD with updates rounded at random to a few levels of their norm."""

    up: Encoding = field(default_factory=lambda: parse_encoding("int8,l2,chunk=512"), kw_only=True)
    down: Down = field(default_factory=lambda: Down(what="gather"), kw_only=True)

    summary: ClassVar[str] = "synchronous SGD, updates in 8 bits, gathered"
    paper: ClassVar[str] = "Alistarh et al. 2017, arXiv:1610.02132"
    name: ClassVar[str] = "qsgd"


@dataclass(frozen=True)
class TernGrad(Scheduled):
    """Synchronous SGD with ternary updates: up, down or nothing."""

    up: Encoding = field(default_factory=lambda: parse_encoding("ternary"), kw_only=True)
    down: Down = field(default_factory=lambda: Down(what="gather"), kw_only=True)

    summary: ClassVar[str] = "synchronous SGD, updates in 2 bits, gathered"
    paper: ClassVar[str] = "Wen et al. 2017, arXiv:1705.07878"
    name: ClassVar[str] = "terngrad"


@dataclass(frozen=True)
class TopKSGD(Scheduled):
    """Synchronous SGD that sends the largest 1% of every update, with error feedback."""

    up: Encoding = field(default_factory=lambda: parse_encoding("topk,0.01,bits=32"), kw_only=True)
    down: Down = field(default_factory=lambda: Down(what="gather"), kw_only=True)

    summary: ClassVar[str] = "synchronous SGD, the largest 1% with error feedback, gathered"
    paper: ClassVar[str] = "Aji & Heafield 2017, arXiv:1704.05021; Stich et al. 2018"
    name: ClassVar[str] = "topk"
    title: ClassVar[str] = "top-k"


@dataclass(frozen=True)
class EF21P(Scheduled):
    """Synchronous SGD whose pulls carry the largest part of what changed since the last."""

    down: Down = field(default_factory=lambda: Down(TopK(share=0.01, bits=32)), kw_only=True)

    summary: ClassVar[str] = "synchronous SGD, pulls carry the largest 1% of the difference"
    paper: ClassVar[str] = "Gruntkowska et al. 2023, arXiv:2209.15218"
    name: ClassVar[str] = "ef21-p"
    title: ClassVar[str] = "EF21-P"


@dataclass(frozen=True)
class STC(Scheduled):
    """Sparse ternary messages both ways: the largest `share`, as signs of its mean magnitude.

    `bits`: of a value; 32 sends values as they are. `chunk`: how many numbers are ranked together.
    """

    share: float = 0.01
    bits: int = field(default=1, kw_only=True)
    chunk: int = field(default=4096, kw_only=True)
    up: Encoding = field(default_factory=TopK, kw_only=True, init=False, repr=False)
    down: Down = field(default_factory=Down, kw_only=True, init=False, repr=False)

    summary: ClassVar[str] = "synchronous SGD, sparse ternary messages both ways"
    paper: ClassVar[str] = "Sattler et al. 2019, arXiv:1903.02891"
    name: ClassVar[str] = "stc"

    def __post_init__(self) -> None:
        encoding = TopK(self.share, self.bits, self.chunk)
        object.__setattr__(self, "up", encoding)
        object.__setattr__(self, "down", Down(encoding))
        super().__post_init__()


@dataclass(frozen=True)
class DeMo(Scheduled):
    """Decoupled momentum: sends its fastest components; the server steps by the sign of the sum.

    What is not sent stays behind and fades by `decay`, which is the momentum. `transform`: rank
    the components of each chunk's cosine transform rather than the numbers themselves.
    """

    share: float = 1 / 128
    decay: float = field(default=0.999, kw_only=True)
    transform: bool = field(default=True, kw_only=True)
    bits: int = field(default=32, kw_only=True)
    chunk: int = field(default=4096, kw_only=True)
    up: Encoding = field(default_factory=TopK, kw_only=True, init=False, repr=False)
    down: Down = field(default_factory=lambda: Down(what="gather"), kw_only=True)

    summary: ClassVar[str] = "top-k of a fading momentum, then a step by the sign of the sum"
    paper: ClassVar[str] = "Peng et al. 2024, arXiv:2411.19870"
    name: ClassVar[str] = "demo"
    server: ClassVar[str] = "sign"

    def __post_init__(self) -> None:
        encoding = TopK(
            self.share, self.bits, self.chunk, decay=self.decay, transform=self.transform
        )
        object.__setattr__(self, "up", encoding)
        super().__post_init__()


# -- recommended --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Whisper(LocalSGD):
    """Few and tiny messages both ways; a worker goes ahead by its share of what it has not said.

    Error feedback, at the workers and in the model that all workers know, makes up later for what a
    message left out. docs/beyond.md derives the parts and tells when they fail.
    """

    every: int = 5
    up: Encoding = field(default_factory=lambda: TopK(share=0.025, bits=1), kw_only=True)
    down: Down = field(default_factory=lambda: Down(TopK(share=0.025, bits=1)), kw_only=True)
    meanwhile: Compensation = field(default_factory=Ahead, kw_only=True)

    summary: ClassVar[str] = (
        "H steps, then the largest 2.5% both ways; meanwhile, what is certain of the rest"
    )
    paper: ClassVar[str] = "this project"
    name: ClassVar[str] = "whisper"
    title: ClassVar[str] = "Whisper"
    recommended: ClassVar[bool] = True
