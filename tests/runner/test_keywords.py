"""Keywords that functions share: everywhere the same words, in the signature and in the documentation, and no others taken."""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval import metrics, scorers, spark
from mlflow_adk_eval.judge.setup import JudgeArgs, judge_setup
from mlflow_adk_eval.runner.keywords import AgentArgs, ConversationArgs, EvaluateArgs, LogArgs, RecordArgs, ScoreArgs, SparkArgs
from mlflow_adk_eval.testing.evaluator import EvaluateAgentArgs, evaluate_agent
from mlflow_adk_eval.tracking.evaluate import LogReportArgs, ReevaluationArgs, log_report

FUNCTIONS: list[tuple[Callable[..., Any], Any]] = [
    (adk_eval.evaluate, EvaluateArgs),
    (adk_eval.aevaluate, EvaluateArgs),
    (adk_eval.score, ScoreArgs),
    (adk_eval.record, RecordArgs),
    (adk_eval.make_reevaluator, ReevaluationArgs),
    (adk_eval.make_holdout_evaluator, ReevaluationArgs),
    (spark.evaluate, SparkArgs),
    (metrics.from_config, JudgeArgs),
    (scorers.from_config, JudgeArgs),
    (judge_setup, JudgeArgs),
    (log_report, LogReportArgs),
    (evaluate_agent, EvaluateAgentArgs),
]
SHARED = (JudgeArgs, ConversationArgs, AgentArgs, LogArgs)
NAMES = [f"{function.__module__}.{function.__name__}" for function, _ in FUNCTIONS]


def meanings(group: Any) -> dict[str, str]:
    """Return what a group says of each of its own keywords."""
    (node,) = (node for node in ast.parse(Path(inspect.getfile(group)).read_text()).body if getattr(node, "name", "") == group.__name__)
    assert isinstance(node, ast.ClassDef)
    pairs = itertools.pairwise(node.body)
    own = {ast.unparse(field.target): said for field, said in pairs if isinstance(field, ast.AnnAssign) and isinstance(said, ast.Expr)}
    texts = {name: " ".join(ast.literal_eval(said.value).split()) for name, said in own.items()}
    return {name: text[:1].lower() + text[1:] for name, text in texts.items()}


def documented(function: Callable[..., Any]) -> dict[str, str]:
    """Return what the documentation of a function says of each argument."""
    arguments: dict[str, str] = {}
    for line in (inspect.getdoc(function) or "").partition("Args:\n")[2].partition("\n\n")[0].splitlines():
        if line.startswith("     "):
            name = [*arguments][-1]
            arguments[name] += " " + line.strip()
        else:
            name, _, text = line.strip().partition(": ")
            arguments[name] = text
    return arguments


@pytest.mark.parametrize(("function", "group"), FUNCTIONS, ids=NAMES)
def test_help_shows_each_keyword_with_its_default(function: Callable[..., Any], group: Any) -> None:
    parameters = inspect.signature(function).parameters
    assert not {inspect.Parameter.VAR_KEYWORD} & {parameter.kind for parameter in parameters.values()}
    assert set(group.__annotations__) <= set(parameters)
    assert all(parameters[name].default is not inspect.Parameter.empty for name in group.__annotations__)


@pytest.mark.parametrize(("function", "group"), FUNCTIONS, ids=NAMES)
def test_the_documentation_says_of_each_keyword_what_its_group_says(function: Callable[..., Any], group: Any) -> None:
    said = documented(function)
    if function is adk_eval.aevaluate:
        assert said["options"] == "all other keywords of `evaluate`."
        return
    wanted = {name: text for one in (*SHARED, group) for name, text in meanings(one).items()}
    assert {name: said.get(name, "") for name in group.__annotations__} == {name: wanted[name] for name in group.__annotations__}


@pytest.mark.parametrize("function", [adk_eval.evaluate, adk_eval.score, adk_eval.record, metrics.from_config, spark.evaluate])
def test_an_unknown_keyword_is_refused_with_the_one_that_was_meant(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) got an unexpected keyword argument 'ledgr'. Did you mean 'ledger'\?"):
        function("nowhere.json", "nothing", ledgr=False)
