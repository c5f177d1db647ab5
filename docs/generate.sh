#!/usr/bin/env bash
# Writes the generated pages: docs/cli.md from the commands, docs/tables.md from the schema, docs/frameworks.md, docs/launching.md, what
# commands print in README.md and docs/cookbook.md,
# docs/accuracy.md, docs/ablation.md, docs/jobs.md and docs/leaderboard.md from the results that benchmarks/ keeps.
set -euo pipefail
cd "$(dirname "$0")/.."

python docs/cli_page.py > docs/cli.md
echo "wrote docs/cli.md"
python docs/tables_page.py > docs/tables.md
echo "wrote docs/tables.md"
python docs/frameworks_page.py > docs/frameworks.md
echo "wrote docs/frameworks.md"
python docs/launching_page.py > docs/launching.md
echo "wrote docs/launching.md"
python docs/shown_output.py

# What was measured last by benchmarks/accuracy.py, which takes minutes and needs the measured runs.
python docs/accuracy_page.py > docs/accuracy.md
echo "wrote docs/accuracy.md"

# The same of benchmarks/ablation.py and band_ablation.py, and of benchmarks/five_jobs.py.
python docs/ablation_page.py > docs/ablation.md
echo "wrote docs/ablation.md"
python docs/jobs_page.py > docs/jobs.md
echo "wrote docs/jobs.md"

# Published methods, each from its recipe.
python docs/systems_page.py

# The same of benchmarks/leaderboard.py.
python docs/leaderboard_page.py > docs/leaderboard.md
echo "wrote docs/leaderboard.md"

# What the cells of the notebook print.
python docs/notebook.py
