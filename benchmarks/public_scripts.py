"""Scripts that others published, changed in a few lines, on three ranks under torchrun.

    python benchmarks/public_scripts.py --nanogpt FOLDER --examples FOLDER --images FOLDER

The folders: a checkout of karpathy/nanoGPT whose data/shakespeare_char/prepare.py has been run, a
checkout of pytorch/examples, and one in which torchvision finds MNIST (or Fashion-MNIST under its
name). Whichever is given is checked, in copies, which get the lines below:

- NSGD with SGD inside against one process on the joint batch, in both precisions, and that process
  against itself with the samples of each batch in reverse;
- PRLC and Local SGD against NSGD, with SGD inside and with the script's own optimizer: the global
  model's loss on held-out data;
- the GAN: whether all ranks end with the same model, and its losses are finite;
- nanoGPT, killed and restarted: whether it ends with the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import nll_loss
from torch.utils.data import DataLoader

import prlc
from prlc.data.share import Part, share

RANKS = 3
ALIKE = 50  # steps of the comparison with one process
METHODS = ("prlc:0.1", "local-sgd:10")
REVERSED = "reversed"  # instead of a method: one process, the samples of each batch in reverse
Namespace = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A line for a script, before the first one that begins with `at` (or at the end)."""

    new: str
    at: str = ""
    is_data: bool = False
    """Whether it says where data come from; such lines are counted by themselves."""
    replaces: bool = False

    def put_into(self, lines: list[str]) -> None:
        if not self.at:
            lines.append(self.new)
            return
        found = [i for i, line in enumerate(lines) if line.strip().startswith(self.at)]
        if not found:
            raise SystemExit(f"The script has no line that begins with {self.at!r}.")
        old = lines[found[0]]
        lines[found[0] : found[0] + self.replaces] = [old[: -len(old.lstrip())] + self.new]


@dataclass(frozen=True)
class Script:
    """A published script, and what is changed in it."""

    name: str
    folder: Path
    file: str
    arguments: tuple[str, ...]
    lines: tuple[Line, ...]
    data: tuple[tuple[str, Path], ...]
    """Where it looks for data, as a path beside it, and where they are."""
    plain: tuple[Line, ...] = ()
    """For the comparison with one process: SGD, then nothing random that ranks do not share."""
    plain_arguments: tuple[str, ...] = ()
    joint_arguments: tuple[str, ...] = ()
    """What makes a batch of one process that of all."""

    def text(self, join: str) -> str:
        """The changed script; `join` is what it gives to `prlc.join`."""
        lines = (self.folder / self.file).read_text().splitlines()
        for line in self.lines:
            replace(line, new=line.new.replace("JOIN", join)).put_into(lines)
        return "\n".join([*lines, ""])

    def with_lines(self, *lines: Line) -> Script:
        return replace(self, lines=(*self.lines, *lines))

    @property
    def for_joint_batches(self) -> Script:
        changed = self.with_lines(*self.plain)
        return replace(changed, arguments=(*self.arguments, *self.plain_arguments))


IMPORT = Line("import prlc", at="import ")
FINISH = Line("run.finish()")


def nanogpt(folder: Path, steps: int) -> Script:
    """Its README's setting for CPUs. It looks for torchrun by itself, to use DDP."""
    size = "n_layer=4 n_head=4 n_embd=128 block_size=64 batch_size=12 dropout=0.0"
    times = f"max_iters={steps - 1} lr_decay_iters={steps} eval_interval=100000 eval_iters=1"
    given = f"device=cpu compile=False dtype=float32 {size} {times} log_interval=100"
    return Script(
        "nanoGPT",
        folder,
        "train.py",
        ("config/train_shakespeare_char.py", *(f"--{each}" for each in given.split())),
        (
            IMPORT,
            Line("team = prlc.join(JOIN, hides_torchrun=True)", at="ddp = int("),
            Line("get_batch = team.shard(get_batch, ahead=1)", at="iter_num = 0", is_data=True),
            Line("run = team.train(model, optimizer, also=[scaler])", at="# training loop"),
            FINISH,
        ),
        (("data", folder / "data"),),
        (
            Line(
                "optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)",
                at="optimizer = model.configure_optimizers(",
                replaces=True,
            ),
        ),
        (f"--max_iters={ALIKE - 1}", "--decay_lr=False", "--learning_rate=0.01", "--grad_clip=0.0"),
    )


def mnist(examples: Path, images: Path) -> Script:
    """One pass over the data, which is 313 steps."""
    return Script(
        "mnist",
        examples / "mnist",
        "main.py",
        ("--epochs=1", "--save-model", "--log-interval=100"),
        (
            IMPORT,
            Line("team = prlc.join(JOIN)", at="model = Net()"),
            Line("train_loader = team.shard(train_loader)", at="model = Net()", is_data=True),
            Line("run = team.train(model, optimizer, also=[scheduler])", at="for epoch in"),
            replace(FINISH, at="if args.save_model"),
        ),
        (("../data", images),),
        (
            Line(
                "optimizer = optim.SGD(model.parameters(), lr=0.01)",
                at="optimizer = optim.Adadelta(",
                replaces=True,
            ),
            Line(
                f"dataset1 = torch.utils.data.Subset(dataset1, range({ALIKE * RANKS * 64}))",
                at="train_loader = torch",
            ),
            Line("self.dropout1 = nn.Identity()", at="self.dropout1 = ", replaces=True),
            Line("self.dropout2 = nn.Identity()", at="self.dropout2 = ", replaces=True),
        ),
        joint_arguments=(f"--batch-size={RANKS * 64}",),
    )


def dcgan(examples: Path, images: Path) -> Script:
    """A narrow one, for one pass over the data: 313 steps of both optimizers."""
    given = "dataset=mnist dataroot=images workers=0 ngf=8 ndf=8 niter=1"
    return Script(
        "dcgan",
        examples / "dcgan",
        "main.py",
        tuple(f"--{each}" for each in given.split()),
        (
            replace(IMPORT, at="import argparse"),
            Line("team = prlc.join(JOIN)", at="criterion = "),
            Line("dataloader = team.shard(dataloader)", at="criterion = ", is_data=True),
            Line(
                "run = team.train([netD, netG], [optimizerD, optimizerG])", at="for epoch in range("
            ),
            FINISH,
        ),
        (("images", images),),
    )


# -- in a rank ------------------------------------------------------------------------------------


def joint(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that draws the batches of all workers, as one."""
    parts = [share(function, Part(worker, RANKS, 0), 1)[0] for worker in range(RANKS)]
    return lambda *given: tuple(map(torch.cat, zip(*(part(*given) for part in parts), strict=True)))


class OneForAll(prlc.Team):
    """A process alone that takes the batches of all workers."""

    def __init__(self, *join: Any, **settings: Any) -> None:
        del settings
        super().__init__()
        self._step = -1 if join == (REVERSED,) else 1

    def shard(self, data: Any, *, ahead: int = 0) -> Any:
        del ahead
        if not isinstance(data, DataLoader):
            draw, dims = joint(data), [0] if self._step < 0 else []
            return lambda *given: tuple(part.flip(dims) for part in draw(*given))
        collate = data.collate_fn
        data.collate_fn = lambda samples: collate(samples[:: self._step])
        return data


def loss_of_nanogpt(space: Namespace) -> float:
    """The loss on all of the validation text."""
    model, length = space["model"].eval(), space["block_size"]
    text = torch.from_numpy(np.fromfile(f"{space['data_dir']}/val.bin", np.uint16).astype(np.int64))
    text = text[: (len(text) - 1) // length * length + 1]
    inputs, targets = text[:-1].view(-1, length), text[1:].view(-1, length)
    batches = zip(torch.split(inputs, 100), torch.split(targets, 100), strict=True)
    return sum(float(model(x, y)[1]) * len(x) for x, y in batches) / len(inputs)


def loss_of_mnist(space: Namespace) -> float:
    """The loss on all test data."""
    kinds = space["transforms"]
    changed = kinds.Compose([kinds.ToTensor(), kinds.Normalize((0.1307,), (0.3081,))])
    images = space["datasets"].MNIST("../data", train=False, transform=changed)
    model = space["Net"]()
    model.load_state_dict(final_model(space))
    model.eval()
    batches = DataLoader(images, batch_size=1000)
    return sum(float(nll_loss(model(x), y, reduction="sum")) for x, y in batches) / len(images)


def loss_of_dcgan(space: Namespace) -> float:
    """Both losses of the last batch."""
    return float(space["errD"] + space["errG"])


LOSSES = {"nanoGPT": loss_of_nanogpt, "mnist": loss_of_mnist, "dcgan": loss_of_dcgan}


def final_model(space: Namespace) -> dict[str, Tensor]:
    """What the script ends with, in a variable or in a file that it saves."""
    if "netG" in space:
        return torch.nn.ModuleList([space["netG"], space["netD"]]).state_dict()
    found: dict[str, Tensor]
    found = space["model"].state_dict() if "model" in space else torch.load("mnist_cnn.pt")
    return found


def perform(asked: argparse.Namespace, arguments: list[str]) -> None:
    """Run a changed script in this rank's copy, and write down how it ended."""
    rank = os.environ.get("RANK", "0")
    folder = Path(asked.perform) / rank
    os.chdir(folder / "script")
    (folder / "pid").write_text(str(os.getpid()))
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, asked.dtype))
    if "RANK" not in os.environ:
        prlc.join = OneForAll
    sys.path.insert(0, str(Path.cwd()))
    sys.argv = [asked.file, *arguments]
    space: Namespace = {"__name__": "__main__", "__file__": asked.file}
    exec(compile(Path(asked.file).read_text(), asked.file, "exec"), space)
    model = final_model(space)
    with torch.no_grad():
        loss = LOSSES[asked.name](space) if rank == "0" else math.nan
    digest = hashlib.sha256()
    for tensor in model.values():
        digest.update(tensor.contiguous().numpy().tobytes())
    torch.save(model, folder / "final.pt")
    said = {"loss": loss, "bits": digest.hexdigest(), "steps": space.get("local_iter_num", 0)}
    (folder / "result.json").write_text(json.dumps(said))


# -- outside of them ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How the ranks ended."""

    loss: float
    bits: list[str]
    steps: int
    model: dict[str, Tensor]

    @property
    def agree(self) -> bool:
        return len({*self.bits}) == 1

    def distance(self, other: Ended) -> float:
        return max(float((self.model[n] - other.model[n]).abs().max()) for n in self.model)


def run(
    script: Script,
    method: str,
    *,
    ranks: int = RANKS,
    dtype: str = "float32",
    folder: Path | None = None,
    killed: bool = False,
) -> Ended:
    """Run a script to its end; `killed`: one rank is, after the first checkpoint in `folder`."""
    join = repr(method) + (f", folder={str(folder)!r}, checkpoint_every=50" if folder else "")
    text = script.text(join)
    with tempfile.TemporaryDirectory() as scratch:
        places = [Path(scratch) / str(rank) for rank in range(ranks)]
        for place in places:
            shutil.copytree(
                script.folder, place / "script", ignore=shutil.ignore_patterns("data", ".git")
            )
            for name, source in script.data:
                (place / "script" / name).symlink_to(source.resolve())
            (place / "script" / script.file).write_text(text)
        starter = [sys.executable]
        if ranks > 1:
            starter += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            starter += [f"--max-restarts={int(killed)}"]
        own = ["--perform", scratch, "--name", script.name, "--file", script.file]
        own += ["--dtype", dtype]
        job = subprocess.Popen(
            [*starter, __file__, *own, "--", *script.arguments],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
        )
        if killed:
            assert folder is not None
            while not (folder / "checkpoint.pt").exists() and job.poll() is None:
                time.sleep(0.1)
            if job.poll() is not None:
                raise SystemExit(f"{script.name} ended before its first checkpoint.")
            os.kill(int((places[1] / "pid").read_text()), signal.SIGKILL)
        if job.wait():
            raise SystemExit(f"{script.name} with {method} ended with code {job.returncode}.")
        said = [json.loads((place / "result.json").read_text()) for place in places]
        model = torch.load(places[0] / "final.pt")
    return Ended(said[0]["loss"], [each["bits"] for each in said], said[0]["steps"], model)


def report(what: str, found: str, difference: str) -> None:
    print(f"{what:54} {found:34} {difference}", flush=True)


def compare_with_one(script: Script) -> None:
    """NSGD with SGD inside is gradient descent on the joint batch."""
    changed = script.for_joint_batches
    alone = replace(changed, arguments=(*changed.arguments, *changed.joint_arguments))
    for dtype in ("float32", "float64"):
        one = run(alone, "nsgd", ranks=1, dtype=dtype)
        others = {
            "NSGD": run(changed, "nsgd", dtype=dtype),
            "reversed batches": run(alone, REVERSED, ranks=1, dtype=dtype),
        }
        for name, other in others.items():
            apart, in_loss = other.distance(one), abs(other.loss - one.loss)
            report(
                f"{script.name}: {name} and one process, {dtype}",
                f"{other.loss:.6f} and {one.loss:.6f}",
                f"{apart:.1e} between parameters, {in_loss:.1e} in loss",
            )


def compare_methods(script: Script) -> None:
    """Few pulls, or rounds of ten steps, against all pulls: with SGD inside, and as published."""
    with_sgd = script.with_lines(script.plain[0])
    for inside, changed in (("SGD", with_sgd), ("its own optimizer", script)):
        base = run(changed, "nsgd")
        for method in METHODS:
            found = run(changed, method)
            report(
                f"{script.name}, {inside}: {method} and NSGD",
                f"{found.loss:.4f} and {base.loss:.4f}",
                f"{found.loss / base.loss - 1:+.1%}",
            )


def check_gan(script: Script) -> None:
    for method in ("nsgd", *METHODS):
        found = run(script, method)
        finite = math.isfinite(found.loss) and all(t.isfinite().all() for t in found.model.values())
        report(
            f"{script.name}: {method}",
            f"losses {'finite' if finite else 'NOT FINITE'}",
            "all ranks have the same bits" if found.agree else "RANKS DIFFER",
        )


def check_restart(script: Script) -> None:
    """Killed after a checkpoint and restarted by torchrun, with dropout and the own optimizer."""
    counts = Line("iter_num = run.steps_done", at="X, Y = get_batch('train')")
    random = replace(script.with_lines(counts), arguments=(*script.arguments, "--dropout=0.1"))
    with tempfile.TemporaryDirectory() as scratch:
        whole = run(random, "prlc:0.1", folder=Path(scratch) / "whole")
        again = run(random, "prlc:0.1", folder=Path(scratch) / "again", killed=True)
    report(
        f"{script.name}: prlc:0.1, killed and restarted",
        f"the last process took {again.steps} of {whole.steps} steps",
        "the same bits" if whole.bits == again.bits else "OTHER BITS",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nanogpt", type=Path, help="a checkout of karpathy/nanoGPT")
    parser.add_argument("--examples", type=Path, help="a checkout of pytorch/examples")
    parser.add_argument("--images", type=Path, help="where torchvision finds MNIST")
    parser.add_argument("--steps", type=int, default=300, help="for nanoGPT")
    parser.add_argument("--only", nargs="+", choices=["nanoGPT", "mnist", "dcgan"])
    for hidden in ("--perform", "--name", "--file", "--dtype"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    own = sys.argv[1:]
    end = own.index("--") if "--" in own else len(own)
    asked = parser.parse_args(own[:end])
    if asked.perform:
        perform(asked, own[end + 1 :])
        return
    scripts = [nanogpt(asked.nanogpt, asked.steps)] if asked.nanogpt else []
    if asked.examples and asked.images:
        scripts += [mnist(asked.examples, asked.images), dcgan(asked.examples, asked.images)]
    if not scripts:
        parser.error("give --nanogpt, or --examples and --images")
    for script in scripts:
        if script.name not in (asked.only or [script.name]):
            continue
        added = [line for line in script.lines if not line.is_data]
        report(f"{script.name}: lines added", "", f"{len(added)}, and 1 for data")
        if script.name == "dcgan":
            check_gan(script)
            continue
        compare_with_one(script)
        compare_methods(script)
        if script.name == "nanoGPT":
            check_restart(script)


if __name__ == "__main__":
    main()
