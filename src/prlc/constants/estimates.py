"""What a measurement gives: numbers with intervals, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from prlc.theory import Constants

__all__ = ["Cost", "Estimate", "MeasuredConstants", "Point"]

Row = tuple[str, str, str, str]


@dataclass(frozen=True)
class Estimate:
    """A number, an interval around it (about 95%, unless `how` says a bound) and its origin."""

    value: float
    low: float
    high: float
    how: str


@dataclass(frozen=True)
class Cost:
    """What the measurement took.

    `gradients` counts gradients of a single sample; a Hessian-vector product of a sample counts
    as two, a loss without gradient as a third.
    """

    gradients: int
    seconds: float = field(compare=False)


@dataclass(frozen=True)
class Point:
    """What was found at one model: the start, or a step of the short SGD run."""

    step: int
    loss: float
    gradient_norm: float
    curvature: float
    """The Hessian eigenvalue of largest absolute value, with its sign."""
    lowest_curvature: float
    """The smallest Hessian eigenvalue found; converged only if the strong convexity was asked."""
    residual: float
    """|H v - curvature v|: an eigenvalue is that close."""
    products: int
    """Hessian-vector products used."""
    variance: float

    @property
    def name(self) -> str:
        return "the start" if self.step == 0 else f"step {self.step}"


@dataclass(frozen=True)
class MeasuredConstants:
    """The constants of one problem at one batch size. `notes` are cautions worth printing."""

    smoothness: Estimate
    variance: Estimate
    gradient_bound: Estimate
    gradient_quantile: Estimate
    """The norm that 99% of the minibatch gradients stay below."""
    initial_gap: Estimate
    strong_convexity: Estimate | None
    batch_size: int
    points: tuple[Point, ...]
    notes: tuple[str, ...]
    cost: Cost

    def constants(self) -> Constants:
        """The values for the formulas of prlc.theory.

        The strong convexity is left out if its interval reaches down to zero.
        """
        mu = self.strong_convexity
        return Constants(
            smoothness=self.smoothness.value,
            variance=self.variance.value,
            gradient_bound=self.gradient_bound.value,
            initial_gap=self.initial_gap.value,
            strong_convexity=mu.value if mu is not None and mu.low > 0 else None,
        )

    def table(self) -> list[Row]:
        """Rows of (name, value, interval, how), ready to print."""
        named = [
            ("smoothness L", self.smoothness),
            (f"variance sigma^2 at batch size {self.batch_size}", self.variance),
            ("gradient bound G", self.gradient_bound),
            ("99% quantile of gradient norms", self.gradient_quantile),
            ("initial gap Delta", self.initial_gap),
        ]
        if self.strong_convexity is not None:
            named.append(("strong convexity mu", self.strong_convexity))
        return [(name, f"{e.value:.4g}", f"{e.low:.4g} to {e.high:.4g}", e.how)
                for name, e in named]  # fmt: skip
