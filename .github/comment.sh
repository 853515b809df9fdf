#!/usr/bin/env bash
# Keeps one comment of a pull request up to date. The action runs it, and agent-comment.yml for forks.
#
#   KEY     16 hexadecimal digits: which of the comments on the pull request
#   PAGE    the file with the page
#   FOOTER  Markdown of our own that stands below it
#   NUMBER  of the pull request
#   TOKEN   of the account or app that comments
#   FOREIGN true: a job of somebody else's code wrote the page, so it may hold no links, mentions, images and HTML
#
# The page is data: no part of it is run, and its first line is never taken for the marker. A comment is ours if its first line is the marker
# and the account of TOKEN wrote it. Nothing fails here: the job is about the verdict.
set -uo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
answer=$folder/answer.json
marker="<!-- mlflow-adk-eval:$KEY -->"
issues=$GITHUB_API_URL/repos/$GITHUB_REPOSITORY/issues
comments=$issues/$NUMBER/comments

give_up() {
  reason=$(jq -r '.message // empty | strings' "$answer" 2> /dev/null | tr -cd '[:alnum:] .,-' | head -c 200)
  echo "::warning::The pull request has no new comment: $1 (HTTP $status${reason:+, $reason})."
  exit 0
}

call() { # an HTTP request: its status becomes $status, and its body the file $answer
  : > "$answer"
  status=$(curl --silent --show-error --max-time 60 --output "$answer" --write-out '%{http_code}' \
    --header @<(printf 'Authorization: Bearer %s\n' "$TOKEN") --header 'Accept: application/vnd.github+json' "$@") || status=000
}
again=(--retry 4 --retry-all-errors --retry-max-time 120) # for requests that may be sent twice

find_ours() { # the number of our comment becomes $ours; empty if there is none
  ours=""
  for ((page = 1; page <= 100; page++)); do
    call "${again[@]}" "$comments?per_page=100&page=$page"
    [ "$status" = 200 ] || return 1
    ours=$(jq -r --arg me "$me" --arg marker "$marker" '
      map(select(.user.login == $me and (.body // "" | split("\n")[0] | rtrimstr("\r")) == $marker).id) | first // empty
    ' "$answer") || return 1
    if [ -n "$ours" ] || [ "$(jq length "$answer")" -lt 100 ]; then return 0; fi
  done
}

harmless() { # Markdown without mentions, numbers of issues, links, images and HTML, whose characters may also be written as references
  sed -E -e 's/&#0*64;|&#[xX]0*40;|&commat;/@/g' -e 's/&#0*35;|&#[xX]0*23;|&num;/#/g' -e 's/@/@\&#8203;/g' \
    -e 's/(^|[^&])#([0-9])/\1#\&#8203;\2/g' -e 's/([gG][hH])-([0-9])/\1 -\2/g' -e 's/!\[/! [/g' -e 's/\]\(/] (/g' -e 's#://#: //#g' \
    -e 's/([wW]{3})\./\1 ./g' -e 's/</\&lt;/g' -e 's#&lt;(/?details|/?summary|/?pre|br)>#<\1>#g'
}

head -c 240000 "$PAGE" | if [ "${FOREIGN:-}" = true ]; then harmless; else cat; fi > "$folder/page.md"
jq -n --rawfile page "$folder/page.md" --arg marker "$marker" --arg footer "${FOOTER:-}" \
  '{body: ([$marker, $page[:60000], $footer] | join("\n\n"))}' > "$folder/body.json" || { status=0; give_up "its page cannot be read"; }

# An app has no /user; this works for accounts and apps.
call "${again[@]}" --data '{"query": "{viewer {login}}"}' "$GITHUB_GRAPHQL_URL"
me=$(jq -r '.data.viewer.login // empty' "$answer" 2> /dev/null)
[ -n "$me" ] || give_up "GitHub does not say whose token this is"

refused="GitHub refuses it. The job needs \`pull-requests: write\`, which a pull request from a fork never has"
for wait in 2 5 10 0; do # after a lost answer, look whether the comment is there before it is sent again
  find_ours || give_up "$refused"
  if [ -n "$ours" ]; then call "${again[@]}" --request PATCH --data-binary @"$folder/body.json" "$issues/comments/$ours"
  else call --data-binary @"$folder/body.json" "$comments"; fi
  case $status in
    200 | 201) exit 0 ;;
    000 | 429 | 5??) sleep "$wait" ;;
    *) give_up "$refused" ;;
  esac
done
give_up "GitHub does not answer"
