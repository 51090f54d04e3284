"""The theorems of the paper as functions: step sizes, constants, bounds, stability.

Each formula is in the form that follows from its proof; `prlc.theory.printed` holds the paper's
own wording where the two differ. Scalars in give a float, arrays in give an array (broadcast).
docs/theory.md explains what each says, and what it does not.
"""

from __future__ import annotations

from . import printed
from .ages import age_distribution, age_mean, age_second_moment
from .asgd_bounds import (
    asgd_bound,
    asgd_equal_work_bound,
    asgd_equal_work_step_limit,
    asgd_step_limit,
)
from .constants import Constants
from .iterations import (
    asgd_updates,
    theorem1_iterations,
    theorem3_iterations,
    theorem5_iterations,
)
from .pr_bounds import (
    pr_bound,
    pr_kappa,
    pr_step_limit,
    theorem3_bound,
    theorem3_bracket,
    theorem3_h,
    theorem3_step_limit,
)
from .prlc_bounds import (
    theorem1_a,
    theorem1_b,
    theorem1_bound,
    theorem1_step_limit,
    theorem2_bound,
    theorem2_min_iterations,
    theorem2_speedup_iterations,
    theorem2_step,
)
from .proved import (
    prlc_bounded_bound,
    prlc_convex_bound,
    prlc_iid_bound,
    prlc_iid_step_limit,
    smooth_step_limit,
)
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
from .strongly_convex import (
    strongly_convex_bounded_bound,
    strongly_convex_bounded_d,
    strongly_convex_iid_bound,
    strongly_convex_iid_d,
    theorem5_bound,
    theorem5_d,
    theorem5_h,
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
