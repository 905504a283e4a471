# Functions for .ci/run and .ci/nightly, which source this file. If a step fails, the run fails, but
# the later steps still run.
only="${1:-}"
failed=()
report=()

# step NAME COMMAND...: runs a command, unless NAME lacks the text that was asked for.
step() {
  local name="$1"
  shift
  if [[ -n "$only" && "$name" != *"$only"* ]]; then return; fi
  printf '\n=== %s: %s\n' "$name" "$*"
  local start=$SECONDS outcome=ok
  "$@" || { outcome=FAILED; failed+=("$name"); }
  report+=("$(printf '%-6s %5d s  %s' "$outcome" $((SECONDS - start)) "$name")")
  printf -- '--- %s: %s, %d s\n' "$name" "$outcome" $((SECONDS - start))
}

# skip NAME REASON: reports a step that this machine cannot run.
skip() {
  if [[ -n "$only" && "$1" != *"$only"* ]]; then return; fi
  report+=("$(printf '%-6s %5s    %s: %s' skipped - "$1" "$2")")
}

# summary: prints the outcome and time of each step, and ends the run.
summary() {
  printf '\n=== summary, %d s\n' $SECONDS
  printf '%s\n' "${report[@]}"
  if ((${#failed[@]})); then
    printf 'FAILED: %s\n' "${failed[@]}"
    exit 1
  fi
  exit 0
}
