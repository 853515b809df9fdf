#!/usr/bin/env bash
# Keeps one comment of a pull request in Azure Repos up to date. SYSTEM_ACCESSTOKEN is the token of the job; its build service needs the right
# "Contribute to pull requests". Nothing fails here: the pipeline is about the verdict.
set -uo pipefail

give_up() { echo "##vso[task.logissue type=warning]The pull request has no new comment: $1"; exit 0; }
call() { curl --silent --show-error --fail --max-time 60 --header @<(printf 'Authorization: Bearer %s\n' "$SYSTEM_ACCESSTOKEN") "$@"; }

collection=${SYSTEM_COLLECTIONURI%/}
project="$collection/$SYSTEM_TEAMPROJECTID"
threads="$project/_apis/git/repositories/$BUILD_REPOSITORY_ID/pullRequests/$SYSTEM_PULLREQUEST_PULLREQUESTID/threads"
marker="<!-- mlflow-adk-eval:$(printf %s "$SYSTEM_DEFINITIONID" | git hash-object --stdin | cut -c 1-16) -->"
text=$(mktemp)
head -c 240000 agent_gate/comment.md | jq -Rs --arg marker "$marker" --arg run "$project/_build/results?buildId=$BUILD_BUILDID" \
  '[$marker, .[:60000], "[The run](\($run)) has the report."] | join("\n\n")' > "$text" || give_up "there is no page"

me=$(call --retry 4 "$collection/_apis/connectionData" | jq -r .authenticatedUser.id) || give_up "Azure does not say whose token this is"
listed=$(call --retry 4 "$threads?api-version=7.1") || give_up "its comments cannot be read"
ours=$(jq -r --arg me "$me" --arg marker "$marker" '.value | map(select(.comments[0] | .author.id == $me
  and (.content // "" | split("\n")[0]) == $marker) | "\(.id)/comments/\(.comments[0].id)") | first // empty' <<< "$listed")
json=(--header 'Content-Type: application/json')
if [ -n "$ours" ]; then
  jq '{content: .}' "$text" | call --retry 4 "${json[@]}" --request PATCH --data-binary @- "$threads/$ours?api-version=7.1"
else # sent twice, it would be two
  jq '{status: 1, comments: [{parentCommentId: 0, commentType: 1, content: .}]}' "$text" | call "${json[@]}" --data-binary @- "$threads?api-version=7.1"
fi > /dev/null || give_up "Azure refuses it"
