"""What engines know of a method.

Every method is a frozen dataclass of settings with pure functions, and belongs to one of three
families, which differ in when it is known who communicates:

Scheduled     in advance: a pure function of (seed, worker, step)       a choice of parts
Lazy          online: a trigger decides what is worth a message         LAG, LAQ, CMFL
Asynchronous  on arrival: a worker communicates when it is done         ASGD, SSP

Steps count from 0. In a step a worker computes an update at its own model and may push it, the
server adds the mean, and the worker may pull the result.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from prlc import text
from prlc.encodings import Down, Encoding, Plain, parse_down, parse_encoding
from prlc.methods.check import check
from prlc.methods.compensation import Compensation, Context, Hold, parse_compensation
from prlc.methods.triggers import Trigger

Mask = NDArray[np.bool_]


class Method(ABC):
    """A way for P workers and a server to train one model."""

    #: Its name on the command line: a key of `prlc.methods.METHODS`.
    name: ClassVar[str] = ""
    #: What it does, in one line.
    summary: ClassVar[str] = ""
    #: Where it was published.
    paper: ClassVar[str] = ""
    #: The server's optimizer where the user names none.
    server: ClassVar[str] = "add"
    #: Whether it is what to take without a reason for another; one method is.
    recommended: ClassVar[bool] = False

    @property
    @abstractmethod
    def label(self) -> str:
        """Its name in tables and plots, with the settings that matter."""

    def __str__(self) -> str:
        """The text that `prlc.methods.parse_method` reads back."""
        return text.write(self, ":")

    def options(self) -> dict[str, Any]:
        """Its settings by name, in the order in which the constructor takes them."""
        return {name: getattr(self, name) for name in text.setting_names(type(self))}

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their defaults."""
        usual = type(self)().options()
        return {key: value for key, value in self.options().items() if value != usual[key]}

    @property
    def trivial(self) -> bool:
        """Whether messages are the numbers of a model, plainly: engines have a shortcut."""
        return True

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        """What encodes its messages, if it is not trivial."""
        return ()

    @abstractmethod
    def columns(self) -> dict[str, str]:
        """Its row in the table of methods, by column."""


@dataclass(frozen=True)
class Scheduled(Method):
    """Any choice of parts. A preset is a subclass with other defaults.

    A `sample` of the workers takes part in each round of `every` steps, and pushes at its end,
    encoded by `up`; `weights` says how much each counts in the mean. A worker pulls at a
    `pull_ratio` of the push steps, chosen by `schedule`: one of `blocks` parts of the model in
    turn, encoded by `down` and used `delay` steps later. `meanwhile` is what it does in between.
    With `push_blocks=turn` every block has push steps of its own, spread over the round. A push
    `sends` the updates not sent yet, or the displacement from the last model pulled.
    """

    _: dataclasses.KW_ONLY
    pull_ratio: float = 1.0
    every: int = 1
    schedule: str = "coins"
    delay: int = 0
    blocks: int = 1
    sample: float = 1.0
    weights: str = "equal"
    up: Encoding = field(default_factory=Plain)
    down: Down = field(default_factory=Down)
    meanwhile: Compensation = field(default_factory=Hold)
    push_blocks: str = "all"
    sends: str = "updates"

    title: ClassVar[str] = ""
    """The name in labels; empty: the name of the class."""

    def __post_init__(self) -> None:
        for name, parse in (
            ("up", parse_encoding),
            ("down", parse_down),
            ("meanwhile", parse_compensation),
        ):
            object.__setattr__(self, name, parse(getattr(self, name)))
        check(self)

    @property
    def label(self) -> str:
        words = [vars(type(self)).get("title") or type(self).__name__]
        words += [
            _LABELS[key](value) if key in _LABELS else f"{key}={text.write_value(value)}"
            for key, value in self._labelled().items()
        ]
        return ", ".join([" ".join(words[:2]), *words[2:]])

    def _labelled(self) -> dict[str, Any]:
        return self.changed()

    @cached_property
    def trivial(self) -> bool:
        """Whether nothing is encoded, delayed, sampled or remembered: engines have a shortcut."""
        return (
            self.delay == 0
            and self.blocks == 1
            and self.sample == 1.0
            and self.weights == "equal"
            and isinstance(self.up, Plain)
            and self.down.plain
            and self.gain is not None
            and self.gain <= 1.0
            and self.sends == "updates"
        )

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        return (self.up, self.down.encoding)

    @cached_property
    def gain(self) -> float | None:
        """The share of its own update that a worker applies; None if it is not constant."""
        kind = type(self.meanwhile)
        plain = all(getattr(kind, name) is getattr(Compensation, name) for name in _MORE_THAN_SHARE)
        share = self.meanwhile.share({}) if plain else None
        return float(share) if isinstance(share, float | int) else None

    @property
    def interval(self) -> float:
        """The mean number of steps between a worker's pulls of the same block."""
        return self.every * (1 if self.in_turn else self.blocks) / self.pull_ratio

    @property
    def in_turn(self) -> bool:
        """Whether blocks are pushed in turn, each at steps of its own."""
        return self.push_blocks == "turn" and self.blocks > 1

    @property
    def all_pull(self) -> bool:
        """Whether everybody pulls at every push step."""
        return self.pull_ratio == 1.0 and self.sample == 1.0

    @property
    def shares_known(self) -> bool:
        """Whether all workers share one remembered model, if pulls carry differences."""
        if self.down.state != "auto":
            return self.down.state == "shared"
        return self.pull_ratio == 1.0 or self.schedule == "aligned"

    def context(self, num_workers: int) -> Context:
        return Context(num_workers, self.every, self.interval)

    def columns(self) -> dict[str, str]:
        part = "all" if self.sample == 1.0 else f"{self.sample:g} of all each round"
        pull = {"coins": "coins", "exact": "exactly rP"}.get(self.schedule, self.schedule)
        who = "all" if self.pull_ratio == 1.0 else f"{pull} r={self.pull_ratio:g}"
        what = "" if self.blocks == 1 else f", {self.blocks} blocks in turn"
        late = f", {self.delay} step{'s' if self.delay > 1 else ''} late" if self.delay else ""
        how = "" if self.down.plain else f", {self.down}"
        return {
            "takes_part": part + (", by samples" if self.weights == "samples" else ""),
            "push": ("each step" if self.every == 1 else f"every {self.every} steps")
            + (", blocks in turn" if self.in_turn else ""),
            "message": str(self.up)
            + (" displacement" if self.sends == "displacement" else "")
            + (" + control variate" if self.meanwhile.sends_extra else ""),
            "server": self.server,
            "pull": who + what + late + how,
            "meanwhile": "-" if self.all_pull and self.every == 1 and not self.delay
            else str(self.meanwhile),
        }  # fmt: skip


#: A compensation that overrides one of these does more than apply a constant share.
_MORE_THAN_SHARE = ("init", "correct", "move", "push", "use", "ahead")

#: The settings of every scheduled method.
SETTINGS: dict[str, str] = {
    "pull_ratio": "share of the push steps at which a worker pulls, in (0, 1]",
    "every": "steps between two pushes",
    "schedule": "who pulls: coins, staggered, aligned, exact (always rP workers)",
    "delay": "steps from the start of a pull to its use",
    "blocks": "parts of the model, pulled in turn",
    "sample": "share of the workers that takes part in a round",
    "weights": "how much a worker counts: equal, samples",
    "up": "encoding of pushes",
    "down": "encoding of pulls",
    "meanwhile": "what a worker does between two pulls",
    "push_blocks": "all blocks in every push, or each in its turn: all, turn",
    "sends": "what a push says: updates, displacement (from the last pulled model)",
}


def _spaced(part: object) -> str:
    """A part's text for a label, where commas separate settings; without its file."""
    name, *settings = str(part).split(",")
    return " ".join(settings if name.endswith(".py") else [name, *settings])


_LABELS: dict[str, Callable[[Any], str]] = {
    "pull_ratio": lambda r: f"r={r:g}",
    "every": lambda H: f"every {H}",
    "schedule": str,
    "delay": lambda steps: f"delay {steps}",
    "blocks": lambda count: f"{count} blocks",
    "sample": lambda f: f"sample {f:g}",
    "weights": lambda w: f"by {w}",
    "up": lambda part: f"up {_spaced(part)}",
    "down": lambda part: f"down {_spaced(part)}",
    "meanwhile": _spaced,
    "push_blocks": lambda _: "pushed in turn",
    "sends": str,
}


class Lazy(Method):
    """A trigger decides whose update is worth a message. A gradient is an update per learning rate.

    The server asks for gradients by the trigger (LAG-PS), or else the workers decide and all pull.
    """

    #: Whether the server asks, given the distance of its model from the worker's times L_m.
    asked_by_server: ClassVar[bool] = False
    #: Whether the server adds everybody's last known gradient, or only those pushed in this step.
    reuses: ClassVar[bool] = True
    #: Whether a message is the change of what the server knows of the gradient, encoded by `up`.
    #: The server then keeps but the sum of what it knows.
    innovates: ClassVar[bool] = False
    up: Encoding = Plain()
    #: When workers push, in a few words.
    when: ClassVar[str] = "on a changed gradient"

    @property
    @abstractmethod
    def trigger(self) -> Trigger:
        """What decides."""

    def always_pushes(self, seed: int, step: int, num_workers: int) -> int | None:
        """A worker that pushes at this step whatever the trigger says, or None."""
        del seed, step, num_workers
        return None

    def initial_smoothness(self) -> float:
        """L_m of every worker before the first gradient."""
        return 0.0

    def refine(self, smoothness: Tensor, gradient_sq: Tensor, model_sq: Tensor) -> Tensor:
        """L_m after a gradient changed by `gradient_sq` while the model moved by `model_sq`."""
        del gradient_sq, model_sq
        return smoothness

    @property
    def trivial(self) -> bool:
        return not self.innovates

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        return (self.up,)

    def _settings(self) -> str:
        """The settings that differ from their defaults, for a label: " xi=2"."""
        return "".join(
            f" {key}={value:g}"
            if text.is_number(value)
            else f" {key} {_spaced(text.write_value(value))}"
            for key, value in self.changed().items()
        )

    def columns(self) -> dict[str, str]:
        asked = self.asked_by_server
        return {
            "takes_part": "those asked" if asked else "all",
            "push": "those asked" if asked else self.when,
            "message": str(self.up),
            "server": "add the last known" if self.reuses else "add",
            "pull": "those asked" if asked else "all",
            "meanwhile": "hold" if asked else "-",
        }


class Asynchronous(Method):
    """The server applies each update on arrival; no worker waits for another within a window."""

    #: How many steps a worker may be ahead of the slowest.
    window: float = math.inf

    @abstractmethod
    def share(self, staleness: int, num_workers: int) -> float:
        """The share of an arriving update that the server applies.

        `staleness` counts the updates of others applied since that worker's pull.
        """

    def columns(self) -> dict[str, str]:
        return {
            "takes_part": "all",
            "push": "on arrival",
            "message": "plain",
            "server": "add a share",
            "pull": "on arrival"
            + ("" if self.window == math.inf else f", at most {self.window:g} ahead"),
            "meanwhile": "-",
        }
