"""The other side of tests/quirks/test_quirks.py where it takes ADK's whole evaluation service, whose import takes seconds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.models import EvalCase
from mlflow_adk_eval.runner.recordings import score
from tests.kit import RESPONSE, case, cases, turn

pytestmark = [
    pytest.mark.needs("google-adk", "2.10"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # the imports of ADK's evaluation warn of many things that are not ours
]
SERVICE = "google.adk.evaluation.local_eval_service"
SESSION = {"app_name": "app", "user_id": "u"}


@dataclass
class Found:
    """What ADK's service made of cases."""

    inferences: list[Any]
    results: list[Any]
    aborted: BaseException | None

    def statuses(self) -> dict[str, str]:
        return {result.eval_id: result.final_eval_status.name for result in self.results}


def evaluate(
    agent: Any,
    listed: Sequence[EvalCase],
    criteria: Any = None,
    *,
    runs: int = 1,
    folder: Path | None = None,
    parallelism: int = 1,
    **config: Any,
) -> Found:
    """Run and score cases as `adk eval` does."""
    pytest.importorskip(SERVICE, reason="google-adk[eval] is not installed")
    return anyio.run(_evaluate, agent, listed, {"criteria": criteria or {RESPONSE: 0.8}} | config, runs, folder, parallelism)


async def _evaluate(agent: Any, listed: Sequence[EvalCase], config: Any, runs: int, folder: Path | None, parallelism: int) -> Found:
    from google.adk.evaluation.base_eval_service import EvaluateConfig, EvaluateRequest, InferenceConfig, InferenceRequest
    from google.adk.evaluation.eval_config import EvalConfig, get_eval_metrics_from_config
    from google.adk.evaluation.local_eval_service import LocalEvalService
    from google.adk.evaluation.metric_evaluator_registry import DEFAULT_METRIC_EVALUATOR_REGISTRY, register_custom_metrics_from_config

    chosen = EvalConfig.model_validate(config)
    service = LocalEvalService(
        root_agent=agent,
        eval_sets_manager=manager_of(listed, folder),
        metric_evaluator_registry=register_custom_metrics_from_config(chosen, DEFAULT_METRIC_EVALUATOR_REGISTRY.fork()),
    )
    request = InferenceRequest(app_name="app", eval_set_id="s", inference_config=InferenceConfig(parallelism=parallelism))
    inferences = [found for _ in range(runs) async for found in service.perform_inference(request)]
    scoring = EvaluateConfig(eval_metrics=get_eval_metrics_from_config(chosen), parallelism=1)
    results: list[Any] = []
    try:
        async for found in service.evaluate(EvaluateRequest(inference_results=inferences, evaluate_config=scoring)):
            results.append(found)
    except Exception as error:  # noqa: BLE001 - what it raises is what is looked at
        return Found(inferences, results, error)
    return Found(inferences, results, None)


def manager_of(listed: Sequence[EvalCase], folder: Path | None) -> Any:
    """Return a manager of the cases in memory or, since that one refuses duplicates, in files."""
    from google.adk.evaluation.eval_case import EvalCase as AdkEvalCase
    from google.adk.evaluation.eval_set import EvalSet
    from google.adk.evaluation.in_memory_eval_sets_manager import InMemoryEvalSetsManager
    from google.adk.evaluation.local_eval_sets_manager import LocalEvalSetsManager

    theirs = [AdkEvalCase.model_validate(dump(found)) for found in listed]
    if folder:
        (folder / "app").mkdir()
        (folder / "app" / "s.evalset.json").write_text(EvalSet(eval_set_id="s", eval_cases=theirs).model_dump_json())
        return LocalEvalSetsManager(str(folder))
    manager = InMemoryEvalSetsManager()
    manager.create_eval_set("app", "s")
    for found in theirs:
        manager.add_eval_case("app", "s", found)
    return manager


def echo() -> Any:
    from tests.agents.scripted import llm, text, user_text

    return llm(lambda request: text(user_text(request)))


def said(eval_id: str, *texts: str, **more: Any) -> EvalCase:
    """A case in which the agent should repeat what the user says."""
    return case(eval_id, *(turn(text, user=text) for text in texts), **more)


def test_q02_adk_passes_a_case_that_it_could_not_evaluate() -> None:
    found = evaluate(echo(), [said("a", "hi")], {RESPONSE: 0.8, "unheard_of": 1.0})
    assert found.statuses() == {"a": "PASSED"}
    assert {metric.metric_name: metric.eval_status.name for metric in found.results[0].overall_eval_metric_results}[
        "unheard_of"
    ] == "NOT_EVALUATED"


def test_q18_a_silent_turn_aborts_adks_evaluation() -> None:
    from google.adk.agents import BaseAgent
    from google.adk.events.event import Event

    class Silent(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
            if ctx.user_content.parts[0].text != "silence":
                yield Event(author=self.name, invocation_id=ctx.invocation_id, content={"role": "model", "parts": [{"text": "hi"}]})

    found = evaluate(Silent(name="silent"), [said("a", "hi", "silence"), said("b", "hi")])
    assert "Inferences should match conversations" in str(found.aborted)
    assert "a" not in found.statuses()


@pytest.mark.parametrize("name", ["wrong_answer", "says_passed"])
def test_q20_a_metrics_wrong_answer_aborts_adks_evaluation(name: str) -> None:
    metric = {"code_config": {"name": f"tests.criteria.user_metrics.{name}"}}
    found = evaluate(echo(), [said("a", "hi"), said("b", "hi")], {name: 0.9}, custom_metrics={name: metric})
    assert isinstance(found.aborted, AttributeError), "a dict is no result, whatever its keys"
    assert found.statuses() == {}


def test_q20_what_a_metric_changes_is_changed_for_others_in_adk_and_not_here() -> None:
    metric = {"code_config": {"name": "tests.criteria.adk_metrics.vandal"}}
    criteria = {"vandal": 0.5, RESPONSE: 0.8}
    found = evaluate(echo(), [said("a", "hi")], criteria, custom_metrics={"vandal": metric})
    assert {metric.metric_name: metric.score for metric in found.results[0].overall_eval_metric_results}[RESPONSE] == 0.0
    ours = score(cases(said("a", "hi")), {"a": ["hi"]}, {"criteria": criteria, "custom_metrics": {"vandal": metric}})
    assert ours.scores == {"vandal": 1.0, RESPONSE: 1.0}


def test_q21_adk_loses_the_text_of_the_agents_error() -> None:
    from tests.agents.scripted import llm

    def down(request: Any) -> Any:
        raise ConnectionError("model down")

    found = evaluate(llm(down), [said("a", "hi")])
    assert found.inferences[0].error_message == "model down"
    assert found.statuses() == {"a": "FAILED"}
    assert "model down" not in found.results[0].model_dump_json()


def test_q22_adk_reports_no_session_or_its_own_keys_in_it() -> None:
    found = evaluate(echo(), [said("without", "hi"), said("with", "hi", session_input=SESSION | {"state": {"k": 1}})])
    sessions = {result.eval_id: result.session_details for result in found.results}
    assert sessions["without"] is None
    assert set(sessions["with"].state) == {"k", "__llm_request_key__"}


def test_q23_what_one_case_or_run_leaves_reaches_the_next_in_adk() -> None:
    from tests.agents.scripted import call, llm, results, text

    def remember(tool_context: Any) -> dict[str, Any]:
        """Remember."""
        seen = tool_context.state.get("user:name", "nobody")
        tool_context.state["user:name"] = "Bob"
        return {"seen": seen}

    agent = llm(lambda request: text(found[0]["seen"]) if (found := results(request)) else [call("remember")], tools=[remember])
    found = evaluate(agent, [said(name, "hi", session_input=SESSION) for name in "ab"], runs=2)
    assert [inference.inferences[0].final_response.parts[0].text for inference in found.inferences] == ["nobody", "Bob", "Bob", "Bob"]


def test_q24_adk_scores_both_cases_of_one_id_against_the_first(tmp_path: Path) -> None:
    found = evaluate(echo(), [said("a", "hi"), said("a", "other")], folder=tmp_path)
    assert sorted(result.final_eval_status.name for result in found.results) == ["FAILED", "PASSED"]


def test_q31_adk_yields_cases_as_they_finish() -> None:
    from google.adk.agents import BaseAgent
    from google.adk.events.event import Event

    class Late(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
            await anyio.sleep(0.3 - 0.1 * int(ctx.user_content.parts[0].text))
            yield Event(author=self.name, invocation_id=ctx.invocation_id, content={"role": "model", "parts": [{"text": "x"}]})

    found = evaluate(Late(name="late"), [said(f"c{index}", str(index)) for index in range(3)], parallelism=3)
    assert [inference.eval_case_id for inference in found.inferences] == ["c2", "c1", "c0"]


def test_q34_adk_does_not_look_at_the_final_session_state() -> None:
    case_ = said("a", "hi", session_input=SESSION, final_session_state={"booked": True})
    assert evaluate(echo(), [case_]).statuses() == {"a": "PASSED"}


def test_q50_adk_keeps_nothing_of_a_case_in_which_a_tool_raised() -> None:
    from tests.agents.scripted import call, llm

    def broken() -> str:
        """Break."""
        raise OSError("disk full")

    found = evaluate(llm(lambda request: [call("broken")], tools=[broken]), [said("a", "hi")])
    assert not found.inferences[0].inferences
    assert found.statuses() == {"a": "FAILED"}
