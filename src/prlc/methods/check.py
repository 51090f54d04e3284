"""Which parts go together. Nothing else refuses a choice of parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prlc.errors import ConfigError
from prlc.methods.settings import check_choice, check_ratio, check_steps
from prlc.text import is_number

if TYPE_CHECKING:
    from prlc.encodings import Encoding
    from prlc.methods.base import Method, Scheduled

SCHEDULES = ("coins", "staggered", "aligned", "exact")
WEIGHTS = ("equal", "samples")
PLACES = ("workers", "server")
PUSH_BLOCKS = ("all", "turn")
SENDS = ("updates", "displacement")


def check(m: Scheduled) -> None:
    """Refuse invalid settings and parts that do not go together."""
    check_ratio(m.pull_ratio)
    check_steps("every", m.every)
    check_steps("delay", m.delay, least=0)
    check_choice("schedule", m.schedule, SCHEDULES)
    check_choice("weights", m.weights, WEIGHTS)
    check_choice("push_blocks", m.push_blocks, PUSH_BLOCKS)
    check_choice("sends", m.sends, SENDS)
    if type(m.blocks) is not int or m.blocks < 1:
        raise ConfigError(f"`blocks` must be a whole number, at least 1, but is {m.blocks!r}.")
    if not (is_number(m.sample) and 0 < m.sample <= 1):
        raise ConfigError(
            f"The sample must be a share of the workers in (0, 1] but is {m.sample!r}."
        )
    _check_turns(m)
    _check_delay(m)
    _check_sample(m)
    _check_down(m)
    _check_meanwhile(m)
    if m.up.error_feedback is not None and m.up.exact:
        raise ConfigError(f"{m.up} loses nothing, so there is no error to feed back: leave out ef.")


def _check_delay(m: Scheduled) -> None:
    interval = m.every // m.blocks if m.in_turn else m.every * round(1 / m.pull_ratio)
    periodic = m.pull_ratio == 1.0 or m.schedule in ("staggered", "aligned")
    if periodic and m.delay > interval:
        raise ConfigError(
            f"A pull must be used before the next one begins, but the delay is {m.delay} steps and "
            f"a worker pulls every {interval}: take at most that, or raise `every`."
        )


def _check_turns(m: Scheduled) -> None:
    if m.sends == "displacement" and (m.pull_ratio != 1.0 or m.gain == 0.0):
        raise ConfigError(
            "A displacement from the last pulled model is what a worker has not sent yet only if "
            "it moves, and pulls whenever it pushes: leave out sends=displacement, or pull at "
            "every push and do not hold still."
        )
    if not m.in_turn:
        return
    if m.blocks > m.every:
        raise ConfigError(
            f"{m.blocks} blocks that are pushed in turn need a round of at least as many steps, "
            f"but every={m.every}: take fewer blocks or longer rounds."
        )
    if m.pull_ratio != 1.0 or m.meanwhile.acts_at_push:
        other = f"`{m.meanwhile}`" if m.pull_ratio == 1.0 else f"a pull ratio of {m.pull_ratio:g}"
        raise ConfigError(
            "Blocks that are pushed in turn are pulled in the same turn by everybody, which does "
            f"not go with {other}: leave out one of them."
        )


def _check_sample(m: Scheduled) -> None:
    if m.sample == 1.0:
        return
    for name, value, usual in (("delay", m.delay, 0), ("blocks", m.blocks, 1)):
        if value != usual:
            raise ConfigError(
                f"A sample of the workers pulls the whole model at the end of a round, so {name}="
                f"{value} does not go with it: leave out {name} or the sample."
            )
    if m.pull_ratio != 1.0:
        raise ConfigError(
            "The next sample of workers pulls at the end of every round, so a pull ratio of "
            f"{m.pull_ratio:g} does not go with sample={m.sample:g}: leave out one of them."
        )
    if m.meanwhile.needs_window or m.meanwhile.needs_hints:
        raise ConfigError(
            f"`{m.meanwhile}` learns from a worker's consecutive pulls, which a sample does not "
            "give it: take hold, own or share, or leave out the sample."
        )
    if m.meanwhile.needs_residual:
        raise ConfigError(
            f"`{m.meanwhile}` counts on the mean of all workers, which a sample is not: take hold, "
            "own or share, or leave out the sample."
        )


def _check_down(m: Scheduled) -> None:
    down = m.down
    # Differences to what the worker knows are their own error feedback (EF21-P).
    if down.what == "difference" and down.encoding.error_feedback not in (None, 1.0):
        raise ConfigError(
            "A difference on the way down already carries everything left over, so it takes no "
            "decay: leave out decay."
        )
    if down.state != "auto" and (down.plain or down.what != "difference"):
        raise ConfigError(
            f"Only encoded differences have a state, so state={down.state} does not go with "
            f"down={down.encoding if down.plain else down.what}: leave it out."
        )
    if down.follows and not (m.all_pull and m.delay == 0 and m.blocks == 1):
        raise ConfigError(
            f"down={down} sends what arrived in a round, which is enough only if everybody pulls "
            "the whole model in every round without a delay. Take a difference instead, such as "
            "down=int8."
        )


def _check_meanwhile(m: Scheduled) -> None:
    part = m.meanwhile
    if part.pulls_update != (m.down.what == "update"):
        raise ConfigError(
            f"`{part}` makes its model from the mean update of a round, so it needs down=update."
            if part.pulls_update
            else f"down=update brings no model, which `{part}` needs: leave it out, or take "
            "meanwhile=eager."
        )
    if part.pulls_update and not (
        m.all_pull and m.delay == m.every and m.blocks == 1 and m.up.exact and m.sends == "updates"
    ):
        raise ConfigError(
            f"`{part}` counts the others' updates one round late: everybody must push plain "
            "updates and pull every round, with a delay of one round "
            f"(every={m.every}:delay={m.every})."
        )
    if part.sends_extra and not (m.pull_ratio == 1.0 and m.delay == 0 and m.blocks == 1):
        raise ConfigError(
            f"`{part}` exchanges its control variates at the end of every round: it needs a pull "
            "ratio of 1, no delay and one block."
        )
    if part.needs_residual and m.up.error_feedback is None:
        raise ConfigError(
            f"`{part}` counts what messages have left out, so they need an encoding with error "
            f"feedback, such as up=topk,0.01; got up={m.up}."
        )
    if part.needs_residual and m.sends == "displacement":
        raise ConfigError(
            f"`{part}` puts what messages have left out into the model, so a displacement would "
            "send it twice: leave out sends=displacement, or take meanwhile=snr."
        )


def check_optimizer(method: Method, *, plain_sgd: bool) -> None:
    """Refuse workers' optimizers that a method cannot use. `plain_sgd`: updates are -lr g."""
    part = getattr(method, "meanwhile", None)
    if part is not None and part.needs_sgd and not plain_sgd:
        raise ConfigError(
            f"{method.label} computes gradients back from updates, which only plain SGD on the "
            "workers allows: take SGD without momentum and weight decay."
        )


def check_optimizer_at(place: object, method: Method, *, server_optimizer: bool) -> None:
    """Refuse an optimizer on the server where a worker's gradient cannot replace a step.

    `server_optimizer`: whether the server also has one for mean updates.
    """
    from prlc.methods.base import Scheduled  # which imports this module

    check_choice("optimizer_at", place, PLACES)
    if place == "workers":
        return
    if not isinstance(method, Scheduled):
        raise ConfigError(
            f"{method.label} decides online who communicates, from the workers' own updates: leave "
            "the optimizer on the workers."
        )
    alike = method.all_pull and method.every == method.blocks == 1 and method.delay == 0
    part = method.meanwhile
    of_updates = part.acts_at_push or part.needs_residual
    if method.in_turn or of_updates or method.sends == "displacement":
        raise ConfigError(
            f"{method.label} is made of the workers' own updates: leave the optimizer on the "
            "workers."
        )
    if not (alike or method.gain == 0.0):
        raise ConfigError(
            f"With the optimizer on the server, a worker of {method.label} has only its gradient "
            "between pulls, which does not predict a step. Pull at every step, hold still between "
            "pulls (meanwhile=hold), or leave the optimizer on the workers."
        )
    if server_optimizer:
        raise ConfigError(
            "Only one optimizer can move the server's model: leave out the server optimizer "
            f"(for {method.label}: server_optimizer=add), or leave the optimizer on the workers."
        )


def check_lazy_encoding(up: Encoding) -> None:
    """Refuse an encoding that a lazy method's changes do not go with."""
    # A change includes what the messages before left out: that is its error feedback.
    if up.error_feedback not in (None, 1.0):
        raise ConfigError(
            "A change of a gradient already carries everything left over, so it takes no decay: "
            "leave out decay."
        )
