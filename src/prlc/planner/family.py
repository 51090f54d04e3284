"""What a plan chooses from: the one list to add a method to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product
from string import Formatter

from prlc.errors import ConfigError
from prlc.methods import Scheduled, parse_method


@dataclass(frozen=True)
class Line:
    """Methods as `--method` takes them; a name in braces stands for each of its `VALUES`."""

    text: str
    step: float = 1.0
    """The step size around which to search, in multiples of NSGD's best."""


@dataclass(frozen=True)
class Member:
    """What a plan knows of a method."""

    line: str
    """The text of its line."""
    step: float
    """Its line's."""
    neighbours: list[Scheduled] = field(default_factory=list)
    """Those of its line in which one value is the next larger or the next smaller."""
    less: set[Scheduled] = field(default_factory=set)
    """Those of its line that say less: no value is dearer."""


#: What a name in braces stands for, the dearest value first.
VALUES: dict[str, tuple[object, ...]] = {
    "H": (2, 5, 10, 25, 50),
    "h": (1, 2, 5, 10, 20, 40),
    "long": (4, 8, 16, 32, 64),
    "r": (0.5, 0.2, 0.1, 0.05),
    "up": (0.05, 0.025, 0.0125),
    "down": (0.05, 0.025),
    "fading": (
        "up=topk,0.02,bits=1,decay=0.95:down=topk,0.1,bits=1",
        "up=topk,0.02,bits=1,decay=0.95:down=topk,0.05,bits=1",
        "up=topk,0.01,bits=1,decay=0.95:down=topk,0.05,bits=1",
    ),
    "message": ("plain", "int8", "int4", "topk,0.05,bits=4", "topk,0.01,bits=4"),
    "guess": ("ahead-snr", "ahead"),
}

#: Names whose values are in no order: what is next to a method may have any of them.
_UNORDERED = {"guess"}

#: The candidates. Those that do not fit the optimizer or the length of the run are left out.
FAMILY: tuple[Line, ...] = (
    # Few or frequent, but always tiny messages; fading for AdamW, there also H steps late.
    Line("whisper:{h}:up=topk,{up},bits=1:down=topk,{down},bits=1:meanwhile={guess}"),
    Line("whisper:{long}:{fading}:meanwhile=ahead-snr"),
    Line("whisper:{long}:delay={long}:{fading}:meanwhile=ahead-snr"),
    # Every step, small messages.
    Line("nsgd:up={message}:down={message}"),
    Line("pipe-sgd:up={message}:down={message}"),
    # Every H steps; used at once, or H steps late so that nobody waits.
    Line("local-sgd:{H}:up={message}:down={message}"),
    Line("cocod-sgd:{H}:up={message}:down={message}"),
    Line("diloco:{H}"),
    Line("sparseloco:{H}"),
    # Every step, rare pulls: the paper, and a gain that adapts.
    Line("prlc:{r}"),
    Line("prlc:{r}:meanwhile=snr"),
)

#: The step sizes with which each begins, in multiples of its line's; the likeliest first.
STEP_SIZES = (1.0, 0.5, 2.0, 0.25)


def candidates(lines: Iterable[Line | str] = FAMILY) -> dict[Scheduled, Member]:
    """The methods that the lines name."""
    found: dict[Scheduled, Member] = {}
    for line in lines:
        text, step = (line, 1.0) if isinstance(line, str) else (line.text, line.step)
        names = _names(text)
        methods = {
            places: _method(text.format(**_values(names, places)))
            for places in product(*(range(len(VALUES[name])) for name in names))
        }
        for places, method in methods.items():
            member = found.setdefault(method, Member(text, step))
            for at, other in methods.items():
                if _are_neighbours(names, places, at):
                    member.neighbours.append(other)
                if other != method and _says_less(names, places, at):
                    member.less.add(other)
    return found


def _method(text: str) -> Scheduled:
    method = parse_method(text)
    if not isinstance(method, Scheduled):
        raise ConfigError(
            f"A plan tries methods whose messages are known beforehand, but {method.label} "
            "decides online; compare it with `prlc compare`."
        )
    return method


def _names(text: str) -> list[str]:
    """Those in braces."""
    try:
        fields = [each for _, *each in Formatter().parse(text) if each[0] is not None]
    except ValueError:
        fields = [["", "", None]]
    names = {name or "" for name, _, _ in fields}
    if not names <= {*VALUES} or any(form or conversion for _, form, conversion in fields):
        raise ConfigError(
            f"Braces in a method stand for {', '.join(VALUES)}, as in local-sgd:{{H}}; got "
            f"{text!r}."
        )
    return sorted(names)


def _values(names: list[str], places: tuple[int, ...]) -> dict[str, object]:
    return {name: VALUES[name][place] for name, place in zip(names, places, strict=True)}


def _are_neighbours(names: list[str], places: tuple[int, ...], others: tuple[int, ...]) -> bool:
    apart = [
        abs(place - other)
        for name, place, other in zip(names, places, others, strict=True)
        if name not in _UNORDERED
    ]
    return sum(apart) == 1


def _says_less(names: list[str], places: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether others are, in each name, as far on or further; the same where there is no order."""
    return all(
        place == other if name in _UNORDERED else place <= other
        for name, place, other in zip(names, places, others, strict=True)
    )
