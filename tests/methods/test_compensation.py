"""Compensations by hand: pure functions over a leading axis of workers (rule_19)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from prlc.methods.compensation import (
    COMPENSATIONS,
    Ahead,
    AheadBySignal,
    Compensation,
    Context,
    GainCorrection,
    Proximal,
    Pulled,
    SignalToNoise,
    State,
    Window,
    parse_compensation,
)

CONTEXT = Context(num_workers=4, every=2, interval=6.0)
P, N = 3, 5


def rows(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape or (P, N), generator=generator, dtype=torch.float64)


def window(seed: int, count: int = P) -> Window:
    lr = torch.full((count,), 0.3, dtype=torch.float64)
    return Window(rows(seed, count, N), lr, torch.full((count,), 3.0, dtype=torch.float64))


def hints() -> Tensor:
    return torch.tensor([1.0, 3.0], dtype=torch.float64)


@pytest.mark.parametrize("name", COMPENSATIONS)
def test_states_are_given_back_not_changed_rule_19(name: str) -> None:
    part = parse_compensation(name)
    state = part.init(rows(0), CONTEXT)
    before = {key: value.clone() for key, value in state.items()}
    part.correct(state, rows(1), rows(2))
    part.move(state, rows(1), 0.1)
    new, own = part.use(
        state, Pulled(rows(3), rows(8), window(4), window(5), hints(), rows(9), rows(10)), CONTEXT
    )
    pushed, _, _ = part.push(state, rows(2), window(5), CONTEXT)
    assert pushed.keys() == before.keys()
    assert all(torch.equal(state[key], value) for key, value in before.items())
    assert new.keys() == before.keys()
    assert own.shape == (P, N)
    assert parse_compensation(str(part)) == part


@pytest.mark.parametrize("name", COMPENSATIONS)
def test_workers_together_are_workers_alone_rule_19(name: str) -> None:
    part = parse_compensation(name)

    def some(chosen: slice) -> tuple[State, Tensor, Tensor]:
        state = part.init(rows(0)[chosen], CONTEXT)
        since, seen = (
            Window(w.total[chosen], w.lr[chosen], w.steps[chosen]) for w in (window(4), window(5))
        )
        for seed in (3, 6):
            own, extra, left = (rows(seed + k)[chosen] for k in (1, 2, 10))
            state, own, _ = part.push(state, own, seen, CONTEXT)
            pulled = Pulled(rows(seed)[chosen], own, since, seen, hints(), extra, left)
            state, own = part.use(state, pulled, CONTEXT)
        state, corrected = part.correct(state, rows(7)[chosen], own)
        return state, own, part.move(state, corrected, 0.1)

    together = some(slice(None))
    for i in range(P):
        alone = some(slice(i, i + 1))
        for key, value in alone[0].items():
            torch.testing.assert_close(value[0], together[0][key][i])
        for ours, theirs in zip(alone[1:], together[1:], strict=True):
            torch.testing.assert_close(ours[0], theirs[i])


def test_what_arrives_is_taken_with_the_own_share_since_rule_2() -> None:
    for text, share in (("hold", 0.0), ("own", 1.0), ("share,0.25", 0.25)):
        part = parse_compensation(text)
        _, own = part.use({}, Pulled(rows(3), since=window(4)), CONTEXT)
        torch.testing.assert_close(own, rows(3) + share * window(4).total)
        _, own = part.use({}, Pulled(rows(3)), CONTEXT)
        assert torch.equal(own, rows(3))
        torch.testing.assert_close(part.move({}, rows(1), 0.1), share * rows(1))


def test_signal_to_noise_by_hand_rule_14() -> None:
    """Pushes of H = 2 updates by P = 4: |mean|^2 = H^2 S + H N / P, mean |.|^2 = H^2 S + H N."""
    S, noise, k = 0.5, 3.0, CONTEXT.interval
    sent = torch.tensor([4 * S + 2 * noise / 4, 4 * S + 2 * noise], dtype=torch.float64)
    part = SignalToNoise()
    state = part.init(rows(0), CONTEXT)
    assert state["gain"].tolist() == [1.0] * P, "until the first pull the own update is taken"
    state, own = part.use(state, Pulled(rows(3), since=window(4), hints=sent), CONTEXT)
    gain = (k * S + noise / 4) / (k * S + noise)
    assert state["gain"].tolist() == pytest.approx([gain] * P)
    torch.testing.assert_close(own, rows(3) + gain * window(4).total)


@pytest.mark.parametrize(
    ("sent", "gain"),
    [((1.0, 1.0), 1.0), ((0.25, 1.0), 0.25), ((0.1, 1.0), 0.25), ((0.0, 0.0), 1.0)],
    ids=["all signal", "all noise", "less than noise", "nothing"],
)
def test_signal_to_noise_at_its_ends(sent: tuple[float, float], gain: float) -> None:
    """All signal: the own update is everybody's. All noise: a P-th of it is."""
    part = SignalToNoise()
    numbers = torch.tensor(sent, dtype=torch.float64)
    state, _ = part.use(part.init(rows(0), CONTEXT), Pulled(rows(3), hints=numbers), CONTEXT)
    assert state["gain"].tolist() == pytest.approx([gain] * P)


def test_ahead_adds_the_own_part_of_what_is_still_to_come_rule_2() -> None:
    part = Ahead()
    state = part.init(rows(0), CONTEXT)
    pulled = Pulled(rows(3), since=window(4), residual=rows(5))
    _, own = part.use(state, pulled, CONTEXT)
    torch.testing.assert_close(own, rows(3) + (window(4).total + rows(5)) / 4)
    torch.testing.assert_close(part.move(state, rows(1), 0.1), rows(1) / 4)


def test_ahead_by_signal_takes_as_much_of_what_is_left_as_of_its_updates() -> None:
    part = AheadBySignal()
    pulled = Pulled(rows(3), since=window(4), hints=hints(), residual=rows(5))
    state, own = part.use(part.init(rows(0), CONTEXT), pulled, CONTEXT)
    gain = float(state["gain"][0])
    told = Pulled(rows(3), since=window(4), hints=hints())
    plain, _ = SignalToNoise().use(part.init(rows(0), CONTEXT), told, CONTEXT)
    assert 1 / P < gain == float(plain["gain"][0]) < 1
    torch.testing.assert_close(own, rows(3) + gain * (window(4).total + rows(5)))


def test_gain_correction_by_hand() -> None:
    """Two pulls of PRLC-GC, written out."""
    part = GainCorrection(beta=0.1, rho=0.5, lam=0.2)
    start, first, second = rows(0, 1, N), rows(1, 1, N), rows(2, 1, N)
    U1, U2 = window(4, 1), window(5, 1)
    state, own = part.use(part.init(start, CONTEXT), Pulled(first, window=U1), CONTEXT)
    assert torch.equal(own, first)

    def theta_of(xy: Tensor, xx: Tensor) -> float:
        return min(1.2, max(0.0, float((xy + 0.2 * xx) / (1.2 * xx))))

    Y1, X1 = first - start, U1.total  # nothing is corrected yet
    drift = (U1.total - Y1) / 0.3  # the first pull is taken whole
    torch.testing.assert_close(state["drift"], drift)
    xy, xx = (X1 * Y1).sum(), (X1 * X1).sum()
    assert float(state["theta"]) == pytest.approx(theta_of(xy, xx))
    state, own = part.use(state, Pulled(second, since=window(6, 1), window=U2), CONTEXT)
    Y2, X2 = second - first, U2.total - 0.3 * drift
    xy, xx = 0.5 * xy + (X2 * Y2).sum(), 0.5 * xx + (X2 * X2).sum()
    theta = theta_of(xy, xx)
    assert float(state["theta"]) == pytest.approx(theta)
    fresh = 1 - 0.9**3
    drift = (1 - fresh) * drift + fresh * (U2.total - Y2) / 0.3
    torch.testing.assert_close(state["drift"], drift)
    torch.testing.assert_close(own, second + theta * (window(6, 1).total - 0.3 * drift))
    update = rows(7, 1, N)
    torch.testing.assert_close(part.move(state, update, 0.05), theta * (update - 0.05 * drift))


def test_gain_correction_learns_what_repeats() -> None:
    """Where a worker always does twice what everybody does, half of it is taken."""
    part = GainCorrection(beta=1e-9, lam=0.0)
    state = part.init(torch.zeros(1, N, dtype=torch.float64), CONTEXT)
    state["pulls"] += 1  # so that the drift stays where it is: none
    model = torch.zeros(1, N, dtype=torch.float64)
    for seed in range(4):
        own = window(seed, 1)
        model = model + own.total / 2
        state, _ = part.use(state, Pulled(model, window=own), CONTEXT)
    assert float(state["theta"]) == pytest.approx(0.5, abs=1e-6)


def test_proximal_gradients_point_back_to_the_last_model_used_rule_19() -> None:
    part = Proximal(0.5)
    state = part.init(rows(0), CONTEXT)
    torch.testing.assert_close(
        part.correct(state, rows(1), rows(2))[1], rows(1) + 0.5 * (rows(2) - rows(0))
    )
    state, own = part.use(state, Pulled(rows(3), since=window(4)), CONTEXT)
    assert torch.equal(part.correct(state, rows(1), own)[1], rows(1)), "the anchor is what is used"


def test_only_those_that_ask_are_told() -> None:
    asking = {name for name, kind in COMPENSATIONS.items() if kind.needs_hints}
    looking = {name for name, kind in COMPENSATIONS.items() if kind.needs_window}
    correcting = {name for name, kind in COMPENSATIONS.items() if kind.corrects}
    assert (asking, looking, correcting) == ({"snr", "ahead-snr"}, {"gc"}, {"prox", "scaffold"})
    assert all(issubclass(kind, Compensation) for kind in COMPENSATIONS.values())
