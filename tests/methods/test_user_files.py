"""Methods and parts from files of the user's own."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import prlc
from prlc import text
from prlc.errors import ConfigError
from prlc.methods import State, parse_method

FILE = """
from dataclasses import dataclass
import prlc
from prlc.encodings.quantised import Int8

helper = 3

class Stranger:
    pass

@dataclass(frozen=True)
class Mine(prlc.LocalSGD):
    setting: int = 1

@dataclass(frozen=True)
class Half(Int8):
    factor: float = 1.0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_a_method_from_a_file_has_settings_a_text_and_a_label(file: Path) -> None:
    method = parse_method(f"{file}:Mine:4:setting=2:up={file},Half,l2,factor=0.5")
    assert isinstance(method, prlc.LocalSGD)
    assert method.every == 4
    assert method.label == "Mine H=4, setting=2, up Half l2 factor=0.5"
    assert (
        text.without_folders(str(method))
        == "mine.py:Mine:4:setting=2:up=mine.py,Half,l2,factor=0.5"
    )
    assert parse_method(str(method)) == method
    assert pickle.loads(pickle.dumps(method)) == method
    assert list(text.file_digests(method)) == ["mine.py"]


def test_a_class_of_a_program_is_named_by_its_file_not_by_its_base() -> None:
    class Mine(prlc.PRLC):
        pass

    assert str(Mine(0.2)).startswith(f"{__file__}:")
    assert Mine(0.2).label == "Mine r=0.2"
    assert text.file_digests(Mine()) == {Path(__file__).name: text.file_digest(Mine)}
    assert text.file_digests(prlc.PRLC()) == {}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Missing", r"There is no class 'Missing' in .*mine.py; .*mine.py has the methods Mine\."),
        ("helper", r"There is no class 'helper'"),
        ("Stranger", r"Stranger must be derived from prlc.Method"),
        ("Half", r"Half must be derived from prlc.Method"),
        ("Mine:other=3", r"has no setting 'other': it takes every, setting"),
    ],
)
def test_a_class_that_is_no_method_gets_a_sentence(file: Path, name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_method(f"{file}:{name}")


def test_a_file_without_a_class_gets_a_sentence(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"Name the class of the method, as in .*mine.py:CLASS"):
        parse_method(str(file))
    with pytest.raises(ConfigError, match=r"Mine must be derived from prlc.Encoding"):
        parse_method(f"nsgd:up={file},Mine")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("import nothing_like_it", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("class Mine(", "SyntaxError"),
    ],
)
def test_a_file_that_does_not_import_gets_a_sentence(
    tmp_path: Path, content: str, sentence: str
) -> None:
    (tmp_path / "bad.py").write_text(content)
    with pytest.raises(ConfigError, match=rf"bad.py cannot be imported \({sentence}"):
        parse_method(f"{tmp_path / 'bad.py'}:Mine")
    with pytest.raises(ConfigError, match=r"none.py cannot be read: No such file"):
        parse_method(f"{tmp_path / 'none.py'}:Mine")


@pytest.mark.parametrize(
    ("method", "runs_a_file"),
    [
        ("prlc:0.1", False),
        ("prlc:0.1:up=topk,0.01", False),
        ("a/b.py:Mine", True),
        ("prlc:up=mine.py,Mine,0.5", True),
        ("prlc:meanwhile=mine.py,Mine", True),
    ],
)
def test_a_text_tells_whether_it_runs_a_file(method: str, runs_a_file: bool) -> None:
    assert text.names_a_file(method) == runs_a_file
    assert text.without_folders("a/b/c.py:Mine:up=/d/e.py,X") == "c.py:Mine:up=e.py,X"


def test_a_compensation_that_overrides_more_than_its_share_is_not_taken_for_one() -> None:
    class Twice(prlc.methods.Share):
        def move(self, state: State, update: Tensor, *_: Any) -> Tensor:
            del state
            return 2 * update

    assert prlc.PRLC(0.1, meanwhile=prlc.methods.Share(0.5)).trivial
    assert not prlc.PRLC(0.1, meanwhile=Twice(0.5)).trivial
