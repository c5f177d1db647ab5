"""The recipe of the Ray study: regressions on augmented features, chosen by hyper-parameter selection."""

from __future__ import annotations

from forerun.predictors.regression.automl_settings import Settings
from forerun.systems.recipe import Claim, Equation, Part, System

_ML = "forerun.predictors.regression."

SYSTEM = System(
    name="ray_ml",
    title="Performance models for distributed training on Ray, by regression",
    citation=(
        "F. Filippini, D. Ardagna. Performance models for distributed deep learning training jobs "
        "on Ray; the modelling recipe is that of the group's open library (Apache-2.0)."
    ),
    summary=(
        "Predicts the training time when the dataset, the number of workers and the resources of a "
        "worker change, from profiled runs. Features are augmented (1/x, ln x, products, Ernest's "
        "terms), several regressions with their hyper-parameters compete, the winner on "
        "hyper-parameter selection is fitted again on everything, and the error is told for "
        "interpolation and for extrapolation."
    ),
    parts=(
        Part(
            "predictor", "ray-ml",
            "the pipeline: augmentation, techniques, selection, refit; hyper-parameters by grid, the "
            "winner answers everywhere. Without settings another experiment answers for more devices "
            "than any run had: the one that, taught by fewer, errs least on more",
            {"settings": Settings(search="grid", beyond="winner")}, group="predictors",
        ),
        Part("split", "forerun.evaluate.splits:parse_split",
             "`interpolation:COLUMN=everyN` or `=VALUE,...`, and `extrapolation:COLUMN=VALUE,...`"),
    ),
    equations=(
        Equation("-", "one-hot, 1/x, ln x, products to degree d (never x * 1/x), Ernest's terms",
                 f"{_ML}augment:augmented"),
        Equation("-", "sequential forward selection by MAPE, or XGBoost importance to a tolerance",
                 f"{_ML}selection:selected"),
        Equation("-", "Ridge, XGBoost, tree, forest, SVR, Lasso >= 0, stepwise, MLP, mean: defaults",
                 f"{_ML}techniques:DEFAULTS"),
        Equation("-", "Draper-Smith forward and backward steps, p_in .05, p_out .1",
                 f"{_ML}stepwise:stepwise"),
        Equation("-", "sets: all, hold-out, k-fold, interpolation, extrapolation",
                 f"{_ML}partitions:SetAside.partitions"),
        Equation("-", "winner = argmin MAPE on hp-selection; refit on everything",
                 f"{_ML}automl:run_experiments"),
        Equation("-", "MAPE = mean |yhat - y| / y, RMSE, R2 on all three sets",
                 f"{_ML}automl:Experiment"),
    ),
    claims=(
        Claim(
            "Interpolation: every h-th of the sorted distinct values is judged, from the first on",
            "reproduced", "so that the smallest value is always judged, and nothing smaller teaches",
            "tests/papers/test_ray_ml.py",
        ),
        Claim(
            "Extrapolation: a row is judged if and only if any listed column is above its bound",
            "reproduced", "as a split of any columns", "tests/papers/test_ray_ml.py",
        ),
        Claim(
            "The winner is chosen on hyper-parameter selection, never on validation", "reproduced",
            "validation times that are changed do not change the winner",
            "tests/papers/test_ray_ml.py",
        ),
        Claim(
            "Errors of 3 to 15 % on average, interpolation and extrapolation alike", "in part",
            "the study's runs are not public. 864 epochs of three models, profiled by forerun on a Ray"
            " cluster of eight small hosts, each kind of run six times: interpolation 5.2 %, extrapolation"
            " 5.0 % by `auto` (means over workers, data size and CPU share, asked where nothing was"
            " measured); by these regressions 19.7 and 33.0 %, few runs being what they are",
            "benchmarks/ray_study.py",
        ),
    ),
    missing=(
        "The study's profiled runs are not public; no error of its own is repeated here.",
        "Its runner of experiments: campaigns of `forerun profile --on ray` stand in its place.",
    ),
    traps=(
        "Trees and RBF kernels do not extrapolate in the number of workers: beyond the largest "
        "measured they answer a constant, so linear models on inverse and log features must stay "
        "among the techniques.",
        "Every h-th value starts at the first, so that the smallest one is always judged and that "
        "part is extrapolation downwards; `between:COLUMN` judges inner values alone.",
        "What the library calls NNLS is a Lasso with positive coefficients.",
    ),
    commands=(
        "forerun evaluate --runs RUNS.csv --predictors ray-ml,ernest --split interpolation:devices",
        "forerun evaluate --runs RUNS.csv --predictors ray-ml,ernest --split extrapolation:devices=8",
    ),
)  # fmt: skip
