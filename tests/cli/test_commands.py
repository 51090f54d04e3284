"""The command line as a person or a program uses it, inside this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from prlc.methods import METHODS, SETTINGS, create, option_names
from prlc.report import COLUMNS

Prlc = Callable[..., tuple[int, str, str]]
QUICK = ["--steps", "12", "--workers", "4", "--chunk", "4", "--threads", "1"]


def test_compare_prints_a_table_and_draws_a_plot(prlc: Prlc, tmp_path: Path) -> None:
    code, out, _ = prlc("compare", *QUICK, "--out", tmp_path / "c")
    assert code == 0
    labels = [create(name).label for name in METHODS]
    for label in ("PRLC r=0.4", *labels):
        assert label in out
    assert "…" not in out
    assert max(len(line) for line in out.splitlines() if str(tmp_path) not in line) <= 80
    assert (tmp_path / "c" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert len(pd.read_csv(tmp_path / "c" / "comparison.csv")) == len(labels) + 1


def test_compare_prints_the_same_as_json(prlc: Prlc, tmp_path: Path) -> None:
    code, out, _ = prlc(
        "compare", "-m", "nsgd", "-m", "prlc:0.5", *QUICK, "--out", tmp_path / "c", "--json"
    )
    rows = json.loads(out)
    assert code == 0
    assert [list(row) for row in rows] == [list(COLUMNS)] * 2
    nsgd, half = rows
    assert nsgd["pulls_per_worker"] == 12
    assert nsgd["pull_fraction"] == 1.0
    assert half["pull_fraction"] == half["pulls_per_worker"] / 12
    assert half["bytes_down"] < nsgd["bytes_down"] == nsgd["bytes_up"] == half["bytes_up"]
    assert half["simulated_seconds"] < nsgd["simulated_seconds"]


def test_compare_names_the_winners_among_those_close_to_nsgd(prlc: Prlc, tmp_path: Path) -> None:
    methods = ("-m", "nsgd", "-m", "prlc:1", "-m", "pr:0.01:every=12", "-m", "nsgd:down=float16")
    code, out, _ = prlc("compare", *methods, *QUICK, "--out", tmp_path / "c")
    assert code == 0
    words = " ".join(out.split())
    assert "Within 2% of NSGD's loss, fewest bytes: NSGD down float16, " in words
    assert "(0.75 of NSGD's); shortest time: NSGD down float16, " in words
    alone = prlc("compare", "-m", "prlc:1", *QUICK, "--out", tmp_path / "d")[1]
    assert "Within" not in alone


def test_compare_goes_on_with_what_is_unfinished(prlc: Prlc, tmp_path: Path) -> None:
    command = ["compare", "-m", "nsgd", "-m", "pr", *QUICK, "--out", tmp_path / "c", "--json"]
    _, first, _ = prlc(*command)
    (tmp_path / "c" / "pr-r-0.1" / "summary.json").unlink()
    code, second, _ = prlc(*command, "--resume")
    assert code == 0
    assert json.loads(second) == json.loads(first)


def test_train_leaves_one_folder_with_everything(prlc: Prlc, tmp_path: Path) -> None:
    code, out, _ = prlc(
        "train", "-m", "prlc", "--pull-ratio", "0.5", *QUICK, "--out", tmp_path / "r", "--json"
    )
    assert code == 0
    assert json.loads(out)["folder"] == str(tmp_path / "r")
    files = {file.name for file in (tmp_path / "r").iterdir()}
    assert {"config.json", "metrics.csv", "checkpoint.pt", "model.pt", "summary.json"} <= files
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert config["method"] == "prlc:0.5"
    metrics = pd.read_csv(tmp_path / "r" / "metrics.csv")
    assert metrics["step"].iloc[-1] == 12
    assert metrics["train_loss"].iloc[-1] < metrics["train_loss"].iloc[0]


@pytest.mark.parametrize(
    "arguments",
    [
        "-m prlc:0.1:every=5:delay=5:up=topk,0.01,bits=4:down=int8:schedule=staggered",
        "--optimizer adamw --optimizer-at server --schedule cosine",
        "-m cocod-sgd --every 4",
        "-m prlc:0.1 --network none",
        "-m diloco:4 --server-optimizer add",
    ],
)
def test_train_takes_any_choice_of_parts(prlc: Prlc, tmp_path: Path, arguments: str) -> None:
    run = tmp_path / "r"
    code, out, said = prlc("train", *arguments.split(), *QUICK, "--out", run, "--json")
    assert (code, "Traceback" in said) == (0, False)
    summary = json.loads(out)
    assert summary["steps"] == 12
    assert (summary["simulated_seconds"] is None) == ("none" in arguments)
    (run / "summary.json").unlink()
    code, again, _ = prlc("train", "--resume", run, "--json")
    assert code == 0
    assert json.loads(again)["train_loss"] == summary["train_loss"]


def test_a_long_label_is_wrapped_not_cut(prlc: Prlc, tmp_path: Path) -> None:
    method = "prlc:0.1:every=5:delay=5:up=topk,0.02,bits=2:down=int8:schedule=staggered"
    code, out, _ = prlc("train", "-m", method, *QUICK, "--out", tmp_path / "r")
    assert code == 0
    assert "…" not in out
    column = " ".join(line[:25].strip() for line in out.splitlines())
    assert "PRLC r=0.1" in column
    assert "bits=2" in out
    assert "simulated" in out


def test_compare_keeps_every_choice_of_parts_apart(prlc: Prlc, tmp_path: Path) -> None:
    methods = (
        "nsgd diloco:every=10 sparseloco:every=10 qsgd topk ef21-p local-sgd:every=5:sample=0.1"
    )
    given = [word for method in methods.split() for word in ("-m", method)]
    code, out, _ = prlc("compare", *given, *QUICK, "--out", tmp_path / "c", "--json")
    assert code == 0
    labels = [row["method"] for row in json.loads(out)]
    assert labels == [
        *("NSGD", "DiLoCo H=10", "SparseLoCo H=10", "QSGD", "top-k", "EF21-P"),
        "Local SGD H=5, sample 0.1",
    ]
    folders = [path for path in (tmp_path / "c").iterdir() if path.is_dir()]
    assert len(folders) == len(labels)
    page = (tmp_path / "c" / "report.html").read_text()
    assert all(label in page for label in labels)


def test_a_run_by_a_file_is_resumed_only_if_the_file_is_named_again(
    prlc: Prlc, tmp_path: Path
) -> None:
    file, ran = tmp_path / "mine.py", tmp_path / "ran"
    file.write_text(
        "import prlc\nfrom pathlib import Path\n"
        f"Path({str(ran)!r}).touch()\n"
        "class Mine(prlc.PRLC):\n    pass\n"
    )
    run, method = tmp_path / "r", f"{file}:Mine:0.5"
    assert prlc("train", "-m", method, *QUICK, "--out", run)[0] == 0
    (run / "summary.json").unlink()
    ran.unlink()
    file.write_text(file.read_text() + "# so that it would be imported again\n")
    code, _, said = prlc("train", "--resume", run)
    assert code == 2
    assert f"If it is yours, add: --method {method}" in said.replace("\n", " ")
    assert not ran.exists()
    code, _, said = prlc("train", "--resume", run, "-m", method)
    assert code == 2
    assert "code has changed since (mine.py)" in said.replace("\n", " ")
    file.write_text(file.read_text().replace("# so that it would be imported again\n", ""))
    assert prlc("train", "--resume", run, "-m", method)[0] == 0
    assert (run / "summary.json").exists()
    assert prlc("report", run, "--json")[0] == 0


def test_train_chooses_a_new_folder_each_time(
    prlc: Prlc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prlc("train", *QUICK)
    prlc("train", *QUICK)
    names = sorted(folder.name for folder in (tmp_path / "runs").iterdir())
    assert names == ["0001-whisper-logistic-digits", "0002-whisper-logistic-digits"]


@pytest.mark.parametrize(
    ("arguments", "method"),
    [
        ("--optimizer momentum", "whisper"),
        ("--optimizer adamw", "whisper:16:up=topk,bits=1,decay=0.95:down=topk,0.05,bits=1:"),
        ("--optimizer adamw --optimizer-at server", "nsgd"),
        ("--optimizer adamw -m whisper", "whisper"),
    ],
)
def test_without_a_method_train_takes_what_suits_the_optimizer(
    prlc: Prlc, tmp_path: Path, arguments: str, method: str
) -> None:
    code, out, _ = prlc("train", *arguments.split(), *QUICK, "--out", tmp_path / "r", "--json")
    assert code == 0
    taken = json.loads((tmp_path / "r" / "config.json").read_text())["method"]
    assert taken == method or (method.endswith(":") and taken.startswith(method))
    assert json.loads(out)["train_loss"] < 2.3


def test_train_writes_tensorboard_events_on_request(prlc: Prlc, tmp_path: Path) -> None:
    code, _, _ = prlc("train", *QUICK, "--out", tmp_path / "r", "--tensorboard")
    assert code == 0
    assert list((tmp_path / "r" / "tensorboard").glob("events*"))


def test_methods_lists_all_of_them_with_their_choices(prlc: Prlc) -> None:
    code, out, _ = prlc("methods", "--json")
    assert code == 0
    listed = {each["name"]: each for each in json.loads(out)}
    assert list(listed) == list(METHODS)
    choices = ["takes_part", "push", "message", "server", "pull", "meanwhile"]
    for name, each in listed.items():
        assert list(each) == ["name", "recommended", *choices, "paper", "settings"]
        assert all(isinstance(each[key], str) and each[key] for key in [*choices, "paper"])
        assert list(each["settings"]) == option_names(name)
        given = {key: value for key, value in each["settings"].items() if key != "delay"}
        assert create(name, **given) == create(name), "the defaults, as JSON, make it again"
    assert listed["sparseloco"]["settings"]["up"] == "topk,0.0156,bits=2,decay=0.95"
    assert listed["fedprox"]["settings"]["mu"] == 0.01
    assert listed["diloco"]["server"] == "nesterov"
    assert [name for name, each in listed.items() if each["recommended"]] == ["whisper"]


def test_methods_prints_a_table_of_120_columns(prlc: Prlc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, out, _ = prlc("methods")
    assert code == 0
    assert all(f"\n{name} " in out for name in METHODS)
    assert max(map(len, out.splitlines())) <= 120
    assert "…" not in out
    for setting in [*SETTINGS, "mu=0.01", "staleness_aware=no", "topk", "snr"]:
        assert setting in out


def test_the_version_is_printed(prlc: Prlc) -> None:
    assert prlc("--version")[:2] == (0, "prlc 0.1.0\n")


@pytest.mark.parametrize(
    ("command", "teaches"),
    [
        ([], "Begin with prlc compare"),
        (["compare"], "prlc compare -m nsgd"),
        (["train"], "prlc train --resume runs/"),
        (["plan"], "prlc plan --network wan"),
        (["methods"], "List the methods"),
    ],
)
def test_help_teaches(prlc: Prlc, command: list[str], teaches: str) -> None:
    code, out, _ = prlc(*command, "--help")
    assert code == 0
    assert teaches in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--pull-ratio", "0"], "pull ratio must lie in (0, 1] but is 0"),
        (["train", "--pull-ratio", "1.5"], "pull ratio must lie in (0, 1] but is 1.5"),
        (["train", "-m", "magic"], "no method 'magic'"),
        (["train", "-m", "nsgd:0.1"], "'0.1' should be written as setting=value"),
        (["train", "-m", "prlc:magic=1"], "prlc has no setting 'magic'"),
        (["train", "-m", "prlc:up=magic"], "no encoding 'magic'"),
        (["train", "-m", "nsgd:up=plain,ef=yes"], "plain has no setting 'ef'"),
        (["train", "-m", "nsgd:delay=3"], "the delay is 3 steps"),
        (["train", "-m", "lag-ps:delay=3"], "lag-ps has no setting 'delay'"),
        (["train", "-m", "prlc:blocks=9"], "cannot be cut into 9 blocks"),
        (["train", "-m", "none.py:Mine"], "none.py cannot be read"),
        (["train", "-m", "prlc:0.1", "--optimizer-at", "server"], "does not predict a step"),
        (["train", "-m", "asgd", "--network", "none"], "name a network"),
        (["train", "--network", "none", "--net", "latency=1s"], "there is none"),
        (["plan", "--network", "none"], "A plan is for a network"),
        (["train", "-m", "prlc:0.1:7"], "should be written as setting=value"),
        (["train", "-m", "asgd", "--pull-ratio", "0.1"], "no setting 'pull_ratio'"),
        (["train", "--workers", "2000"], "2000"),
        (["train", "--workers", "0"], "workers must be a whole number"),
        (["train", "--steps", "5", "--epochs", "2"], "either steps or epochs"),
        (["train", "--data", "cifar10", "--data-dir", "/no/such/folder"], "/no/such/folder"),
        (["train", "--data", "mnist2"], "mnist2"),
        (["train", "--model", "vgg"], "vgg"),
        (["train", "--lr", "-1"], "learning rate must be a positive number but is -1"),
        (["train", "--schedule", "step:x"], "no schedule 'step:x'"),
        (["train", "--optimizer", "lion9"], "no worker optimizer 'lion9'"),
        (["train", "--network", "moon"], "moon"),
        (["train", "--net", "latency=35parsec"], "latency"),
        (["train", "--net", "latency"], "setting=value"),
        (["train", "--partition", "magic"], "magic"),
        (["train", "--engine", "warp"], "no engine 'warp'"),
        (["train", "--device", "cuda:99"], "cuda:99"),
        (["train", "--chunk", "3"], "--chunk and --threads together"),
        (["train", "--resume", "/no/such/run"], "holds no run"),
        (["train", "--resume", "/no/such/run", "--lr", "0.5"], "keeps all its settings"),
        (["train", "--resume", "/no/such/run", "-m", "prlc:0.5"], "holds no run"),
        (["compare", "--resume"], "name its folder with --out"),
        (["compare", "-m", "pr:0"], "pull ratio must lie in (0, 1] but is 0"),
    ],
)
def test_bad_input_gets_one_sentence(
    prlc: Prlc,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    out: list[str] = [] if "--resume" in arguments else ["--out", str(tmp_path / "r")]
    steps = [] if {"--steps", "--resume"} & {*arguments} else ["--steps", "3"]
    code, printed, said = prlc(*arguments, *steps, *out)
    assert code == 2
    assert sentence in said.replace("\n", " ")
    assert "Traceback" not in said + printed
    assert not (tmp_path / "r").exists()
    assert not (tmp_path / "runs").exists()


def test_a_damaged_data_file_is_named(prlc: Prlc, tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (folder / f"{name}.bin").write_bytes(bytes(3073))
    out = ["--out", tmp_path / "r"]
    code, _, said = prlc("train", "--data", "cifar10", "--data-dir", tmp_path, *QUICK, *out)
    assert code == 2
    assert "data_batch_1.bin" in said
    assert "Traceback" not in said


def test_a_diverging_run_stops_and_keeps_its_state(prlc: Prlc, tmp_path: Path) -> None:
    code, _, said = prlc("train", "--lr", "1e38", *QUICK, "--out", tmp_path / "r")
    assert code == 1
    assert "of worker" in said
    assert "at step" in said
    assert "last checkpoint is kept" in said.replace("\n", " ")
    assert (tmp_path / "r" / "checkpoint.pt").exists()
    assert not (tmp_path / "r" / "summary.json").exists()


def test_a_folder_that_holds_a_run_is_not_overwritten(prlc: Prlc, tmp_path: Path) -> None:
    prlc("train", *QUICK, "--out", tmp_path / "r")
    before = (tmp_path / "r" / "model.pt").read_bytes()
    code, _, said = prlc("train", *QUICK, "--seed", "1", "--out", tmp_path / "r")
    assert code == 2
    assert "already holds a run" in said.replace("\n", " ")
    assert (tmp_path / "r" / "model.pt").read_bytes() == before


def test_a_checkpoint_cut_in_half_is_left_for_the_one_before(prlc: Prlc, tmp_path: Path) -> None:
    prlc("train", *QUICK, "--out", tmp_path / "r")
    (tmp_path / "r" / "summary.json").unlink()
    file = tmp_path / "r" / "checkpoint.pt"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert prlc("train", "--resume", tmp_path / "r")[0] == 0
    assert (tmp_path / "r" / "checkpoint.damaged.pt").exists()
