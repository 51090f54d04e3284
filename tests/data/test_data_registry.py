from __future__ import annotations

from pathlib import Path

import pytest

from prlc.data import DATASETS, load
from prlc.errors import ConfigError, DataError


def test_digits_need_no_folder(tmp_path: Path) -> None:
    assert load("digits").num_train == 1500
    assert load("digits", tmp_path / "nowhere").num_train == 1500


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="one of digits, fashion-mnist, cifar10; got 'mnist'"):
        load("mnist")


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "digits"])
def test_a_folder_that_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere does not exist"):
        load(name, tmp_path / "nowhere")
