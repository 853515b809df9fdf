"""The shapes of docs/reference/shapes.md in evaluations by MLflow itself, logged to SQLite and to a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest

from mlflow_adk_eval import metrics, scorers
from tests.integrations.classic import Evaluated, evaluated, frame
from tests.integrations.genai import QUIET, errors_of, traces_of, tracking, values_of
from tests.mlflow_kit import Server, copied
from tests.shapes_kit import QUESTIONS, UNKNOWN, examples, filled, rouge

pytestmark = [*QUIET, pytest.mark.slow]
CRITERION = "response_match_score"
CONFIG = {"criteria": {CRITERION: 0.5}}
SHAPES = [example for _, example in examples("Answers and references")]
SCORES = [rouge(answer, reference) for _, answer, reference in QUESTIONS]
WRONG = [value for value, _ in UNKNOWN]


@pytest.fixture(scope="module", params=["sqlite", "http"], autouse=True)
def _store(request: pytest.FixtureRequest, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("shapes")
    server: Server | None = request.getfixturevalue("server") if request.param == "http" else None
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("MLFLOW_ADK_EVAL_LEDGER", "off")
        with tracking(server.uri if server else copied(template, folder)):
            yield


def side(shift: int, text: int) -> list[Any]:
    """Return the answers (1) or references (2) of all questions, each in another shape than the one before."""
    return [filled(SHAPES[(number + shift) % len(SHAPES)], row[0], row[text]) for number, row in enumerate(QUESTIONS)]


SAID = re.compile("wanted a text, an Invocation|found a key that nothing reads here")


@pytest.mark.parametrize("shift", [0, 5])
def test_rows_of_genai(shift: int) -> None:
    rows = [
        {"inputs": {"eval_id": f"{number:03}", "query": row[0]}, "outputs": done, "expectations": {"expected_response": reference}}
        for number, (row, done, reference) in enumerate(zip(QUESTIONS, side(shift, 1), side(2 * shift + 1, 2), strict=True))
    ]
    result = mlflow.genai.evaluate(data=rows, scorers=scorers.from_config(CONFIG))
    values = {trace.data.spans[0].inputs["eval_id"]: values_of(trace, result.run_id)[CRITERION] for trace in traces_of(result.run_id)}
    assert [values[name] for name in sorted(values)] == pytest.approx(SCORES)


def test_rows_of_genai_in_no_shape() -> None:
    rows = [{"inputs": {"query": "q"}, "outputs": value, "expectations": {"expected_response": "a"}} for value in WRONG]
    rows += [{"inputs": {"query": "q"}, "outputs": "a", "expectations": {"expected_response": value}} for value in WRONG]
    result = mlflow.genai.evaluate(data=rows, scorers=scorers.from_config(CONFIG))
    traces = traces_of(result.run_id)
    assert len(traces) == len(rows)
    assert [values_of(trace, result.run_id)[CRITERION] for trace in traces] == [None] * len(rows)
    reasons = [errors_of(trace, result.run_id)[CRITERION][1] for trace in traces]
    assert [reason for reason in reasons if not SAID.search(str(reason))] == []
    assert f"{CRITERION}/mean" not in result.metrics


def test_outputs_of_a_model_beside_columns() -> None:
    """MLflow cannot hash a column of predictions in which lists are; the outputs of a model it need not."""

    def scored(outputs: list[Any], targets: list[Any]) -> Evaluated:
        table = frame(number=range(len(outputs)), inputs=["q"] * len(outputs), wanted=targets)
        mapping = {"col_mapping": {"targets": "wanted"}}
        return evaluated(
            table, metrics.from_config(CONFIG), model=lambda rows: [outputs[one] for one in rows.number], evaluator_config=mapping
        )

    assert scored(side(0, 1), side(3, 2)).scores(CRITERION) == pytest.approx(SCORES)
    objects = [value for value in WRONG if isinstance(value, dict | list)]  # MLflow refuses numbers among them
    for wrong in (scored(WRONG, ["a"] * len(WRONG)), scored(["a"] * len(objects), objects)):
        assert set(wrong.scores(CRITERION)) == {None}
        assert [reason for reason in wrong.reasons(CRITERION) if not SAID.search(str(reason))] == []


def test_a_table_for_the_adk_evaluator() -> None:
    table = frame(inputs=[row[0] for row in QUESTIONS], predictions=side(0, 1), targets=side(3, 2))
    result = mlflow.models.evaluate(data=table, model_type="adk", evaluators="adk", evaluator_config={"config": CONFIG})
    assert result.metrics[f"{CRITERION}/mean"] == pytest.approx(sum(SCORES) / len(SCORES))
