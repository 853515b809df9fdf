#!/usr/bin/env bash
# Evaluates the agent and asks the gate, in any CI system:
#
#   agent_gate.sh pull-request TARGET   may the change be merged into the branch TARGET?
#   agent_gate.sh promote               makes a merged agent the champion
#
# Leaves in agent_gate/: comment.md (for the pull request), gate.xml (JUnit) and report.html. Exits as the gate does.
# The code of a pull request runs here. Give that job an MLflow account that may evaluate but not promote.
set -euo pipefail

model=home_automation agent=home_automation_agent cases=home_automation.evalset.json policy=gate.yaml
out=agent_gate
mkdir -p "$out"
rm -f "$out"/*
echo "/$out" >> "$(git rev-parse --git-path info/exclude)" # no part of the agent's version
outside=$(mktemp -d)                                       # where the change cannot have put anything
export MLFLOW_ADK_EVAL_LEDGER=${MLFLOW_ADK_EVAL_LEDGER:-$outside/ledger.sqlite}

registering=() deciding=(promote "$model")
case ${1:-} in
  pull-request) # the target branch's policy, so that a change cannot loosen its own
    git fetch --quiet --depth=1 -- origin "$2"
    git worktree add --quiet --detach "$outside/base" FETCH_HEAD
    reviewed="$outside/base/$(git rev-parse --show-prefix)$policy"
    if [ -f "$reviewed" ]; then policy=$reviewed; else echo "warning: $2 has no $policy yet, so the policy of this change decides" >&2; fi
    ;;
  promote) registering=(--register "$model") ;;
  *) echo "error: say pull-request TARGET or promote" >&2 && exit 64 ;;
esac

code=0
mlflow-adk-eval run "$agent" "$cases" --experiment "$model" "${registering[@]}" --json > "$out/run.json" || code=$?
if [ "$code" -le 2 ]; then # the gate decides about missed thresholds
  code=0
  run=$(jq -r .run_id "$out/run.json")
  if [ "$1" = promote ]; then deciding+=(--version "$(jq -r .model_version "$out/run.json")" --run-id "$run"); else deciding=(gate "$run" --model "$model"); fi
  { mlflow-adk-eval "${deciding[@]}" --policy "$policy" --reevaluate --eval-set "$cases" \
    --junit "$out/gate.xml" --comment "$out/comment.md" 2>&1 >&3 | tee "$out/errors.txt" >&2; } 3>&1 || code=$?
  mlflow-adk-eval report "$run" --output "$out/report.html" || echo "warning: there is no report to attach" >&2
fi
if [ ! -s "$out/comment.md" ]; then # there is no decision, so say why
  reason=$(jq -r '.error // empty' "$out/run.json" 2> /dev/null || true)
  if [ -z "$reason" ]; then reason=$(sed -n '/^[Ee]rror: /,$p' "$out/errors.txt" 2> /dev/null || true); fi
  page='"### ⚠️ Agent gate: no decision\n\n<pre>\n" + ($reason[:4000] | @html | split("\n") | map(" " + .) | join("\n")) + "\n</pre>"'
  jq -nr --arg reason "${reason:-The log of the job says why.}" "$page" > "$out/comment.md"
fi
exit "$code"
