"""The recipe of the generic performance model: one expression of power laws for any framework."""

from __future__ import annotations

from forerun.systems.recipe import Claim, Equation, Part, System

_LAWS = "forerun.predictors.laws."

SYSTEM = System(
    name="generic_model",
    title="A generic performance model: one expression for any framework",
    citation=(
        "Z. Kavarakuntla, L. Han, H. Lloyd, A. Latham, A. Kleerekoper, S. Akintoye. A Generic "
        "Performance Model for Deep Learning in a Distributed Environment. 2023."
    ),
    summary=(
        "The time is a sum of powers of what is trained (intrinsic factors), times a product of "
        "powers of how it is spread (extrinsic factors), plus a constant; all constants are found by "
        "global optimisation with a penalty. Nothing of the framework is instrumented. Which columns "
        "are in the expression is read off the runs: those that change and that others do not explain."
    ),
    parts=(
        Part(
            "predictor", "generic",
            "plain differential evolution over every constant, errors in seconds; without settings "
            "the fast way: exponents evolve, the rest is solved exactly, errors are relative",
            {"mode": "faithful", "penalty": "l2", "errors": "absolute"}, group="predictors",
        ),
    ),
    equations=(
        Equation("5.1", "t(I, E) = t_I(I) f_E(E) + C", f"{_LAWS}generic_form:FormRows.columns",
                 "reconstructed"),
        Equation("5.2", "t_I = sum_i a_i I_i^p_i; a text has one constant for each word",
                 f"{_LAWS}generic_form:GenericForm.rows", "reconstructed"),
        Equation("5.3", "f_E = prod_j E_j^q_j, each E over the middle one of its measured values",
                 f"{_LAWS}generic_form:FormRows.columns", "reconstructed"),
        Equation("5.4", "cost = mean (t - that)^2 + lambda R(constants), R = L1 or L2",
                 f"{_LAWS}generic_form:Cost.of", "reconstructed"),
        Equation("5.5", "differential evolution within bounds (rand/1/bin)",
                 f"{_LAWS}generic_evolve:evolve", "reconstructed"),
        Equation("5.5", "lambda by validation on runs held out", f"{_LAWS}generic_fit:validated",
                 "reconstructed"),
        Equation("-", "for given exponents: a, C >= 0 by least squares, exactly, for a population",
                 f"{_LAWS}generic_solve:inner", "derived"),
        Equation("-", "exponents descend from the best of the population (variable projection)",
                 f"{_LAWS}generic_solve:descend", "derived"),
        Equation("-", "intervals of the exponents: residuals drawn anew",
                 f"{_LAWS}generic_many:resampled", "own"),
    ),
    claims=(
        Claim(
            "Evolution finds the constants that made the runs", "reproduced",
            "synthetic runs: every constant to 1 %, both ways",
            "tests/papers/test_generic_model.py",
        ),
        Claim(
            "The fast way ends at the same cost or below it, in a fraction of the time",
            "reproduced",
            "87 to 172 times as fast with seven and eight constants; with four constants, where "
            "plain evolution is quick itself, 30 times without noise and 67 times with it "
            "(benchmarks/results/generic-recovery-2026-11-22.md)",
            "benchmarks/generic_recovery.py",
        ),
        Claim(
            "One expression serves TensorFlow, MXNet and PyTorch", "in part",
            "the paper's runs are not public; on dlperf's stacks of these three the median error in "
            "random folds is 9.5, 12.0 and 2.3 % (each is there in two builds, its own and NVIDIA's)",
            "tests/papers/test_generic_model.py",
        ),
    ),
    missing=(
        "The paper's measurements and its fitted constants: no number of it is quoted or compared.",
        "The form itself is reconstructed. Kernel, pooling, filters, stride, padding and dropout, "
        "which the paper varies, are no columns of the runs table; a table that has other "
        "intrinsic columns (layers, params, gmacs, learning_rate ...) uses these.",
    ),
    traps=(
        "One product of powers has no term for synchronisation that adds to the computation: beyond "
        "the measured devices it errs more than a law that has one, such as `hierarchical` "
        "(docs/leaderboard.md: extrapolation to more devices).",
        "The exponent of the devices is one at whatever else is in the expression: at an unchanged "
        "global batch -1 is perfect scaling and 0 none; where the batch grows with the devices 0 is "
        "perfect. The printed law says which.",
        "Columns that go together cannot be told apart: one of them stays, the others are named.",
    ),
    commands=(
        "forerun fit --runs RUNS.csv --predictor generic --out MODEL.json",
        "forerun predict --table JOBS.csv --fit RUNS.csv --predictor generic --out FORECASTS.csv",
    ),
)  # fmt: skip
