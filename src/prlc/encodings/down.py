"""The way down: what a pull carries.

plain        the model itself
difference   C(x - known), where `known` is the decoded model that the worker holds; both sides add
             the same decoded values, so later messages make up for errors (EF21-P)
mean         C(the round's mean update), to which everybody applies the server's rule; only if
             everybody pulls every round
gather       all messages of the round, the cost of an all-gather; only if everybody pulls
             every round
update       the round's mean update itself, for a compensation that makes its own model from it
"""

from __future__ import annotations

from dataclasses import dataclass, field

from prlc.encodings.base import Encoding, Plain
from prlc.errors import ConfigError

WHATS = ("difference", "mean", "gather", "update")
_BARE = ("gather", "update")  # carry nothing that an encoding of pulls could change
STATES = ("auto", "shared", "own")


@dataclass(frozen=True)
class Down:
    """An encoding of pulls.

    `state` of differences: `shared` makes each message once for all who pull; a worker that missed
    some gets those too, or the plain model if that is shorter. `own` remembers what each worker
    knows (P models). `auto` is shared if all workers pull together.
    """

    encoding: Encoding = field(default_factory=Plain)
    what: str = "difference"
    state: str = "auto"

    def __post_init__(self) -> None:
        for name, value, known in (("what", self.what, WHATS), ("state", self.state, STATES)):
            if value not in known:
                raise ConfigError(
                    f"On the way down, {name} must be one of {', '.join(known)} but is {value!r}."
                )

        if self.what in _BARE and not self.encoding.exact:
            raise ConfigError(
                f"down={self.what} sends what arrived as it is: leave out {self.encoding}."
            )

    @property
    def plain(self) -> bool:
        """Whether a pull carries the model itself."""
        return self.what == "difference" and self.encoding.exact

    @property
    def raw(self) -> bool:
        """Whether a pull carries numbers as they are: a model, or a mean update."""
        return self.plain or self.what == "update"

    @property
    def follows(self) -> bool:
        """Whether workers take the server's step themselves."""
        return self.what in ("mean", "gather")

    def __str__(self) -> str:
        if self.what in _BARE:
            return self.what
        words = [str(self.encoding)]
        words += [f"what={self.what}"] if self.what != "difference" else []
        words += [f"state={self.state}"] if self.state != "auto" else []
        return ",".join(words)


def parse_down(value: Down | Encoding | str) -> Down:
    """Read from text: `int8`, `topk,0.01,state=own`, `int4,what=mean`, `gather`, `update`."""
    from prlc.encodings import parse_encoding  # which names this module's neighbours

    if isinstance(value, Down):
        return value
    if isinstance(value, Encoding):
        return Down(value)
    if value in _BARE:
        return Down(what=str(value))
    if not isinstance(value, str):
        raise ConfigError(f"An encoding is written as text, such as topk,0.01; got {value!r}.")
    words = value.split(",")
    own = [word for word in words if word.partition("=")[0] in ("what", "state")]
    encoding = parse_encoding(",".join(word for word in words if word not in own))
    given = {key: each for key, _, each in (word.partition("=") for word in own)}
    return Down(encoding, **given)
