#!/bin/sh
# Starts the service in a container: waits for its store, makes a first token, and serves as a user that is not root.
#
# FORERUN_STORE: an SQLite file or postgresql://USER@HOST/DATABASE. PGPASSWORD_FILE: a file with the database's
# password. FORERUN_STATE: a folder that outlives the container. FORERUN_HOST, FORERUN_PORT: where it listens.
# Arguments go to `forerun serve`.
set -eu

state=${FORERUN_STATE:-/var/lib/forerun}
wait_seconds=${FORERUN_WAIT_SECONDS:-120}

if [ "$(id -u)" -eq 0 ]; then
  echo "start.sh: it does not run as root; use the image's own user" >&2
  exit 2
fi
if [ ! -w "$state" ]; then
  echo "start.sh: $state cannot be written by user $(id -u); mount a volume that it may write" >&2
  exit 2
fi
export FORERUN_STORE="${FORERUN_STORE:-$state/runs.db}"
if [ -n "${PGPASSWORD_FILE:-}" ]; then
  PGPASSWORD=$(cat "$PGPASSWORD_FILE")
  export PGPASSWORD
fi

# The store makes its tables where there are none.
waited=0
until problem=$(python3 -c 'from forerun.store import open_store; open_store("").close()' 2>&1); do
  if [ "$waited" -ge "$wait_seconds" ]; then
    echo "start.sh: no store after $waited s: $(printf '%s' "$problem" | tail -n 1)" >&2
    exit 3
  fi
  [ "$waited" -ne 0 ] || echo "start.sh: waiting for the store"
  sleep 2
  waited=$((waited + 2))
done

tokens=$state/tokens.json
if [ ! -e "$tokens" ]; then
  umask 077
  forerun serve token create --tokens "$tokens" --scope admin --days 365 > "$state/first-token"
  echo "start.sh: a first token, with all rights, lies in $state/first-token; keep it elsewhere and remove the file"
fi

exec forerun serve --host "${FORERUN_HOST:-0.0.0.0}" --port "${FORERUN_PORT:-8080}" \
  --tokens "$tokens" --audit "$state/audit.jsonl" "$@"
