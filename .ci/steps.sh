# Functions for .ci/run and .ci/nightly, which source this file. If a step fails, the run fails, but
# the later steps still run.
only="${1:-}"
results="$(mktemp -d)"  # report: a line for each step. failed: their names. A log for each function beside
beside=()               # process groups
trap 'for group in "${beside[@]}"; do kill -- "-$group" 2> /dev/null; done; rm -rf "$results"' EXIT
touch "$results/report" "$results/failed"

# step NAME COMMAND...: runs a command, unless NAME lacks the text that was asked for.
step() {
  local name="$1"
  shift
  if [[ -n "$only" && "$name" != *"$only"* ]]; then return; fi
  printf '\n=== %s: %s\n' "$name" "$*"
  local start=$SECONDS outcome=ok
  "$@" || { outcome=FAILED; printf '%s\n' "$name" >> "$results/failed"; }
  printf '%-6s %5d s  %s\n' "$outcome" $((SECONDS - start)) "$name" >> "$results/report"
  printf -- '--- %s: %s, %d s\n' "$name" "$outcome" $((SECONDS - start))
}

# beside FUNCTION: calls a function with steps in the background, where it takes the processor time
# that the steps in the foreground leave. `together` prints what it printed.
beside() {
  set -m  # in a process group of its own
  { renice -n 5 "$BASHPID" > /dev/null; "$1"; } > "$results/$1.log" 2>&1 < /dev/null &
  set +m
  beside+=($!)
}

# together: waits for the functions in the background, and prints their output, one after the other.
together() {
  wait
  beside=()
  cat "$results"/*.log
}

# summary: prints the outcome and time of each step, and ends the run.
summary() {
  printf '\n=== summary, %d s\n' $SECONDS
  cat "$results/report"
  if [[ -s "$results/failed" ]]; then
    sed 's/^/FAILED: /' "$results/failed"
    exit 1
  fi
  exit 0
}
