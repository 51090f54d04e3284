"""What a plan chooses from: the one list to add a method to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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


#: What a name in braces stands for.
VALUES: dict[str, tuple[object, ...]] = {
    "H": (2, 5, 10, 25, 50),
    "r": (0.5, 0.2, 0.1, 0.05),
    "tiny": ("topk,0.04,bits=1", "topk,0.02,bits=1", "topk,0.01,bits=1"),
    "small": ("int8", "int4", "topk,0.05,bits=4", "topk,0.01,bits=4"),
}

#: The candidates. Those that do not fit the optimizer or the length of the run are left out.
FAMILY: tuple[Line, ...] = (
    # Every step, small messages.
    Line("nsgd:up={small}:down={small}"),
    Line("pipe-sgd:up={small}:down={small}"),
    Line("whisper:1:up={tiny}:down={tiny}"),
    # Every H steps; used at once, or H steps late so that nobody waits.
    Line("local-sgd:{H}"),
    Line("local-sgd:{H}:up={small}:down={small}"),
    Line("cocod-sgd:{H}"),
    Line("cocod-sgd:{H}:up={small}:down={small}"),
    Line("whisper:{H}:up={tiny}:down={tiny}"),
    Line("whisper:{H}:up=topk,0.02,bits=1:down=topk,0.04,bits=1:meanwhile=ahead-snr"),
    Line("whisper:{H}:up=topk,bits=1,decay=0.95:down=topk,0.05,bits=1:meanwhile=ahead-snr"),
    Line("diloco:{H}"),
    Line("sparseloco:{H}"),
    # Every step, rare pulls: the paper, and a gain that adapts.
    Line("prlc:{r}"),
    Line("prlc:{r}:meanwhile=snr"),
)

#: The step sizes with which each begins, in multiples of its line's.
STEP_SIZES = (2.0, 1.0, 0.5, 0.25)


def candidates(lines: Iterable[Line | str] = FAMILY) -> dict[Scheduled, float]:
    """The methods that the lines name, each with its line's step size."""
    found: dict[Scheduled, float] = {}
    for line in lines:
        text, step = (line, 1.0) if isinstance(line, str) else (line.text, line.step)
        for each in _filled(text):
            method = parse_method(each)
            if not isinstance(method, Scheduled):
                raise ConfigError(
                    f"A plan tries methods whose messages are known beforehand, but {method.label} "
                    "decides online; compare it with `prlc compare`."
                )
            found.setdefault(method, step)
    return found


def _filled(text: str) -> Iterable[str]:
    """The text with every choice of values for its names."""
    try:
        names = sorted({name for _, name, _, _ in Formatter().parse(text) if name is not None})
        choices = [VALUES[name] for name in names]
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"Braces in a method stand for {', '.join(VALUES)}, as in local-sgd:{{H}}; got "
            f"{text!r}."
        ) from error
    return (text.format(**dict(zip(names, each, strict=True))) for each in product(*choices))
