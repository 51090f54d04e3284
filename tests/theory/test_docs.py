"""docs/theory.md names tests and functions that exist, and its figures can be redrawn."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from prlc import theory

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "theory.md"


def test_every_test_named_on_the_page_exists() -> None:
    here = "\n".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)", here, re.M))
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert named <= defined
    errata = {name for name in defined if name.startswith(("test_erratum", "test_printed"))}
    assert errata <= named
    for expression in re.findall(r'-k "?([a-z_ ]+)"?[`)]', PAGE.read_text()):
        assert any(word in name for word in expression.split(" or ") for name in defined)


def test_every_function_named_on_the_page_exists() -> None:
    names = re.findall(
        r"`((?:pr|prlc|theorem|asgd|age|moment|strongly|noise)_?\w*_\w+)`", PAGE.read_text()
    )
    assert len(names) > 8
    for name in names:
        assert hasattr(theory, name), name


def test_the_example_on_the_page_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    checked = 0
    space: dict[str, object] = {}
    for line in example.splitlines():
        exec(line, space)
        for call, shown in re.findall(r"^(theory\.\w+\(.*?\)) +# ([\d.]+)\.\.\.", line):
            assert str(eval(call, space)).startswith(shown)
            checked += 1
    assert checked == 2


def test_figures_are_there_and_can_be_redrawn(tmp_path: Path) -> None:
    shown = re.findall(r"\(images/(theory-[\w-]+\.png)\)", PAGE.read_text())
    script = runpy.run_path(str(ROOT / "docs" / "plots" / "theory.py"))
    script["main"](tmp_path)
    assert sorted(shown) == sorted(file.name for file in tmp_path.iterdir())
    for name in shown:
        assert (PAGE.parent / "images" / name).stat().st_size < 100_000
        assert (tmp_path / name).stat().st_size == pytest.approx(
            (PAGE.parent / "images" / name).stat().st_size, rel=0.5
        )
