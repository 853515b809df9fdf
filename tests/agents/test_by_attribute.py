"""``module:attribute`` names whatever kind of agent the attribute is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.agents.functions import CallableAgent
from mlflow_adk_eval.agents.http.a2a import A2AAgent
from mlflow_adk_eval.agents.resolve import resolve_agent

CODE = """
from mlflow_adk_eval.agents.http.a2a import A2AAgent

remote = A2AAgent("http://127.0.0.1:9/")
named = "http://127.0.0.1:9/"

def answer(message):
    return message
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "by_attribute.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "by_attribute", raising=False)


def test_it_may_be_a_function_or_an_agent_behind_an_address() -> None:
    found = resolve_agent("by_attribute:answer")
    assert (type(found), found.name) == (CallableAgent, "answer")
    assert isinstance(resolve_agent("by_attribute:remote"), A2AAgent)


@pytest.mark.parametrize(
    ("named", "wanted"),
    [
        ("by_attribute:answr", "module 'by_attribute' has no agent 'answr'. Did you mean 'answer'"),
        ("by_attribute:named", "module 'by_attribute' has no agent 'named'"),
        ("by_atribute:answer", "there is no module 'by_atribute'"),
    ],
)
def test_what_is_none_is_an_error_of_usage(named: str, wanted: str) -> None:
    with pytest.raises(adk_eval.UsageError, match=wanted):
        resolve_agent(named)
