"""A method of your own; on the command line -m examples/own_method.py:OwnMethod:setting=2."""

from dataclasses import dataclass, field

from torch import Tensor
from torch.nn import functional as F

import prlc
from prlc.methods import Context, Pulled, Share, State


# Between pulls, a share of the own update, and for the rest the step that everybody took before.
class Trend(Share):
    def init(self, start: Tensor, *_: object) -> State:  # start: (workers, parameters)
        return {"last": start.clone(), "step": start * 0}

    def move(self, state: State, update: Tensor, *_: object) -> Tensor:
        return self.gain * update + (1 - self.gain) * state["step"]

    def use(self, state: State, pulled: Pulled, context: Context) -> tuple[State, Tensor]:
        step = (pulled.model - state["last"]) / context.interval  # steps between two pulls
        fresh = {"last": pulled.model.clone(), "step": step}
        return fresh, self.ahead(state, pulled)


@dataclass(frozen=True)
class OwnMethod(prlc.PR):
    setting: float = 1.0  # what everybody's step counts where the own update counts 1
    meanwhile: prlc.Compensation = field(default_factory=Trend, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "meanwhile", Trend(1 / (1 + self.setting)))
        super().__post_init__()


if __name__ == "__main__":
    data, model = prlc.data.load("digits"), prlc.models.build("mlp", (1, 8, 8), 10, seed=0)
    methods = [prlc.NSGD(), prlc.PRLC(0.1), OwnMethod(0.1, setting=2)]
    print(prlc.compare(model, F.cross_entropy, data, methods=methods).table.to_string())
