"""Settings as text: names, values, and classes in a file of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from prlc import text
from prlc.errors import ConfigError
from prlc.methods import parse_method

OWN = """
from dataclasses import dataclass, field
from prlc.methods import Scheduled
from prlc.methods.compensation import Compensation, Own


@dataclass(frozen=True)
class Mine(Scheduled):
    strength: int = 1
    meanwhile: Compensation = field(default_factory=Own, kw_only=True)


class Other:
    pass
"""


@pytest.mark.parametrize(
    ("written", "value"),
    [("3", 3), ("0.5", 0.5), ("1e-3", 1e-3), ("yes", True), ("False", False), ("max", "max")],
)
def test_values(written: str, value: object) -> None:
    read = text.value_of(written)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("value", [3, 0.25, 1.0, True, False, "l2", 1e-7, 1e20])
def test_values_are_read_back_rule_23(value: object) -> None:
    assert text.value_of(text.write_value(value)) == value


def test_settings_may_have_hyphens() -> None:
    assert parse_method("prlc:pull-ratio=0.5") == parse_method("prlc:0.5")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return file


def test_a_method_from_a_file_rule_23(own: Path) -> None:
    method = parse_method(f"{own}:Mine:2:every=3")
    assert method.options()["strength"] == 2
    assert parse_method(str(method)) == method
    assert type(parse_method(f"{own}:Mine")) is type(method), "a file is read once"
    digest = text.file_digest(type(method))
    assert digest
    own.write_text(OWN.replace("= 1", "= 5"))
    changed = parse_method(f"{own}:Mine")
    assert changed.options()["strength"] == 5
    assert text.file_digest(type(changed)) != digest
    assert text.file_digest(type(parse_method("nsgd"))) is None


@pytest.mark.parametrize(
    ("content", "name", "sentence"),
    [
        (
            OWN,
            "Missing",
            "There is no class 'Missing' in .*; .*mine.py has the methods Mine",
        ),
        (OWN, "Other", "Other must be derived from prlc.Method; .*mine.py has the methods Mine"),
        (OWN, "", "Name the class of the method, as in .*mine.py:CLASS"),
        ("raise SystemExit(0)", "Mine", r"cannot be imported \(SystemExit: 0\)"),
        ("1 / 0", "Mine", r"cannot be imported \(ZeroDivisionError: division by zero\)"),
        ("import nothing_like_it", "Mine", r"cannot be imported \(ModuleNotFoundError"),
        (None, "Mine", "cannot be read: No such file"),
    ],
)
def test_files_that_do_not_hold_a_method_rule_22(
    tmp_path: Path, content: str | None, name: str, sentence: str
) -> None:
    file = tmp_path / "mine.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=sentence):
        parse_method(f"{file}:{name}" if name else str(file))


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("prlc:0.1:0.2", "'0.2' should be written as setting=value"),
        ("prlc:rate=3", "prlc has no setting 'rate': it takes pull_ratio, every"),
        ("nsgd:0.1", "'0.1' should be written as setting=value"),
        ("fedprox:meanwhile=own", "fedprox has no setting 'meanwhile'"),
        ("lag-ps:delay=1", "lag-ps has no setting 'delay'"),
        ("asgd:up=int8", "asgd has no setting 'up'"),
        ("prlc:0.1:every=2:every=3", "every is given twice: leave out one of them"),
        ("prlc:0.1:pull_ratio=0.2", "pull_ratio is given twice"),
        ("prlc:0.1:up=topk,bits=4,bits=8", "In 'topk,bits=4,bits=8', bits is given twice"),
        ("prlc:", "'' should be written as setting=value"),
        ("", "There is no method ''"),
        (
            "prlc:0.1:every=99999999999999999999999",
            "`every` must be 1,000,000,000 steps at most but is 99,999",
        ),
        ("prlc:1e-320:schedule=aligned", "The pull ratio must lie in (0, 1]"),
        (
            "lag-wk:window=1000000000000",
            "`window` must be 1,000,000 steps at most but is 1,000,000,000,000",
        ),
        ("prlc:0.1:up=int8,decay=0.5", "Without error feedback nothing decays"),
    ],
)
def test_bad_texts_rule_22(written: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_method(written)
    assert sentence in str(error.value)
