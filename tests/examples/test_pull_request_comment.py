"""The comment on a pull request: one is made and kept up to date, whatever GitHub does, and no text of others becomes more than text."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.examples import test_action
from tests.examples.github_api import ME, TOKEN, GitHub, github
from tests.examples.test_action import PROJECT, Runner

runner = test_action.runner
SCRIPT = PROJECT / ".github" / "comment.sh"
FOR_FORKS: dict[str, Any] = YAML(typ="safe").load((PROJECT / ".github" / "workflows" / "agent-comment.yml").read_text("utf-8"))
KEY = "0123456789abcdef"
MARKER = f"<!-- mlflow-adk-eval:{KEY} -->"
HOSTILE = "$(touch spoilt) `touch spoilt` '; touch spoilt; ' \" \\ @team #12 ![i](http://evil.example/i.png) <img src=x> <!-- x -->\n# top"


@pytest.fixture
def api() -> Iterator[GitHub]:
    if not all(map(shutil.which, ("jq", "bash", "curl"))):
        pytest.skip("the script needs jq, bash and curl, which runners of GitHub have")
    with github() as state:
        yield state


def bash(script: str, folder: Path, **variables: str) -> str:
    """Run a script as GitHub would, and return what it said; it must not fail."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "MLFLOW_"))}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env=kept | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def comment(api: GitHub, folder: Path, page: str, **variables: str) -> str:
    (folder / "page.md").write_text(page)
    given = {"KEY": KEY, "PAGE": "page.md", "FOOTER": "[The job](x)", "NUMBER": "7", "TOKEN": TOKEN}
    return bash(f'bash "{SCRIPT}"', folder, **api.environment, **given | variables)


def test_the_comment_is_made_once_and_kept_up_to_date(api: GitHub, tmp_path: Path) -> None:
    assert comment(api, tmp_path, "### failed\n") == ""
    assert api.ours == [f"{MARKER}\n\n### failed\n\n\n[The job](x)"]
    assert comment(api, tmp_path, "### passed\n") == ""
    assert api.ours == [f"{MARKER}\n\n### passed\n\n\n[The job](x)"]
    comment(api, tmp_path, "other", KEY="f" * 16)
    assert len(api.ours) == 2, "another job has another comment"


def test_it_is_found_behind_many_others(api: GitHub, tmp_path: Path) -> None:
    for number in range(230):
        api.says(f"comment {number}", "somebody")
    api.comments[215] = {"id": 215, "user": {"login": ME}, "body": f"{MARKER}\r\nold"}
    comment(api, tmp_path, "new")
    assert len(api.comments) == 230
    assert "new" in api.comments[215]["body"]


def test_what_only_looks_like_it_is_left_alone(api: GitHub, tmp_path: Path) -> None:
    others = [api.says(f"{MARKER}\nfrom somebody", "attacker"), api.says(f"quoted:\n{MARKER}"), api.says(f"{MARKER}x\nanother key")]
    before = [dict(one) for one in others]
    comment(api, tmp_path, f"{MARKER}\npage")
    assert others == before
    assert len(api.comments) == 4


@pytest.mark.parametrize(
    "faults",
    [
        [("POST", 0)],
        [("POST", 502), ("GET", 503)],
        [("GET", 0)],
        pytest.param([("POST", 0), ("GET", 429), ("PATCH", 0), ("PATCH", 500)], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_lost_answer_makes_no_second_comment(api: GitHub, tmp_path: Path, faults: list[tuple[str, int]]) -> None:
    api.faults += faults
    assert comment(api, tmp_path, "page") == ""
    assert (len(api.comments), api.faults) == (1, [])


@pytest.mark.parametrize(("method", "status"), [("POST", 403), ("POST", 404), ("GET", 403)])
def test_a_job_that_may_not_comment_says_so_in_one_sentence(api: GitHub, tmp_path: Path, method: str, status: int) -> None:
    api.faults.append((method, status))
    said = comment(api, tmp_path, "page")
    assert said == (
        "::warning::The pull request has no new comment: GitHub refuses it. The job needs `pull-requests: write`, which a pull request "
        f"from a fork never has (HTTP {status}, Resource not accessible by integration).\n"
    )
    assert api.comments == []


def test_without_a_server_the_step_still_ends_well(tmp_path: Path) -> None:
    with github() as gone:
        pass
    script = SCRIPT.read_text().replace("--retry 4", "--retry 0")
    (tmp_path / "page.md").write_text("page")
    said = bash(script, tmp_path, **gone.environment, KEY=KEY, PAGE="page.md", NUMBER="7", TOKEN=TOKEN)
    assert said == "::warning::The pull request has no new comment: GitHub does not say whose token this is (HTTP 000).\n"


def test_a_page_is_data_and_no_longer_than_github_takes(api: GitHub, tmp_path: Path) -> None:
    comment(api, tmp_path, HOSTILE)
    assert HOSTILE in api.ours[0]
    comment(api, tmp_path, "ü" * 100_000)
    assert len(api.ours[0]) < 60_200
    assert [one.name for one in tmp_path.iterdir()] == ["page.md"]


def test_the_page_of_a_fork_mentions_nobody_and_loads_nothing(api: GitHub, tmp_path: Path) -> None:
    ways = "@a &#64;b &#x40;c &commat;d &#0064;e #1 &#35;2 &num;3 ![i](http://e) [l](https://e) <http://e> www.e.com <IMG src=e> <b>"
    comment(api, tmp_path, f"### ✅ passed&#95;\n<details><summary>1</summary>x</details> {ways}", FOREIGN="true")
    (body,) = api.ours
    assert body.startswith(f"{MARKER}\n\n### ✅ passed&#95;\n<details><summary>1</summary>x</details> @&#8203;a")
    shown = body.removeprefix(MARKER).removesuffix("[The job](x)")
    assert not re.search(r"@[a-z]|&#0*64|commat|(?<!&)#\d|!\[|\]\(|://|www\.|<(?!/?details|/?summary)", shown), shown


@pytest.fixture
def forked(api: GitHub, tmp_path: Path) -> dict[str, str]:
    """The variables of the job on `workflow_run`, after that of a pull request from a fork."""
    api.pulls.append(
        {
            "number": 7,
            "state": "open",
            "label": "eve:$(touch spoilt)&state=x",
            "head": {"sha": "5" * 40, "repo": {"full_name": "eve/agents"}},
        }
    )
    pages = tmp_path / "pages" / f"adk-eval-{KEY}"
    pages.mkdir(parents=True)
    (pages / "comment.md").write_text("### ❌ failed @team")
    (step,) = (one for one in FOR_FORKS["jobs"]["comment"]["steps"] if "run" in one)
    event = {"NUMBER": "", "RUN": "41", "HEAD": "eve/agents", "OWNER": "eve", "BRANCH": "$(touch spoilt)&state=x", "SHA": "5" * 40}
    given = event | {"TOKEN": TOKEN, "PAGES": str(tmp_path / "pages"), "SCRIPT": str(SCRIPT)}
    assert set(step["env"]) == set(given)
    return given | api.environment | {"script": step["run"]}


def run_for_fork(variables: dict[str, str], folder: Path) -> str:
    return bash(folder=folder, **variables)


def test_a_fork_gets_its_comment_by_what_github_says_of_its_commit(api: GitHub, tmp_path: Path, forked: dict[str, str]) -> None:
    assert run_for_fork(forked, tmp_path) == ""
    (body,) = api.ours
    assert body.startswith(
        f"{MARKER}\n\n### ❌ failed @&#8203;team\n\nThe code of this pull request ran in the job that wrote this. [The job]("
    )
    assert "actions/runs/41" in body
    assert [one.name for one in tmp_path.iterdir()] == ["pages"]


@pytest.mark.parametrize("changed", ["sha", "repository", "two", "closed"])
def test_without_exactly_one_pull_request_of_that_commit_nobody_comments(
    api: GitHub, tmp_path: Path, forked: dict[str, str], changed: str
) -> None:
    match changed:
        case "sha":
            api.pulls[0]["head"]["sha"] = "6" * 40
        case "repository":
            api.pulls[0]["head"]["repo"] = None
        case "two":
            api.pulls.append(api.pulls[0] | {"number": 8})
        case _:
            api.pulls[0]["state"] = "closed"
    assert "Not exactly one open pull request" in run_for_fork(forked, tmp_path)
    assert api.comments == []


def test_what_is_no_page_of_the_artifact_is_left_out(api: GitHub, tmp_path: Path, forked: dict[str, str]) -> None:
    page = tmp_path / "pages" / f"adk-eval-{KEY}" / "comment.md"
    secret = tmp_path / "secret"
    secret.write_text("key")
    page.unlink()
    page.symlink_to(secret)
    for name in ("adk-eval-x", "adk-eval-$(touch spoilt)", f"adk-eval-{KEY}0"):
        (tmp_path / "pages" / name).mkdir()
        (tmp_path / "pages" / name / "comment.md").write_text("page")
    assert run_for_fork(forked, tmp_path) == ""
    assert (api.comments, list(tmp_path.rglob("spoilt"))) == ([], [])


def test_the_job_for_forks_runs_nothing_of_theirs() -> None:
    (job,) = FOR_FORKS["jobs"].values()
    checkouts = [step["with"] for step in job["steps"] if step.get("uses", "").startswith("actions/checkout")]
    assert [one["repository"] for one in checkouts] == ["${{ job.workflow_repository }}"]
    assert (FOR_FORKS["permissions"], job["permissions"]) == ({}, {"actions": "read", "contents": "read", "pull-requests": "write"})
    assert "secrets" not in str(FOR_FORKS)
    assert not any("${{" in step.get("run", "") for step in job["steps"])


def test_an_evaluation_that_fails_has_a_page_with_the_reason(runner: Runner, api: GitHub) -> None:
    runner.github = api.environment
    runner.use(agent=HOSTILE, eval_set=HOSTILE, promote="false")
    assert runner.codes == {"Evaluate": 64}, runner.said
    (body,) = api.ours
    head, shown = body.split("<pre>")
    assert head.endswith("\n\n### ⚠️ Agent gate: no decision\n\n")
    assert not re.search(r"[<>]", shown.partition("</pre>")[0])
    assert list(runner.folder.parent.rglob("spoilt")) == []


def test_a_step_before_the_evaluation_has_a_page_too(runner: Runner, api: GitHub) -> None:
    runner.github, runner.base = api.environment, "main"
    runner.use(promote="true")
    assert runner.codes == {"Policy": 64}
    assert "A step before the evaluation failed." in api.ours[0]


@pytest.mark.slow
def test_the_action_comments_on_what_it_decided(runner: Runner, api: GitHub) -> None:
    runner.github = api.environment
    api.faults.append(("GET", 403))
    assert runner.use()["verdict"] == "passed", "whether or not the job may comment"
    assert runner.said.count("::warning::The pull request has no new comment") == 1
    runner.use(agent="home_automation_agent_regressed", promote="false", gate_arguments="--nonsense")
    assert runner.codes == {"Evaluate": 0, "Decide": 64}, runner.said
    assert "no decision" in api.ours[0]
    assert "No such option" in api.ours[0]
    runner.use(agent="home_automation_agent_regressed", promote="false")
    assert runner.codes == {"Evaluate": 0, "Decide": 1}, runner.said
    (body,) = api.ours
    assert "### ❌ Agent gate: failed" in body
    assert "Passed before, fails now: turn&#95;off&#95;light" in body
    assert "in its artifact `adk-eval-" in body
