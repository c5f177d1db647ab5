"""The recipe of Ernest: four terms of size and machines, and the runs that teach them for a budget."""

from __future__ import annotations

from forerun.systems.recipe import Claim, Equation, Part, System

SYSTEM = System(
    name="ernest",
    title="Ernest: performance prediction from a few small runs",
    citation=(
        "S. Venkataraman, Z. Yang, M. Franklin, B. Recht, I. Stoica. Ernest: Efficient Performance "
        "Prediction for Large-Scale Advanced Analytics. NSDI 2016; code: amplab/ernest."
    ),
    summary=(
        "A job's time is a sum of four terms that cannot be negative: fixed work, work that machines "
        "share, a reduction over a tree, and what every machine adds for one that talks to all. An "
        "optimal design of experiments says which small runs teach the four terms best for a budget. "
        "Made for analytics on a cluster; here the size is `dataset_size` of a run or an epoch and "
        "`global_batch` of a step, and the machines are `devices`."
    ),
    parts=(
        Part(
            "predictor", "ernest", "one law for each workload and kind of machine", group="predictors"
        ),
        Part(
            "design", "forerun.search.design:ernest_design",
            "which runs teach most for a budget; `forerun suggest` asks it with prices in dollars",
        ),
    ),
    equations=(
        Equation(
            "1", "t(s, m) = th0 + th1 s/m + th2 log m + th3 m",
            "forerun.predictors.laws.ernest_law:features",
        ),
        Equation(
            "1", "th = argmin |X th - t|, th >= 0 (NNLS)", "forerun.predictors.laws.nnls:nnls"
        ),
        Equation(
            "3.2", "minimise trace((sum l_i x_i x_i^T)^-1), 0 <= l_i <= 1, sum l_i (s_i/s_min)/m_i "
            "<= budget; features over their column means; keep l_i > 0.3",
            "forerun.search.design:ernest_design",
        ),
        Equation(
            "-", "5 and 95 % of a prediction: residuals drawn anew",
            "forerun.predictors.laws.ernest_law:fitted_law", "own",
        ),
    ),
    claims=(
        Claim(
            "The published example: seven runs give four terms and the times of 4 to 28 machines",
            "reproduced", "all terms and times to 1e-5", "tests/papers/test_ernest.py",
        ),
        Claim(
            "The design on a grid of candidates is the optimum of the trace criterion",
            "reproduced", "the optimum is certified by a bound from below",
            "tests/papers/test_ernest.py",
        ),
        Claim(
            "Small runs foretell large ones of analytics jobs", "in part",
            "on the public Spark runs (c3o) the runs state no size in a column of their own, so that "
            "only machines can be told apart; on training steps a term for communication that grows "
            "with the model is missing: `forerun leaderboard` has the errors on public tables",
        ),
    ),
    missing=(
        "The paper's own runs on EC2 are not public beyond the example.",
        "Its solver (a general convex one) is replaced by one for this problem; the optimum is the same.",
    ),
    traps=(
        "A term may be 0 because the runs cannot tell it from another: runs on one number of "
        "machines say nothing of another, and are refused.",
        "Sizes are read as they are: a batch that grows with the machines leaves s/m constant.",
    ),
    commands=(
        "forerun fit --runs RUNS.csv --predictor ernest --out MODEL.json",
        "forerun predict --table JOBS.csv --fit RUNS.csv --predictor ernest --out FORECASTS.csv",
    ),
)  # fmt: skip
