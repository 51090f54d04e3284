from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from prlc.data import load
from prlc.data.characters import load_shakespeare, load_text
from prlc.errors import ConfigError, DataError, DownloadError

TEXT = "Déjà vu, or not: " * 20  # 340 characters, 13 of them different


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PRLC_DATA_DIR", raising=False)
    monkeypatch.setenv("PRLC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def written(path: Path, text: str = TEXT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def decoded(numbers: torch.Tensor, text: str = TEXT) -> str:
    alphabet = sorted(set(text))
    return "".join(alphabet[number] for number in numbers)


@pytest.mark.parametrize("stride", [None, 1, 3])
def test_stretches_of_a_text(tmp_path: Path, stride: int | None) -> None:
    data = load_text(written(tmp_path / "own.txt"), context=8, stride=stride)
    assert data.name == "own"
    assert data.num_classes == len(set(TEXT))
    assert data.sample_shape == (8,)
    assert data.train_targets.shape == data.train_inputs.shape
    assert data.train_inputs.dtype == data.train_targets.dtype == torch.int64
    begins = range(0, 306 - 8, stride or 8)  # of nine tenths of the text
    assert [decoded(row) for row in data.train_inputs] == [TEXT[b : b + 8] for b in begins]
    assert [decoded(row) for row in data.train_targets] == [TEXT[b + 1 : b + 9] for b in begins]


def test_the_last_tenth_is_held_out_and_seen_once(tmp_path: Path) -> None:
    data = load_text(written(tmp_path / "own.txt"), context=8, stride=1)
    assert data.test_inputs is not None
    assert data.test_targets is not None
    assert decoded(data.test_inputs.flatten()) == TEXT[306:338]
    assert decoded(data.test_targets.flatten()) == TEXT[307:339]


def test_lines_end_as_they_are_written(tmp_path: Path) -> None:
    text = "one\r\ntwo\n" * 20
    data = load_text(written(tmp_path / "own.txt", text), context=9)
    assert decoded(data.train_inputs[0], text) == "one\r\ntwo\n"


@pytest.mark.parametrize("name", ["tinyshakespeare.txt", "input.txt"])
def test_a_folder(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / name, TEXT * 3)
    data = load("shakespeare", tmp_path)
    assert data.name == "shakespeare"
    assert data.sample_shape == (64,)
    monkeypatch.setenv("PRLC_DATA_DIR", str(tmp_path))
    assert torch.equal(load("shakespeare").train_inputs, data.train_inputs)


def test_download_once_and_again_when_damaged(
    cache: Path,
    tmp_path: Path,
    serve: Callable[[Path], AbstractContextManager[tuple[str, list[str]]]],
) -> None:
    content = written(tmp_path / "site" / "input.txt", TEXT * 3).read_bytes()
    with serve(tmp_path / "site") as (site, requests):
        published = (f"{site}input.txt", hashlib.md5(content).hexdigest())
        for _ in range(2):
            assert load_shakespeare(_published=published).name == "shakespeare"
        assert requests == ["input.txt"]
        (cache / "tinyshakespeare.txt").write_bytes(b"half")
        load_shakespeare(_published=published)
        assert requests == ["input.txt"] * 2
        with pytest.raises(DownloadError, match="expected MD5 0000"):
            load_shakespeare(_published=(published[0], "0" * 32))


def test_a_folder_without_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no tiny Shakespeare"):
        load_shakespeare(tmp_path)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt cannot be read"):
        load_text(tmp_path / "none.txt")
    (tmp_path / "latin.txt").write_bytes(b"abc\xe9")
    with pytest.raises(DataError, match="must be a text in UTF-8, but its byte 3 is not"):
        load_text(tmp_path / "latin.txt")
    for text in ("", "a", TEXT):
        path = written(tmp_path / "short.txt", text)
        with pytest.raises(DataError, match=f"it has {len(text)} in all: take a longer text"):
            load_text(path, context=34)
    with pytest.raises(ConfigError, match="at least 1 character; got 8 and 0"):
        load_text(path, context=8, stride=0)


@pytest.mark.cifar
def test_the_published_file(published: Callable[[str], str]) -> None:
    data = load_shakespeare(published("tinyshakespeare.txt"))
    assert data.test_inputs is not None
    assert data.num_classes == 65
    assert data.train_inputs.shape == (15_685, 64)
    assert data.test_inputs.shape == (1_742, 64)
