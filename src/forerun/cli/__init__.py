"""The command line: a thin door; words in, tables or JSON out, and an exit code that means it."""

from __future__ import annotations

import click

from forerun.cli.group import LazyGroup

__all__ = ["main"]

_HELP = """Time, cost and memory of distributed deep-learning training, before it runs.

A WORKLOAD is a zoo name (`forerun workloads`), package.module:callable, an .onnx file, a
HuggingFace config.json, or a YAML spec. A cluster is NODESxDEVICESxDEVICE (4x8xh100-sxm-80gb) or
NODESxINSTANCE (4xaws:p5.48xlarge).
"""
_EPILOG = (
    "Exit codes: 0 answered; 2 the request is wrong; 3 nothing satisfies the limits; 1 a defect. "
    'Completion: eval "$(_FORERUN_COMPLETE=bash_source forerun)" (or zsh_source, fish_source).'
)
# name: (module:attribute, what it does); help is shown without loading any of them.
_COMMANDS = {
    "predict": ("forerun.cli.commands.predict:predict", "time, cost and memory of one job"),
    "recommend": ("forerun.cli.commands.recommend:recommend", "which cluster, plan and batch"),
    "compare": ("forerun.cli.commands.compare:compare", "up to eight jobs side by side"),
    "explain": ("forerun.cli.commands.explain:explain", "where a step's time and memory go"),
    "support": ("forerun.cli.commands.explain:support", "what is covered for a workload"),
    "fit": ("forerun.cli.commands.fit:fit", "fit a predictor to measured runs, and save it"),
    "evaluate": ("forerun.cli.commands.evaluate:evaluate", "how well predictors forecast runs"),
    "leaderboard": ("forerun.cli.commands.evaluate:leaderboard", "every predictor on every table"),
    "suggest": ("forerun.cli.commands.suggest:suggest", "the next runs worth making"),
    "search": ("forerun.cli.commands.search:search", "the best configuration, run by run"),
    "profile": ("forerun.cli.commands.profile:profile", "measure the runs of a campaign"),
    "runs": ("forerun.cli.commands.runs:runs", "the measured runs that are kept"),
    "train": ("forerun.cli.commands.train:train", "train, and choose workers and batch meanwhile"),
    "probe": ("forerun.cli.commands.probe:probe", "measure this machine as a device"),
    "lab": ("forerun.cli.commands.lab:lab", "a small real cluster on this machine"),
    "eta": ("forerun.cli.commands.eta:eta", "when a running job will be done, from its log"),
    "serve": ("forerun.cli.commands.serve:serve", "answer all of this over REST"),
    "workloads": ("forerun.cli.commands.listings:workloads", "the named workloads"),
    "devices": ("forerun.cli.commands.listings:devices", "the known accelerators and CPUs"),
    "instances": ("forerun.cli.commands.listings:instances", "the known machines and prices"),
    "predictors": ("forerun.cli.commands.listings:predictors", "the registered predictors"),
    "systems": ("forerun.cli.commands.listings:systems", "published methods, as recipes"),
    "version": ("forerun.cli.commands.listings:version", "the versions of forerun and its parts"),
}

# The topic of the help that begins with a command of the table.
_TOPICS = {"predict": "Ask", "fit": "Learn from runs", "profile": "Measure", "workloads": "Look up"}

main = LazyGroup(
    name="forerun", commands_at=_COMMANDS, topics=_TOPICS, help=_HELP, epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)  # fmt: skip
click.version_option(package_name="forerun", message="%(prog)s %(version)s")(main)
