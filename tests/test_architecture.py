"""docs/architecture.md tells the truth: its picture, the direction of imports, its examples."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import prlc
from prlc.encodings import parse_encoding

PACKAGE = Path(prlc.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
NAME = re.compile(r"[\w.]+\.(py|toml|html|css|js|typed)|\w+/")


def drawn() -> list[str]:
    """The rooms (`engines/roles/`) and files of the picture, from top to bottom."""
    picture = re.search(r"```\nprlc/\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert picture is not None
    found, rooms = [], [(0, "")]
    for line in picture[1].splitlines():
        depth = len(line) - len(line.lstrip())
        while rooms[-1][0] >= depth:
            rooms.pop()
        for number, word in enumerate(line.split()):
            if not NAME.fullmatch(word):
                break
            parent = rooms[-1][1]
            found.append(parent + word)
            if word.endswith("/") and number == 0:
                rooms.append((depth, parent + word))
    return found


def in_tree() -> Iterator[str]:
    """The same, as they are; of all `__init__.py` only the package's own."""
    for path in PACKAGE.rglob("*"):
        name = path.relative_to(PACKAGE).as_posix()
        if path.is_dir() and path.name != "__pycache__":
            yield f"{name}/"
        elif path.is_file() and path.suffix != ".pyc" and not name.endswith("/__init__.py"):
            yield name


def test_the_picture_is_the_tree() -> None:
    names = drawn()
    assert len(names) == len(set(names)), "nothing is drawn twice"
    assert sorted(names) == sorted(in_tree())


def test_every_room_is_a_package_that_says_what_is_in_it() -> None:
    for room in (name for name in in_tree() if name.endswith("/")):
        assert ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text())), room


def place(module: str) -> str:
    """Where a module is in the picture: a room, a room or file of engines/, a file of the root."""
    words = module.split(".")[1:]
    if words and words[0] == "engines":
        inner = words[1] if len(words) > 1 else ""
        if not inner:
            return "engines/"
        return (
            f"engines/{inner}/" if (PACKAGE / "engines" / inner).is_dir() else f"engines/{inner}.py"
        )
    if not words:
        return "__init__.py"
    return f"{words[0]}/" if (PACKAGE / words[0]).is_dir() else f"{words[0]}.py"


def imports(file: Path) -> Iterator[str]:
    """The modules of the package that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.partition(".")[0] == "prlc")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "prlc":
            folder = PACKAGE.parent / Path(*str(node.module).split("."))
            for each in node.names:
                inner = (folder / each.name).is_dir() or (folder / f"{each.name}.py").exists()
                yield f"{node.module}.{each.name}" if inner else str(node.module)


def test_imports_point_down_but_for_the_exceptions_named() -> None:
    names = drawn()
    order = {name: number for number, name in enumerate(names)}
    up = set()
    for file in PACKAGE.rglob("*.py"):
        name = file.relative_to(PACKAGE).as_posix()
        own = place(f"prlc.{name.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}")
        own = "__init__.py" if name == "__init__.py" else own
        for module in imports(file):
            target = place(module)
            if target != own and order[target] <= order[own]:
                up.add((name, target))
    listed = PAGE.read_text().partition("Imports that point up")[2].partition("`tests/")[0]
    named = {
        (words[0], target)
        for item in re.split(r"\n- ", listed)[1:]
        if (words := re.findall(r"`([^`]+)`", item.partition(":")[0]))
        for target in words[1:]
    }
    assert up == named


def test_every_place_in_the_table_is_there() -> None:
    rows = re.findall(r"^\| .* \| `([\w/]+\.py)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) >= 10
    for file, there in rows:
        content = (PACKAGE / file).read_text()
        for name in re.findall(r"`([\w.]+)`", there.partition(";")[0]):
            assert re.search(rf"(def|class) {name.rpartition('.')[2]}\b", content), (file, name)


IMPORTS = """
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from prlc.encodings import Code, Encoding, parse_encoding
from prlc.encodings.base import Uniform, as_bytes, from_bytes
from prlc.encodings.bits import pack, packed_size, unpack
from prlc.methods import Compensation, Context, LocalSGD, Pulled, State
"""


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the classes that the page shows how to add."""
    blocks = re.findall(r"```python\n(@dataclass.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    file = tmp_path_factory.mktemp("examples") / "shown.py"
    file.write_text("\n\n".join([IMPORTS, *blocks]))
    return file


@pytest.mark.parametrize(
    "text",
    ["{}:QuietSGD:6", "prlc:0.3:delay=2:meanwhile={},Fading", "prlc:0.3:up={0},Sign:down={0},Sign"],
)
def test_what_is_shown_to_be_added_runs_on_both_engines(text: str, examples: Path) -> None:
    data = prlc.data.load_digits().to("cpu", torch.float64)
    model = prlc.models.build("logistic", data.sample_shape, data.num_classes, 0).double()
    settings: dict[str, Any] = {"workers": 3, "steps": 15, "method": text.format(examples)}
    simulated = prlc.train(model, F.cross_entropy, data, execution=prlc.Execution(3, 1), **settings)
    plain = prlc.train(model, F.cross_entropy, data, engine="reference", **settings)
    assert simulated.summary["train_loss"] == pytest.approx(plain.summary["train_loss"], abs=1e-10)
    for key in ("bytes_up", "bytes_down"):
        assert simulated.summary[key] == plain.summary[key]


def test_the_encoding_shown_takes_a_bit_a_number(examples: Path) -> None:
    encoding = parse_encoding(f"{examples},Sign,chunk=16")
    assert encoding.size(40, torch.float64) == (4 + 2) + (4 + 2) + (4 + 1)


PAGES = [PAGE.parents[1] / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted(PAGE.parent.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_sections_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
        assert any(
            (root / name).is_file()
            for root in (PACKAGE, PACKAGE / "engines", PAGES[0].parent, PAGES[0].parent / "tests")
        ), name
    for target, section in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
        file = page.parent / target if target else page
        assert file.exists(), target
        if section:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
            assert section in slugs, section
