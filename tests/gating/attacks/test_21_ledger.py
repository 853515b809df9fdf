"""Attack 21: a pull request brings the ledger in which the judge has already answered that its agent is good."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.judge.protocol import Answer, Request
from mlflow_adk_eval.results.report import Report
from tests.gating.gate_kit import Lab
from tests.tracking.small import eval_set, turn

MATCH = "final_response_match_v2"
CONFIG = {"criteria": {MATCH: {"threshold": 0.8, "judge_model_options": {"num_samples": 1}}}}
CASES = eval_set({"light": [turn("light on", "the light is on")], "heat": [turn("warmer", "it is warmer")]})
LEDGER = Path(".adk_eval") / "ledger.sqlite"
KEY = "0123456789abcdef" * 4


class Judge:
    """A model with an address, so that its answers are used again; a bribed one finds everything good."""

    model = address = "gemini-2.5-flash"

    def __init__(self, verdict: str = "invalid") -> None:
        self.verdict, self.asked = verdict, 0

    async def ask(self, _: Request) -> Answer:
        self.asked += 1
        return Answer(text=json.dumps({"rationale": "I looked at it.", "verdict": self.verdict}), model=self.model)

    async def aclose(self) -> None:
        pass


def evaluated(lab: Lab, judge: Judge) -> Report:
    return adk_eval.evaluate(
        CASES, lambda _: "Go away.", CONFIG, judge=judge, tracking_uri=lab.uri, experiment="ledger", agent_version=None, traces=False
    )


def git(*arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CI", "MLFLOW_ADK_EVAL_LEDGER", "MLFLOW_ADK_EVAL_LEDGER_KEY", "GITHUB_WORKSPACE", "CI_PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)
    folder, temporary = tmp_path / "checkout", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("RUNNER_TEMP", str(temporary))
    monkeypatch.chdir(folder)
    git("init", "--quiet")
    return folder


def _whole() -> None:
    git("add", "--force", str(LEDGER))


def _link_to_a_tracked_folder() -> None:
    LEDGER.parent.rename("fixtures")
    (Path("fixtures") / ".gitignore").unlink()
    LEDGER.parent.symlink_to("fixtures")
    git("add", "fixtures")


def _tracked_link_to_anywhere() -> None:
    LEDGER.parent.rename("../elsewhere")
    LEDGER.parent.symlink_to("../elsewhere")
    git("add", "--force", str(LEDGER.parent))


def _only_its_log() -> None:
    Path(f"{LEDGER}-wal").write_bytes(LEDGER.read_bytes())
    LEDGER.unlink()


def _in_a_submodule() -> None:
    (LEDGER.parent / ".gitignore").unlink()
    git("-C", str(LEDGER.parent), "init", "--quiet")
    git("-C", str(LEDGER.parent), "add", LEDGER.name)


def _in_what_looks_like_a_bare_repository() -> None:
    git("init", "--quiet", "--bare", str(LEDGER.parent))
    git("add", "--force", str(LEDGER.parent))


def _scored_parts_beside_it() -> None:
    (LEDGER.parent / "parts" / "0123").mkdir(parents=True)
    (LEDGER.parent / "parts" / "0123" / "part-00000.json").touch()
    git("add", "--force", str(LEDGER.parent / "parts"))


WAYS = (
    _scored_parts_beside_it,
    _whole,
    _link_to_a_tracked_folder,
    _tracked_link_to_anywhere,
    _only_its_log,
    _in_a_submodule,
    _in_what_looks_like_a_bare_repository,
)


@pytest.mark.parametrize("commit", WAYS)
def test_a_ledger_that_came_with_the_code_is_refused(
    lab: Lab, checkout: Path, commit: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluated(lab, Judge("valid")).verdict == "passed"
    commit()
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # no variable makes git look elsewhere
    judge = Judge()
    with pytest.raises(UsageError, match=r"git rm --cached|its origin is unknown; delete it"):
        evaluated(lab, judge)
    assert judge.asked == 0


@pytest.mark.parametrize("repository", [True, False])
def test_in_ci_a_ledger_in_the_checkout_counts_only_if_this_job_wrote_it(
    lab: Lab, checkout: Path, repository: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated(lab, Judge("valid"))
    if not repository:
        shutil.rmtree(checkout / ".git")
    monkeypatch.setenv("CI", "true")
    judge = Judge()
    report = evaluated(lab, judge)
    assert (report.verdict, judge.asked) == ("failed", 2)
    assert any(note.startswith("2 ledger entries were not written by this CI job") for note in report.notes)
    again = Judge("valid")
    assert (evaluated(lab, again).verdict, again.asked) == ("failed", 0)


def test_with_a_key_what_was_written_without_it_is_asked_again_and_told(lab: Lab, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for forged_with in (None, "another key of 32 characters or more"):
        if forged_with:
            monkeypatch.setenv("MLFLOW_ADK_EVAL_LEDGER_KEY", forged_with)
        evaluated(lab, Judge("valid"))
    monkeypatch.setenv("MLFLOW_ADK_EVAL_LEDGER_KEY", KEY)
    judge = Judge()
    report = evaluated(lab, judge)
    assert (report.verdict, judge.asked) == ("failed", 2)
    assert "2 ledger entries were not written with your key and not used" in report.notes
    again = Judge("valid")
    assert (evaluated(lab, again).verdict, again.asked) == ("failed", 0)


@pytest.mark.needs("google-adk")
def test_an_env_file_of_the_agent_names_no_ledger_and_no_key(lab: Lab, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ADK_EVAL_LEDGER_KEY", KEY)
    monkeypatch.setenv("MLFLOW_ADK_EVAL_LEDGER", str(checkout.parent / "forged.sqlite"))
    evaluated(lab, Judge("valid"))
    for name in ("MLFLOW_ADK_EVAL_LEDGER_KEY", "MLFLOW_ADK_EVAL_LEDGER"):
        monkeypatch.delenv(name)
    agent = checkout / checkout.parent.name  # a name that no other store's test has imported
    agent.mkdir()
    (agent / "__init__.py").write_text(
        "from google.adk.agents import BaseAgent\nfrom google.adk.events import Event\nfrom google.genai import types\n\n\n"
        "class Rude(BaseAgent):\n    async def _run_async_impl(self, ctx):\n"
        "        yield Event(author='rude', content=types.Content(role='model', parts=[types.Part(text='Go away.')]))\n\n\n"
        "root_agent = Rude(name='rude')\n"
    )
    (agent / ".env").write_text(f"MLFLOW_ADK_EVAL_LEDGER={checkout.parent / 'forged.sqlite'}\nMLFLOW_ADK_EVAL_LEDGER_KEY={KEY}\n")
    judge = Judge()
    report = adk_eval.evaluate(CASES, str(agent), CONFIG, judge=judge, tracking_uri=lab.uri, experiment="ledger", traces=False)
    assert (report.verdict, judge.asked) == ("failed", 2)


def test_no_random_edit_of_a_ledger_with_a_key_makes_a_verdict(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own rows edited, swapped and cut, and those of a ledger without the key in which everything is good."""
    rude = {case.eval_id: [turn("hello", "Go away.")] for case in CASES.eval_cases}
    luck, own, bribed = random.Random(21), Path("../temporary/own.sqlite"), Path("../temporary/bribed.sqlite")

    def scored(judge: Judge, ledger: Path) -> Report:
        return adk_eval.score(CASES, rude, CONFIG, judge=judge, ledger=ledger)

    assert scored(Judge("valid"), bribed).passed
    monkeypatch.setenv("MLFLOW_ADK_EVAL_LEDGER_KEY", KEY)
    assert not scored(Judge(), own).passed
    with closing(sqlite3.connect(own)) as database:
        addresses = [row[0] for row in database.execute("SELECT address FROM answer")]
    assert len(addresses) == len(CASES.eval_cases)
    for _ in range(40):
        with closing(sqlite3.connect(own)) as database, database:
            database.execute("ATTACH ? AS bribed", [str(bribed)])
            for _ in range(luck.choice([1, 1, 2, 3])):
                here, there = luck.choice(addresses), luck.choice(addresses)
                body = database.execute("SELECT body FROM answer WHERE body IS NOT NULL").fetchone()[0]
                place = luck.randrange(len(body))
                noise = body[:place] + luck.choice([b"valid", b"", b"\xff", b'"']) + body[place + luck.choice([0, 1, 7]) :]
                edits: list[tuple[str, list[Any]]] = [
                    ("UPDATE answer SET body = (SELECT body FROM bribed.answer WHERE address = ?) WHERE address = ?", [there, here]),
                    ("UPDATE answer SET code = (SELECT code FROM bribed.answer WHERE address = ?) WHERE address = ?", [there, here]),
                    ("UPDATE answer SET code = (SELECT code FROM answer WHERE address = ?) WHERE address = ?", [there, here]),
                    ("UPDATE answer SET body = ? WHERE address = ?", [noise, here]),
                    ("UPDATE answer SET code = ? WHERE address = ?", [luck.choice([None, b"", "", luck.randbytes(32)]), here]),
                    ("INSERT OR REPLACE INTO answer SELECT * FROM bribed.answer WHERE address = ?", [here]),
                    ("DELETE FROM answer WHERE address = ?", [here]),
                ]
                database.execute(*luck.choice(edits))
        report = scored(Judge(), own)
        assert [case.verdict for case in report.cases] == ["failed"] * len(addresses)
