#!/usr/bin/env bash
# Keeps one note of a merge request up to date. NOTE_TOKEN is a project access token with the scope `api` and the role Reporter, which may
# comment but not change code: the author of a merge request can reach it. Nothing fails here: the pipeline is about the verdict.
set -uo pipefail

give_up() { echo "warning: the merge request has no new note: $1" >&2; exit 0; }
call() { curl --silent --show-error --fail --max-time 60 --header @<(printf 'PRIVATE-TOKEN: %s\n' "$NOTE_TOKEN") "$@"; }

[ -n "${NOTE_TOKEN:-}" ] || give_up "there is no NOTE_TOKEN"
marker="<!-- mlflow-adk-eval:$(printf %s "$CI_PROJECT_PATH" | git hash-object --stdin | cut -c 1-16) -->"
notes="$CI_API_V4_URL/projects/$CI_PROJECT_ID/merge_requests/$CI_MERGE_REQUEST_IID/notes"
body=$(mktemp)
head -c 240000 agent_gate/comment.md | jq -Rs --arg marker "$marker" --arg footer "[The pipeline]($CI_PIPELINE_URL) has the report." \
  '{body: ([$marker, .[:60000], $footer] | join("\n\n"))}' > "$body" || give_up "there is no page"

me=$(call --retry 4 "$CI_API_V4_URL/user" | jq -r .username) || give_up "GitLab does not say whose token this is"
ours=""
for ((page = 1; page <= 100; page++)); do # somebody else's note with this marker is not ours
  listed=$(call --retry 4 "$notes?per_page=100&page=$page&sort=asc") || give_up "its notes cannot be read"
  ours=$(jq -r --arg me "$me" --arg marker "$marker" \
    'map(select(.author.username == $me and (.body | split("\n")[0]) == $marker).id) | first // empty' <<< "$listed")
  if [ -n "$ours" ] || [ "$(jq length <<< "$listed")" -lt 100 ]; then break; fi
done
if [ -n "$ours" ]; then way=(--retry 4 --request PUT "$notes/$ours"); else way=("$notes"); fi # sent twice, a new note would be two
call --header 'Content-Type: application/json' --data-binary @"$body" "${way[@]}" > /dev/null || give_up "GitLab refuses it"
