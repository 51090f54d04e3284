"""The theorems of the paper as functions: step sizes, constants, bounds, stability.

theorems_prlc.py     Theorems 1 and 2 (PRLC), Theorem 5 (strongly convex)
theorems_pr_asgd.py  Theorem 3 (PR), Theorem 4 (ASGD)
proved.py            sharper bounds with complete proofs, not in the paper
printed.py           the paper's own wording, where its proofs give something else
stability.py         exact behaviour on a quadratic: stable step sizes, noise floors
quantities.py        constants of an objective, checks of arguments, ages of models
measure/             these constants, measured for a model and its data

The theorems are in the form that their proofs give. Scalars in give a float, arrays in give a
broadcast array. docs/theory.md explains what each result says, and what it does not.
"""

from __future__ import annotations

from . import printed
from .proved import (
    pr_bound,
    pr_kappa,
    pr_step_limit,
    prlc_bounded_bound,
    prlc_convex_bound,
    prlc_iid_bound,
    prlc_iid_step_limit,
    smooth_step_limit,
    strongly_convex_bounded_bound,
    strongly_convex_bounded_d,
    strongly_convex_iid_bound,
    strongly_convex_iid_d,
)
from .quantities import Constants, age_distribution, age_mean, age_second_moment
from .stability import (
    moment_matrix,
    moment_path,
    moment_source,
    noise_floor,
    pr_stability_limit,
    prlc_noise_penalty,
    prlc_stability_limit,
    spectral_radius,
)
from .theorems_pr_asgd import (
    asgd_bound,
    asgd_equal_work_bound,
    asgd_equal_work_step_limit,
    asgd_step_limit,
    asgd_updates,
    theorem3_bound,
    theorem3_bracket,
    theorem3_h,
    theorem3_iterations,
    theorem3_step_limit,
)
from .theorems_prlc import (
    theorem1_a,
    theorem1_b,
    theorem1_bound,
    theorem1_iterations,
    theorem1_step_limit,
    theorem2_bound,
    theorem2_min_iterations,
    theorem2_speedup_iterations,
    theorem2_step,
    theorem5_bound,
    theorem5_d,
    theorem5_h,
    theorem5_iterations,
    theorem5_step_limit,
)

__all__ = [
    "Constants",
    "age_distribution",
    "age_mean",
    "age_second_moment",
    "asgd_bound",
    "asgd_equal_work_bound",
    "asgd_equal_work_step_limit",
    "asgd_step_limit",
    "asgd_updates",
    "moment_matrix",
    "moment_path",
    "moment_source",
    "noise_floor",
    "pr_bound",
    "pr_kappa",
    "pr_stability_limit",
    "pr_step_limit",
    "printed",
    "prlc_bounded_bound",
    "prlc_convex_bound",
    "prlc_iid_bound",
    "prlc_iid_step_limit",
    "prlc_noise_penalty",
    "prlc_stability_limit",
    "smooth_step_limit",
    "spectral_radius",
    "strongly_convex_bounded_bound",
    "strongly_convex_bounded_d",
    "strongly_convex_iid_bound",
    "strongly_convex_iid_d",
    "theorem1_a",
    "theorem1_b",
    "theorem1_bound",
    "theorem1_iterations",
    "theorem1_step_limit",
    "theorem2_bound",
    "theorem2_min_iterations",
    "theorem2_speedup_iterations",
    "theorem2_step",
    "theorem3_bound",
    "theorem3_bracket",
    "theorem3_h",
    "theorem3_iterations",
    "theorem3_step_limit",
    "theorem5_bound",
    "theorem5_d",
    "theorem5_h",
    "theorem5_iterations",
    "theorem5_step_limit",
]
