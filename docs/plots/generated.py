"""The generated parts of a page: between `<!-- NAME: generated -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


def fill(page: str, parts: Mapping[str, str]) -> str:
    """The page with these parts in place of what stood there."""
    for name, text in parts.items():
        marked = re.compile(rf"(<!-- {name}: generated -->\n).*?(<!-- end -->)", re.S)
        page, count = marked.subn(lambda m, text=text: f"{m[1]}\n{text}\n\n{m[2]}", page)
        if count != 1:
            raise ValueError(f"The page should have one part {name!r}, but has {count}.")
    return page


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [headings, ["---"] * len(headings), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
