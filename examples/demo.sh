#!/usr/bin/env bash
# Two questions with a deadline and a budget: a model from the zoo, and a module of your own.
set -euo pipefail
cd "$(dirname "$0")/.."

ask() {
  printf '\n$ forerun'
  printf ' %q' "$@"
  printf '\n\n'
  forerun "$@"
}

ask recommend llama3-8b --deadline 7d --budget 200000 --html report.html
ask recommend examples.resnet50:build --epochs 90 --dataset-size 1281167 --deadline 24h --budget 500
printf '\nThe first answer is also a page: report.html\n'
