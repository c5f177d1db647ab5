#!/usr/bin/env bash
# Writes the generated pages: docs/cli.md from the commands, docs/tables.md from the schema,
# docs/accuracy.md from measured runs.
set -euo pipefail
cd "$(dirname "$0")/.."

python docs/cli_page.py > docs/cli.md
echo "wrote docs/cli.md"
python docs/tables_page.py > docs/tables.md
echo "wrote docs/tables.md"

if [ -z "${FORERUN_DATA:-}" ]; then
  echo "docs/accuracy.md is left as it is: set FORERUN_DATA to a folder with runs/*.csv"
  exit 0
fi

# Every table, nothing fitted: the page says so in its first lines.
commit="$(git rev-parse --short HEAD 2>/dev/null || true)"
forerun evaluate --runs "$FORERUN_DATA/runs" --predictors analytic,constant-mfu --split whole \
  --markdown docs/accuracy.md --commit "$commit" > /dev/null
echo "wrote docs/accuracy.md"
