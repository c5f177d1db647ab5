#!/usr/bin/env bash
# Writes the generated pages: docs/cli.md from the commands, docs/tables.md from the schema,
# docs/accuracy.md from the results of benchmarks/accuracy.py.
set -euo pipefail
cd "$(dirname "$0")/.."

python docs/cli_page.py > docs/cli.md
echo "wrote docs/cli.md"
python docs/tables_page.py > docs/tables.md
echo "wrote docs/tables.md"

# What was measured last by benchmarks/accuracy.py, which takes minutes and needs the measured runs.
python docs/accuracy_page.py > docs/accuracy.md
echo "wrote docs/accuracy.md"
