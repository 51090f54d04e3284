"""The tables of methods in the docs say what the methods say."""

from __future__ import annotations

from pathlib import Path

import pytest

from prlc.encodings import ENCODINGS
from prlc.methods import COMPENSATIONS, METHODS, SETTINGS, create

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize(("page", "with_paper"), [("docs/methods.md", True), ("README.md", False)])
def test_the_table_of_methods_is_that_of_the_code(page: str, with_paper: bool) -> None:
    rows = []
    for name in METHODS:
        method = create(name)
        cells = [f"`{name}`", *method.columns().values(), *([method.paper] * with_paper)]
        rows.append(f"| {' | '.join(cells)} |")
    assert "\n".join(rows) + "\n" in (PROJECT / page).read_text()


def test_every_part_and_setting_is_explained() -> None:
    text = (PROJECT / "docs" / "methods.md").read_text()
    for name in [*SETTINGS, *ENCODINGS, *COMPENSATIONS]:
        assert f"`{name}`" in text
