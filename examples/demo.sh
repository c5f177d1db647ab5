#!/usr/bin/env bash
# Two questions with a deadline and a budget (a model from the zoo, a module of your own), and where time goes.
set -euo pipefail
cd "$(dirname "$0")/.."

ask() {
  printf '\n$ forerun'
  printf ' %q' "$@"
  printf '\n\n'
  forerun "$@"
}

ask recommend llama3-8b --framework torchtitan --deadline 7d --budget 30000 --confidence 0.9 --html report.html
ask recommend examples.resnet50:build --precision bf16 --optimizer momentum \
  --epochs 90 --dataset-size 1281167 --deadline 24h --budget 100
ask explain llama3-8b --cluster 8x8xh100-sxm-80gb
printf '\nThe first answer is also a page: report.html\n'
