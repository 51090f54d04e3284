"""The engines against the algorithms written out, with no help but the draws."""

from __future__ import annotations

import math
from functools import cache
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from prlc.draws import Purpose, bits, uniform
from prlc.encodings import Down, Draw, Grid, TopK
from prlc.engines import Job
from prlc.methods import (
    ASGD,
    CMFL,
    EF21P,
    LAGPS,
    LAGWK,
    LAQ,
    NSGD,
    PR,
    PRLC,
    QSGD,
    SCAFFOLD,
    SSP,
    STC,
    DeMo,
    DiLoCo,
    EagerDiLoCo,
    LocalSGD,
    Method,
    SparseLoCo,
    StreamingDiLoCo,
    parse_method,
)
from prlc.optim.optimizers import SERVER_OPTIMIZERS, choose

from .builders import ENGINES, SIMULATOR_FIRST, arrivals_of, global_tensors, job_of, run

P, STEPS, SEED = 6, 50, 1
Vector = NDArray[np.float64]


class Problem:
    """Softmax regression in numpy: its gradients are four lines."""

    def __init__(self, job: Job) -> None:
        self.batches, self.lr = job.batches(), job.lr
        self.X = job.data.train_inputs.flatten(1).numpy()
        self.Y = np.eye(10)[job.data.train_targets.numpy()]
        self.start = weights([tensor.detach() for tensor in job.model.parameters()])

    def gradient(self, w: Vector, worker: int, step: int) -> Vector:
        chosen = self.batches.take(np.array([worker]), np.array([step]))[0]
        X = np.hstack([self.X[chosen], np.ones((len(chosen), 1))])
        scores = np.exp(X @ w)
        wrong = scores / scores.sum(1, keepdims=True) - self.Y[chosen]
        result: Vector = X.T @ wrong / len(chosen)
        return result


@cache
def algorithm_1(r: float, *, compensate: bool) -> Vector:
    """PRLC; without compensation, Algorithm 2 (PR)."""
    problem = Problem(job_of(NSGD(), seed=SEED))
    w = problem.start
    w_i = [w] * P
    for t in range(STEPS):
        eta = problem.lr(t)
        g = [problem.gradient(w_i[i], i, t) for i in range(P)]
        w = w - eta * np.mean(g, 0)
        for i in range(P):
            if uniform(SEED, Purpose.PULL, i, t) < r:
                w_i[i] = w
            elif compensate:
                w_i[i] = w_i[i] - eta * g[i]
    return w


def averaging(problem: Problem, H: int) -> Vector:
    """Local SGD: every H steps the workers' models are replaced by their average."""
    w, w_i = problem.start, [problem.start] * P
    for t in range(STEPS):
        w_i = [w_i[i] - problem.lr(t) * problem.gradient(w_i[i], i, t) for i in range(P)]
        if (t + 1) % H == 0:
            w = np.mean(w_i, 0)
            w_i = [w] * P
    return w


def lag(problem: Problem, xi: float, D: int, L: float | None) -> tuple[Vector, list[int]]:
    """LAG in the sum form of its authors: alpha = eta / M; with L it is LAG-PS, else LAG-WK."""
    theta, M = problem.start, P
    history, pushes = [theta], []
    theta_hat = [theta] * M
    last: list[Vector] = [np.zeros_like(theta)] * M
    for k in range(STEPS):
        alpha = problem.lr(k) / M
        steps = [np.sum((b - a) ** 2) for a, b in pairwise(history)][-D:]
        right = xi / (alpha**2 * M**2) * sum(steps)
        pushes.append(0)
        for m in range(M):
            if L is not None:  # (15b)
                if k > 0 and L**2 * np.sum((theta_hat[m] - theta) ** 2) <= right:
                    continue
                theta_hat[m], fresh = theta, problem.gradient(theta, m, k)
            else:  # (15a)
                fresh = problem.gradient(theta, m, k)
                if k > 0 and np.sum((last[m] - fresh) ** 2) <= right:
                    continue
            last[m] = fresh
            pushes[-1] += 1
        theta = theta - alpha * np.sum(last, 0)
        history.append(theta)
    return theta, pushes


def laq(problem: Problem, xi: float, D: int, t_bar: float, b: int) -> tuple[Vector, list[int]]:
    """Algorithm 2 of Sun et al. 2019 in its sum form, alpha = eta / M; the server keeps the sum."""
    theta, M = problem.start, P
    tau = 1 / (2**b - 1)
    history, pushes = [theta], []
    Q, eps, t = [np.zeros(650)] * M, [0.0] * M, [0] * M
    nabla = np.zeros(650)
    for k in range(STEPS):
        alpha = problem.lr(k) / M
        steps = [np.sum((b - a) ** 2) for a, b in pairwise(history)][-D:]
        pushes.append(0)
        for m in range(M):
            g = flat(problem.gradient(theta, m, k))
            R = float(np.float32(np.abs(g - Q[m]).max()))  # travels in 32 bits
            q = np.floor((g - Q[m] + R) / (2 * tau * R) + 0.5)  # (5)
            delta = 2 * tau * R * np.clip(q, 0, 2**b - 1) - R  # (6)
            error = np.sum((g - (Q[m] + delta)) ** 2)
            right = xi / (alpha**2 * M**2) * sum(steps) + 3 * (error + eps[m])
            t[m] += 1
            if k > 0 and np.sum(delta**2) <= right and t[m] < t_bar:  # (7)
                continue
            nabla = nabla + delta
            Q[m], eps[m], t[m] = Q[m] + delta, error, 0
            pushes[-1] += 1
        theta = theta - alpha * unflat(nabla)
        history.append(theta)
    return theta, pushes


def cmfl(problem: Problem, v: float, *, decays: bool) -> tuple[Vector, list[int]]:
    """Wang et al. 2019 with one local step: only relevant updates are averaged."""
    w, last, pushes = problem.start, None, []
    for t in range(STEPS):
        u = [-problem.lr(t) * problem.gradient(w, i, t) for i in range(P)]
        relevant = list(range(P))
        if last is not None:
            e = [np.mean(np.sign(u_i) == np.sign(last)) for u_i in u]
            v_t = v / np.sqrt(t) if decays else v
            drawn = int(bits(SEED, Purpose.ALWAYS_PUSHES, t)) % P
            relevant = [i for i in range(P) if e[i] >= v_t or i == drawn]
        last = np.mean([u[i] for i in relevant], 0)
        w = w + last
        pushes.append(len(relevant))
    return w, pushes


def asynchronous(job: Job, *, staleness_aware: bool = False, s: float = math.inf) -> Vector:
    """ASGD; within a window s, SSP (Ho et al. 2013): who is ahead reads when it no longer is."""
    problem = Problem(job)
    w, w_i, clock = problem.start, [problem.start] * P, [0] * P
    pulled, blocked = [0] * P, set[int]()
    for k, arrival in enumerate(islice(arrivals_of(job), P * STEPS)):
        i = arrival.worker
        assert i not in blocked
        share = 1 / (1 + k - pulled[i]) if staleness_aware else 1 / P
        w = w - problem.lr(k // P) * share * problem.gradient(w_i[i], i, clock[i])
        clock[i] += 1
        blocked.add(i)
        for j in [j for j in blocked if clock[j] - min(clock) <= s]:
            w_i[j], pulled[j] = w, k + 1
            blocked.remove(j)
    return w


def flat(w: Vector) -> Vector:
    """As a message has it: the weight's rows, then the bias."""
    return np.concatenate([w[:-1].T.ravel(), w[-1]])


def unflat(v: Vector) -> Vector:
    return np.vstack([v[:-10].reshape(10, -1).T, v[-10:]])


def sent_whole(values: Vector) -> Vector:
    """As 32 bits of a message hold them."""
    return values.astype(np.float32).astype(np.float64)


def in_16_bits(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).to(torch.bfloat16))


def largest(v: Vector, k: int) -> Vector:
    chosen = np.argsort(-np.abs(v), kind="stable")[:k]
    kept = np.zeros_like(v)
    kept[chosen] = v[chosen]
    return kept


def diloco(problem: Problem, H: int, outer_lr: float, momentum: float) -> Vector:
    """Algorithm 1 of Douillard et al. 2023, with plain SGD inside and Nesterov outside."""
    theta, m = problem.start, np.zeros_like(problem.start)
    for t in range(STEPS // H):
        deltas = []
        for i in range(P):
            inner = theta
            for h in range(t * H, (t + 1) * H):
                inner = inner - problem.lr(h) * problem.gradient(inner, i, h)
            deltas.append(theta - inner)
        delta = np.mean(deltas, 0)  # the outer gradient
        m = momentum * m + delta
        theta = theta - outer_lr * (delta + momentum * m)
    return theta


def qsgd(problem: Problem, bucket: int) -> Vector:
    """Alistarh et al. 2017, eq. 3.1 with s = 127 in buckets; everybody applies the mean."""
    w, s = problem.start, np.float32(127)
    for t in range(STEPS):
        total = np.zeros(650)
        for i in range(P):
            v = flat(-problem.lr(t) * problem.gradient(w, i, t))
            draw = Draw(SEED, Purpose.ENCODE_UP, np.array([i]), t)
            for number, start in enumerate(range(0, 650, bucket)):
                part = v[start : start + bucket]
                uniform_ = draw.uniform(number, 1, len(part), torch.device("cpu"))[0, 0].numpy()
                norm = np.float32(np.sqrt(np.sum(part**2)))  # travels in 32 bits
                level = np.floor(np.abs(part) * np.float64(s / norm) + uniform_)
                total[start : start + bucket] += np.float64(norm / s) * np.sign(part) * level
        w = w + unflat(total / P)
    return w


def sparseloco(problem: Problem, H: int, k: int, beta: float) -> Vector:
    """Algorithm 1 of Sarfi et al. 2025: top-k of a chunk in 2 bits, error feedback, no momentum."""
    theta, e = problem.start, [np.zeros(650)] * P
    for t in range(STEPS // H):
        messages = []
        for i in range(P):
            inner = theta
            for h in range(t * H, (t + 1) * H):
                inner = inner - problem.lr(h) * problem.gradient(inner, i, h)
            e[i] = beta * e[i] + flat(theta - inner)
            kept = largest(e[i], k)
            sizes = np.abs(kept[kept != 0])
            low, high = in_16_bits(sizes.min()), in_16_bits(sizes.max())
            # A sign, and which half of the range: sent as the middle of that half.
            upper = np.abs(kept) >= (low + high) / 2
            c = np.sign(kept) * (low + (high - low) * np.where(upper, 0.75, 0.25))
            e[i] = e[i] - c
            messages.append(c)
        theta = theta - unflat(np.mean(messages, 0))
    return theta


def ef21_p(problem: Problem, k: int) -> Vector:
    """Gruntkowska et al. 2023, Algorithm 1 with stochastic gradients: one state for all."""
    x, w = problem.start, problem.start
    for t in range(STEPS):
        x = x - problem.lr(t) * np.mean([problem.gradient(w, i, t) for i in range(P)], 0)
        w = w + unflat(sent_whole(largest(flat(x - w), k)))
    return x


def locally(problem: Problem, start: Vector, i: int, steps: range) -> Vector:
    """A worker's model after some steps of its own."""
    for h in steps:
        start = start - problem.lr(h) * problem.gradient(start, i, h)
    return start


def scaffold(problem: Problem, K: int, option: int, sampled: list[list[int]]) -> Vector:
    """Algorithm 1 of Karimireddy et al. 2020 with a global step of 1; `sampled` by round."""
    x, c = problem.start, np.zeros_like(problem.start)
    c_i = [np.zeros_like(x)] * P
    for r, S in enumerate(sampled):
        dy, dc = [], []
        for i in S:
            y, first = x, problem.gradient(x, i, r * K)
            for h in range(r * K, (r + 1) * K):
                y = y - problem.lr(h) * (problem.gradient(y, i, h) - c_i[i] + c)
            lr_sum = sum(problem.lr(h) for h in range(r * K, (r + 1) * K))
            fresh = first if option == 1 else c_i[i] - c + (x - y) / lr_sum
            dy.append(y - x)
            dc.append(fresh - c_i[i])
            c_i[i] = fresh
        x = x + np.mean(dy, 0)
        c = c + len(S) / P * np.mean(dc, 0)
    return x


def stc(problem: Problem, k: int) -> Vector:
    """Algorithm 2 of Sattler et al. 2019: residuals at workers and server; all take part."""

    def ternary(v: Vector) -> Vector:
        sizes = torch.from_numpy(np.abs(v)).to(torch.bfloat16).double().numpy()  # ranked like this
        chosen = np.argsort(-sizes, kind="stable")[:k]
        sent = np.zeros_like(v)
        sent[chosen] = np.sign(v[chosen]) * np.float64(np.float32(np.abs(v[chosen]).mean()))
        return sent

    w, R, R_i = problem.start, np.zeros(650), [np.zeros(650)] * P
    x = w
    for t in range(STEPS):
        messages = []
        for i in range(P):
            R_i[i] = R_i[i] + flat(-problem.lr(t) * problem.gradient(w, i, t))
            messages.append(ternary(R_i[i]))
            R_i[i] = R_i[i] - messages[-1]
        x = x + unflat(np.mean(messages, 0))  # what we evaluate; the paper evaluates w
        R = R + np.mean(messages, 0)
        sent = ternary(R)
        R, w = R - sent, w + unflat(sent)
    return x


def demo(problem: Problem, k: int, beta: float, transform: bool) -> Vector:
    """Algorithm 1 of Peng et al. 2024 with one chunk: a sign step along what was gathered."""
    n = np.arange(650)
    C = np.cos(np.pi * n[:, None] * (2 * n + 1) / 1300) * np.sqrt(2 / 650)
    C[0] /= np.sqrt(2)
    C = C if transform else np.eye(650)
    w, m = problem.start, [np.zeros(650)] * P
    for t in range(STEPS):
        q = []
        for i in range(P):
            m[i] = beta * m[i] + flat(problem.lr(t) * problem.gradient(w, i, t))
            q.append(C.T @ sent_whole(largest(C @ m[i], k)))
            m[i] = m[i] - q[-1]
        total = np.sum(q, 0)
        w = w - problem.lr(t) * unflat(np.sign(total) * (np.abs(total) > 0))
    return w


def streaming(problem: Problem, H: int, tau: int, alpha: float) -> Vector:
    """Algorithm 2 of Douillard et al. 2025 with two fragments: the weight, then the bias."""
    theta, m = problem.start, np.zeros_like(problem.start)
    x = [theta] * P
    anchor, under_way = theta, {}
    rows = [slice(0, -1), slice(-1, None)]  # of our matrices
    for t in range(STEPS):
        x = [locally(problem, x[i], i, range(t, t + 1)) for i in range(P)]
        due = [p for p in (0, 1) if (t + 1) % H == ((p + 1) * H // 2) % H]
        due = [0, 1] if t == STEPS - 1 else due
        for p in due:
            part = rows[p]
            delta = anchor[part] - np.mean([each[part] for each in x], 0)
            m, theta = m.copy(), theta.copy()
            m[part] = 0.9 * m[part] + delta
            theta[part] = theta[part] - 0.7 * (delta + 0.9 * m[part])
            under_way[t + tau, p] = theta[part].copy()
        for (when, p), arrived in list(under_way.items()):
            if when == t:
                part = rows[p]
                x = [each.copy() for each in x]
                anchor = anchor.copy()
                anchor[part] = arrived
                for each in x:
                    each[part] = alpha * each[part] + (1 - alpha) * arrived
                del under_way[when, p]
    return theta


def eager(problem: Problem, H: int) -> Vector:
    """Algorithm 2 of Kale et al. 2025: an outer model and a momentum for each worker."""
    theta, m = [problem.start] * P, [np.zeros_like(problem.start)] * P
    served, momentum = problem.start, np.zeros_like(problem.start)
    before = [np.zeros_like(problem.start)] * P
    for t in range(STEPS // H):
        steps = range(t * H, (t + 1) * H)
        delta = [theta[i] - locally(problem, theta[i], i, steps) for i in range(P)]
        for i in range(P):
            others = sum(before[j] for j in range(P) if j != i)
            fed = (delta[i] + others) / P
            m[i] = 0.9 * m[i] + fed
            theta[i] = theta[i] - 0.4 * (fed + 0.9 * m[i])
        before = delta
        momentum = 0.9 * momentum + np.mean(delta, 0)
        served = served - 0.4 * (np.mean(delta, 0) + 0.9 * momentum)
    return served


def constant_lr(_: int) -> float:
    return 0.05


def weights(tensors: list[Tensor]) -> Vector:
    weight, bias = tensors
    return torch.cat([weight.T, bias[None]]).numpy()


def trained(engine: str, job: Job) -> Vector:
    made = ENGINES[engine](job)
    run(made, STEPS)
    return weights(global_tensors(made))


@pytest.mark.parametrize("engine", SIMULATOR_FIRST)
class TestAsWritten:
    @pytest.mark.parametrize("r", [0.05, 0.4])
    def test_prlc_and_pr(self, engine: str, r: float) -> None:
        for method in (PRLC(r), PR(r)):
            job = job_of(method, seed=SEED)
            expected = algorithm_1(r, compensate=isinstance(method, PRLC))
            assert np.abs(trained(engine, job) - expected).max() < 1e-12

    @pytest.mark.parametrize("method", [LocalSGD(5), PRLC(1.0, every=5)], ids=str)
    def test_local_sgd_averages_models(self, engine: str, method: Method) -> None:
        job = job_of(method)
        expected = averaging(Problem(job), H=5)
        assert np.abs(trained(engine, job) - expected).max() < 1e-12

    @pytest.mark.parametrize(
        "method",
        [LAGWK(xi=0.8, window=3), LAGPS(xi=1.0, smoothness=1.5), LAGPS(0.5, 4, smoothness=4.0)],
        ids=repr,
    )
    def test_lag_in_its_sum_form(self, engine: str, method: LAGWK | LAGPS) -> None:
        job = job_of(method, lr=constant_lr, batch_size=16)
        smoothness = method.smoothness if isinstance(method, LAGPS) else None
        expected, pushes = lag(Problem(job), method.xi, method.window, smoothness)
        assert P < sum(pushes) < P * STEPS, "some should be skipped"
        made = ENGINES[engine](job)
        assert [int(report.pushes.sum()) for report in run(made, STEPS)] == pushes
        assert np.abs(weights(global_tensors(made)) - expected).max() < 1e-12

    @pytest.mark.parametrize(("xi", "D", "t_bar", "b"), [(0.8, 3, 100, 4), (3.0, 10, 4, 3)])
    def test_laq(self, engine: str, xi: float, D: int, t_bar: int, b: int) -> None:
        """With one chunk, as published."""
        method = LAQ(xi, D, t_bar, Grid(b, chunk=650))
        job = job_of(method, lr=constant_lr, batch_size=16)
        expected, pushes = laq(Problem(job), xi, D, t_bar, b)
        assert P < sum(pushes) < 0.9 * P * STEPS, "some should be skipped"
        made = ENGINES[engine](job)
        assert [int(report.pushes.sum()) for report in run(made, STEPS)] == pushes
        assert np.abs(weights(global_tensors(made)) - expected).max() < 1e-12

    @pytest.mark.parametrize(("threshold", "decay"), [(0.6, False), (2 / 3, True)])
    def test_cmfl(self, engine: str, threshold: float, decay: bool) -> None:
        job = job_of(CMFL(threshold, decay), seed=SEED)
        expected, pushes = cmfl(Problem(job), threshold, decays=decay)
        assert P < sum(pushes) < P * STEPS, "some should be skipped"
        made = ENGINES[engine](job)
        assert [int(report.pushes.sum()) for report in run(made, STEPS)] == pushes
        assert np.abs(weights(global_tensors(made)) - expected).max() < 1e-12

    def test_diloco(self, engine: str) -> None:
        job = job_of(DiLoCo(5), server_optimizer=SERVER_OPTIMIZERS["nesterov"])
        expected = diloco(Problem(job), H=5, outer_lr=0.7, momentum=0.9)
        assert np.abs(trained(engine, job) - expected).max() < 1e-12

    def test_qsgd(self, engine: str) -> None:
        job = job_of(QSGD())
        assert np.abs(trained(engine, job) - qsgd(Problem(job), bucket=512)).max() < 1e-12

    def test_sparseloco(self, engine: str) -> None:
        job = job_of(SparseLoCo(5))
        expected = sparseloco(Problem(job), H=5, k=10, beta=0.95)
        assert np.abs(trained(engine, job) - expected).max() < 1e-12

    def test_ef21_p(self, engine: str) -> None:
        job = job_of(EF21P(down=Down(TopK(0.02, bits=32))))
        assert np.abs(trained(engine, job) - ef21_p(Problem(job), k=13)).max() < 1e-12

    @pytest.mark.parametrize("option", [1, 2])
    @pytest.mark.parametrize("sample", [1.0, 0.5])
    def test_scaffold(self, engine: str, option: int, sample: float) -> None:
        job = job_of(SCAFFOLD(5, option, sample=sample))
        turns = [job.timetable()[t].computes for t in range(0, STEPS, 5)]
        sampled = [np.flatnonzero(who).tolist() for who in turns]
        expected = scaffold(Problem(job), 5, option, sampled)
        assert np.abs(trained(engine, job) - expected).max() < 1e-12

    def test_stc(self, engine: str) -> None:
        job = job_of(STC(0.1))
        assert np.abs(trained(engine, job) - stc(Problem(job), k=65)).max() < 1e-12

    @pytest.mark.parametrize("transform", [False, True])
    def test_demo(self, engine: str, transform: bool) -> None:
        job = job_of(DeMo(0.2, transform=transform), server_optimizer=SERVER_OPTIMIZERS["sign"])
        expected = demo(Problem(job), k=130, beta=0.999, transform=transform)
        assert np.abs(trained(engine, job) - expected).max() < 1e-12

    def test_streaming_diloco(self, engine: str) -> None:
        method = parse_method("streaming-diloco:8:delay=3:up=plain:meanwhile=mix,0.4")
        job = job_of(method, server_optimizer=SERVER_OPTIMIZERS["nesterov"], steps=STEPS)
        assert isinstance(method, StreamingDiLoCo)
        expected = streaming(Problem(job), H=8, tau=3, alpha=0.4)
        assert np.abs(trained(engine, job) - expected).max() < 1e-12

    def test_eager_diloco(self, engine: str) -> None:
        outer = choose(EagerDiLoCo.server, SERVER_OPTIMIZERS, "server")
        job = job_of(EagerDiLoCo(5), server_optimizer=outer)
        assert np.abs(trained(engine, job) - eager(Problem(job), H=5)).max() < 1e-12

    @pytest.mark.parametrize("staleness_aware", [False, True])
    def test_asgd(self, engine: str, staleness_aware: bool) -> None:
        job = job_of(ASGD(staleness_aware))
        expected = asynchronous(job, staleness_aware=staleness_aware)
        assert np.abs(trained(engine, job) - expected).max() < 1e-12

    @pytest.mark.parametrize("s", [0, 2])
    def test_ssp(self, engine: str, s: int) -> None:
        job = job_of(SSP(s))
        assert np.abs(trained(engine, job) - asynchronous(job, s=s)).max() < 1e-12
        assert np.abs(trained(engine, job) - trained(engine, job_of(ASGD()))).max() > 1e-6
