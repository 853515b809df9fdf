"""What coding agents read: each skill is as the specification of skills wants it, and answers questions from llms.txt or a skill alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mlflow_adk_eval.integrations.mcp_server import make_server

ROOT = Path(__file__).parents[2]
SKILLS = sorted((ROOT / "skills").iterdir())
LLMS = (ROOT / "llms.txt").read_text("utf-8")
QUESTIONS = re.findall(r"^\| (.+\?) \| (\S+) \| `([^`]+)` \|$", (ROOT / "docs/development/questions.md").read_text("utf-8"), re.MULTILINE)
_LINKED = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("folder", SKILLS, ids=lambda folder: folder.name)
def test_a_skill_is_short_says_when_to_use_it_and_leads_to_pages_that_exist(folder: Path) -> None:
    text = (folder / "SKILL.md").read_text("utf-8")
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["name"] == folder.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", folder.name)
    assert len(folder.name) <= 64
    assert 100 < len(front["description"]) <= 1024
    assert "Use when" in front["description"]
    assert text.splitlines()[2] == f"description: {front['description']}"  # where the server and llms.txt look for it
    assert len(text.splitlines()) <= 200
    assert text.count("```console") >= 1
    assert [link for link in _LINKED.findall(text) if not (folder / link).is_file()] == []


def test_there_is_a_skill_for_each_job() -> None:
    assert {folder.name for folder in SKILLS} == {
        "evaluate-adk-agent",
        "explain-evaluation-failure",
        "gate-agent-promotion",
        "write-eval-cases",
    }
    assert make_server().name == "mlflow-adk-eval"


def test_llms_txt_is_what_pages_and_skills_say() -> None:
    done = subprocess.run([sys.executable, "docs/llms.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    listed = set(_LINKED.findall(LLMS))
    assert {str(path.relative_to(ROOT)) for path in (*ROOT.glob("docs/**/*.md"), *ROOT.glob("skills/*/SKILL.md"))} - listed == {
        "docs/index.md"
    }
    assert [name for name in listed if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize(("question", "file", "words"), QUESTIONS, ids=[question for question, *_ in QUESTIONS])
def test_a_question_is_answered_by_a_file_that_llms_txt_leads_to(question: str, file: str, words: str) -> None:
    assert f"]({file}):" in LLMS
    assert words in (ROOT / file).read_text("utf-8")


def test_there_are_twenty_questions_at_least() -> None:
    assert len(QUESTIONS) >= 20
    rows = (ROOT / "docs/development/questions.md").read_text("utf-8").count("\n| ") - 1
    assert len(QUESTIONS) == rows  # the test has read each row
