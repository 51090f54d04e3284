"""What a message looks like, with its exact size.

base.py        what an encoding is; plain numbers
floats.py      float32, bfloat16, float16
grid.py        1 to 8 bits rounded to the nearest (LAQ)
quantised.py   8, 4 and 2 bits rounded at random (QSGD), ternary (TernGrad)
topk.py        the largest numbers of every chunk, with packed positions and short values
down.py        what a pull carries: the model, a difference, a mean, all messages
bits.py        small integers packed into bytes
"""

from __future__ import annotations

from prlc import text
from prlc.encodings.base import Code, Draw, Encoding, Plain
from prlc.encodings.down import Down, parse_down
from prlc.encodings.floats import BFloat16, Float16, Float32
from prlc.encodings.grid import Grid
from prlc.encodings.quantised import Int2, Int4, Int8, Signs, Ternary
from prlc.encodings.topk import TopK
from prlc.errors import ConfigError

__all__ = [
    "ENCODINGS",
    "Code",
    "Down",
    "Draw",
    "Encoding",
    "Grid",
    "Plain",
    "TopK",
    "parse_down",
    "parse_encoding",
]

#: The values of `up=` and `down=`.
ENCODINGS: dict[str, type[Encoding]] = {
    kind.name: kind
    for kind in (Plain, Float32, BFloat16, Float16, Int8, Int4, Int2, Grid, Ternary, Signs, TopK)
}


def parse_encoding(value: Encoding | str) -> Encoding:
    """Read an encoding from text: `int8`, `topk,0.01,bits=4`."""
    if isinstance(value, Encoding):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"An encoding is written as text, such as topk,0.01; got {value!r}.")
    return text.read(value, ",", "encoding", ENCODINGS, Encoding)  # type: ignore[type-abstract]
