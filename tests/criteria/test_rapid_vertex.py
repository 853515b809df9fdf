"""The metrics of the Rapid Eval API as criteria that Vertex AI decides: the real google-cloud-aiplatform against a loopback server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mlflow_adk_eval import metrics, scorers
from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS, RapidMetric
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import ConfigError, JudgeError
from mlflow_adk_eval.evalset.models import AgentDetails, AppDetails, Invocation
from mlflow_adk_eval.judge.hosts import host_of
from mlflow_adk_eval.judge.setup import JudgeOptions
from mlflow_adk_eval.results.outcomes import Errored, Scored
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.recordings import score
from mlflow_adk_eval.tracking.bundle import start_params
from tests.criteria.rapid.vertex_kit import asked_in, camel, rapid, usual
from tests.judge.providers.vertex_server import LOCATION, PROJECT, error
from tests.judge.servers import Server, serving
from tests.kit import call, case, cases, turn

JUDGED = [metric for metric in RAPID_METRICS.values() if metric.kind == "judged"]
WITH_REFERENCE = [metric for metric in JUDGED if "use_reference" in metric.spec]
VERBOSITY = RAPID_METRICS["summarization_verbosity"]

At = Callable[[Server], Server]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> At:
    """Let the environment name a server as Vertex AI's."""

    def chosen(server: Server) -> Server:
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
        monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", LOCATION)
        monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", server.url)
        return server

    return chosen


def told(answer: str | None, *calls: Any, user: str = "Capital of Switzerland?") -> Invocation:
    app = AppDetails(agent_details={"root": AgentDetails(name="root", instructions="Be brief.")})
    return turn(answer, *calls, user=user).model_copy(update={"app_details": app})


def config_of(metric: RapidMetric, **given: Any) -> Any:
    return {"criteria": {metric.criterion: {"threshold": CRITERIA[metric.criterion].bounds[1], "backend": "vertex", **given}}}


def reported(metric: RapidMetric, *actual: Invocation, ledger: Any = False, expected: str = "Bern", **given: Any) -> Report:
    wanted = [turn(expected or None) for _ in actual]
    options = JudgeOptions(attempts=2)
    return score(cases(case("c", *wanted)), {"c": list(actual)}, config_of(metric, **given), judge_options=options, ledger=ledger)


def judged(metric: RapidMetric, *actual: Invocation, **given: Any) -> Any:
    return reported(metric, *actual, **given).cases[0].results[0]


@pytest.mark.parametrize("metric", JUDGED, ids=lambda metric: metric.name)
@pytest.mark.needs("google-cloud-aiplatform")
def test_the_service_rates_each_turn(metric: RapidMetric, at: At) -> None:
    with serving(rapid(usual)) as server:
        at(server)
        report = reported(metric, told("Bern.", call("search", q="capital")))
    result = report.cases[0].results[0]
    grade = metric.bounds[1]
    details = {"rating": grade, "grade": metric.scale[int(grade)], "confidence": pytest.approx(0.8)}
    rationale = f"{grade:g} ({metric.scale[int(grade)]}): because of {metric.name}"
    assert result.per_invocation == (Scored(grade, rationale, details),)
    (vote,) = result.votes
    assert (vote.criterion, vote.verdict, vote.explanation) == (metric.criterion, f"{grade:g}", f"because of {metric.name}")
    assert (vote.model, vote.error, vote.invocation_index) == (f"vertex:{metric.name}", "", 0)
    assert report.judging is not None
    assert (report.judging.calls, report.judging.models) == (1, (f"vertex at {host_of(server.url)}",))


@pytest.mark.parametrize("metric", JUDGED, ids=lambda metric: metric.name)
@pytest.mark.needs("google-cloud-aiplatform")
def test_the_service_sees_what_a_judge_of_our_own_sees(metric: RapidMetric, at: At) -> None:
    with serving(rapid(usual)) as server:
        at(server)
        judged(metric, told("Bern.", call("search", q="capital")))
    asked, given = asked_in(server.calls[0])
    assert (asked, given["metricSpec"]) == (metric, {})
    instance = given["instance"]
    assert set(instance) == set(metric.fields)
    assert instance["prediction"] == "Bern."
    assert instance.get("instruction", "Capital of Switzerland?") == "Capital of Switzerland?"
    if "context" in metric.fields:
        assert "Be brief." in instance["context"]
        assert "capital" in instance["context"]


@pytest.mark.parametrize("metric", WITH_REFERENCE, ids=lambda metric: metric.name)
@pytest.mark.needs("google-cloud-aiplatform")
def test_the_reference_and_the_agents_instructions_are_sent_where_the_settings_say_so(metric: RapidMetric, at: At) -> None:
    with serving(rapid(usual)) as server:
        at(server)
        judged(metric, told("Bern."), use_reference=True, instruction="agent_instructions")
    given = asked_in(server.calls[0])[1]
    assert given["metricSpec"] == camel({"use_reference": True})
    assert given["instance"]["reference"] == "Bern"
    assert "Be brief." in given["instance"]["instruction"]


@pytest.mark.parametrize(("rated", "distance"), [(-2, 2), (-1, 1), (0, 0), (1, 1), (2, 2)])
@pytest.mark.needs("google-cloud-aiplatform")
def test_verbosity_is_the_distance_from_the_best_length(rated: int, distance: int, at: At) -> None:
    with serving(rapid(lambda *_: {"score": rated, "explanation": "hm"})) as server:
        at(server)
        result = judged(VERBOSITY, told("Bern."), threshold=1)
    (cell,) = result.per_invocation
    assert (cell.score, cell.details["rating"], cell.details["confidence"]) == (distance, rated, None)
    assert cell.rationale == f"{rated} ({VERBOSITY.scale[rated]}): hm"
    assert result.votes[0].verdict == str(rated)
    assert result.passed is (distance <= 1)


@pytest.mark.needs("google-cloud-aiplatform")
def test_turns_are_rated_on_their_own(at: At) -> None:
    with serving(rapid(lambda _, one: {"score": len(one["prediction"])})) as server:
        at(server)
        result = judged(RAPID_METRICS["fluency"], told("a"), told("aaaa"), told("aaa"))
    assert [cell.score for cell in result.per_invocation] == [1, 4, 3]
    assert result.score == pytest.approx(8 / 3)


@pytest.mark.parametrize("answer", [None, "", " \n", "Thought process:"])
@pytest.mark.parametrize("metric", [RAPID_METRICS["fluency"], RAPID_METRICS["safety"], VERBOSITY], ids=lambda metric: metric.name)
@pytest.mark.needs("google-cloud-aiplatform")
def test_an_answer_that_says_nothing_gets_the_worst_score_without_a_call(metric: RapidMetric, answer: str | None, at: At) -> None:
    with serving(rapid(usual)) as server:
        at(server)
        assert judged(metric, told(answer)).score == (2 if metric is VERBOSITY else metric.bounds[0])
    assert server.calls == []


@pytest.mark.parametrize(
    ("name", "actual", "given", "lacking"),
    [
        ("fulfillment", turn("Bern."), {"instruction": "agent_instructions"}, "agent's instructions were not recorded"),
        ("summarization_quality", told("Bern."), {"use_reference": True, "expected": ""}, "no expected response"),
        ("groundedness", turn("Bern.", user=""), {}, "the agent's context was not recorded"),
    ],
)
@pytest.mark.needs("google-cloud-aiplatform")
def test_a_turn_that_lacks_something_is_an_error_without_a_call(name: str, actual: Invocation, given: Any, lacking: str, at: At) -> None:
    with serving(rapid(usual)) as server:
        at(server)
        (cell,) = judged(RAPID_METRICS[name], actual, **given).per_invocation
    assert isinstance(cell, Errored)
    assert lacking in cell.error
    assert server.calls == []


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({}, "Vertex AI gave no score"),
        ({"score": 6}, "the score 6.0, which is not a number from 1 to 5"),
        (error(400, "too long"), "too long"),
        (error(403, "denied"), "denied"),
        (error(503, "later"), "503 POST"),
    ],
)
@pytest.mark.needs("google-cloud-aiplatform")
def test_no_rating_is_an_error_and_never_a_score(said: Any, message: str, at: At) -> None:
    with serving(rapid(lambda _, one: said if one["prediction"] == "bad" else {"score": 3})) as server:
        at(server)
        result = judged(RAPID_METRICS["coherence"], told("bad"))
    (cell,) = result.per_invocation
    assert isinstance(cell, Errored)
    assert message in cell.error
    assert (result.score, result.votes[0].verdict) == (None, None)
    assert message in result.votes[0].error


@pytest.mark.needs("google-cloud-aiplatform")
def test_what_was_paid_for_is_not_asked_again_whoever_asks(at: At, tmp_path: Path) -> None:
    metric, ledger = RAPID_METRICS["coherence"], tmp_path / "ledger.sqlite"
    with serving(rapid(usual)) as server:
        at(server)
        first = reported(metric, told("Bern."), ledger=ledger)
        again = reported(metric, told("Bern."), ledger=ledger, threshold=1)
        assert len(server.calls) == 1
    assert again.judging is not None
    assert (again.judging.calls, again.judging.reused) == (0, 1)
    assert again.cases[0].results[0].per_invocation == first.cases[0].results[0].per_invocation


@pytest.mark.parametrize("lacking", ["GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION"])
def test_what_is_missing_is_said_before_anything_is_sent(lacking: str, at: At, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(rapid(usual)) as server:
        at(server)
        monkeypatch.delenv(lacking)
        with pytest.raises(JudgeError, match=lacking):
            judged(RAPID_METRICS["fluency"], told("Bern."))
    assert (server.calls, server.connections) == ([], 0)


@pytest.mark.needs("google-cloud-aiplatform")
def test_as_scorer_and_metric_of_mlflow_the_service_decides(at: At, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_GENAI_EVAL_MAX_WORKERS", "4")
    config = config_of(RAPID_METRICS["fluency"])
    with serving(rapid(usual)) as server:
        at(server)
        scorer, *_ = scorers.from_config(config, ledger=False)
        found: Any = scorer(inputs={"question": "Capital?"}, outputs="Bern.")
        metric, *_ = metrics.from_config(config, ledger=False)
        assert metric.eval_fn is not None
        scored: Any = metric.eval_fn(pd.Series(["Bern."]))
        sent = [asked_in(call)[1]["instance"] for call in server.calls]
    assert (found.value, list(scored.scores)) == (5.0, [5.0])
    assert sent == [{"prediction": "Bern."}] * 2


def test_a_run_does_not_say_how_often_our_own_judge_voted() -> None:
    params = start_params(parse_config(config_of(RAPID_METRICS["fluency"]), "config"), "", "")
    assert not [name for name in params if name.startswith("adk_eval.num_samples.")]


@pytest.mark.parametrize("metric", [one for one in RAPID_METRICS.values() if one.kind != "judged"], ids=lambda metric: metric.name)
def test_the_other_metrics_have_no_such_backend_as_criteria(metric: RapidMetric) -> None:
    with pytest.raises(ConfigError, match="backend"):
        parse_config(config_of(metric, threshold=1), "config")
