"""Thirty cases through everything that evaluates in MLflow: each gives the scores of `adk_eval.evaluate`."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.evalset.files import write_eval_set
from tests.integrations import thirty
from tests.integrations.genai import tracking

Scores = Mapping[str, float | None]
"""By eval id, of one criterion."""
Way = Callable[[], Mapping[str, Scores]]
"""By criterion."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning:mlflow"),
    pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*type hint:UserWarning"),
    pytest.mark.filterwarnings("ignore:_ImportHookChainedLoader:ImportWarning"),  # what MLflow puts into the import system
]


def of_report(report: adk_eval.Report) -> dict[str, Scores]:
    found: dict[str, dict[str, float | None]] = {}
    for case in report.cases:
        for result in case.results:
            found.setdefault(result.criterion, {})[case.eval_id] = result.score
    return {criterion: found[criterion] for criterion in thirty.CRITERIA}


class House:
    """The store, and what the agent did in it once."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.store = store
        self.eval_set = thirty.eval_set()
        self.file = folder / "thirty.evalset.json"
        write_eval_set(self.eval_set, self.file)
        self.config = folder / "config.json"
        self.config.write_text(json.dumps(thirty.CONFIG))
        self.report = adk_eval.evaluate(
            self.eval_set, agent=thirty.agent(), config=thirty.CONFIG, judge=thirty.judge(), experiment="thirty", tracking_uri=store
        )
        self.cases = {case.eval_id: case for case in self.report.cases}

    @property
    def wanted(self) -> dict[str, Scores]:
        return of_report(self.report)

    def recording(self) -> dict[str, list[Any]]:
        return {eval_id: list(case.actual) for eval_id, case in self.cases.items()}

    def table(self) -> pd.DataFrame:
        """Return a row per case, as a user's table might hold it."""
        return pd.DataFrame(
            {
                "eval_id": eval_id,
                "did": [turn.model_dump(mode="json", exclude_none=True) for turn in case.actual],
                "case": next(one for one in self.eval_set.eval_cases if one.eval_id == eval_id).model_dump(mode="json", exclude_none=True),
            }
            for eval_id, case in self.cases.items()
        )


def recorded(house: House) -> Mapping[str, Scores]:
    return of_report(adk_eval.score(house.eval_set, house.recording(), thirty.CONFIG, thirty.judge()))


def table(house: House) -> Mapping[str, Scores]:
    """``mlflow.models.evaluate`` on a static table."""
    import mlflow

    result = mlflow.models.evaluate(
        data=house.table(),
        predictions="did",
        targets="case",
        extra_metrics=adk_eval.metrics.from_config(thirty.CONFIG, judge=thirty.judge()),
    )
    return of_table(result.tables["eval_results_table"], list(house.cases))


def model(house: House) -> Mapping[str, Scores]:
    """``mlflow.models.evaluate`` on a model, which is a live agent."""
    import mlflow

    result = mlflow.models.evaluate(
        model=adk_eval.model_fn(thirty.agent()),
        data=pd.DataFrame({"eval_case": [case.model_dump(mode="json", exclude_none=True) for case in house.eval_set.eval_cases]}),
        extra_metrics=adk_eval.metrics.from_config(thirty.CONFIG, judge=thirty.judge()),
        evaluator_config={"col_mapping": {"targets": "eval_case"}},
    )
    return of_table(result.tables["eval_results_table"], list(house.cases))


def of_table(found: pd.DataFrame, eval_ids: list[str]) -> Mapping[str, Scores]:
    return {criterion: dict(zip(eval_ids, found[f"{criterion}/score"].tolist(), strict=True)) for criterion in thirty.CRITERIA}


def plugin(house: House) -> Mapping[str, Scores]:
    """``evaluators="adk"`` with a live agent."""
    import mlflow

    config = {"config": str(house.config), "agent": thirty.agent(), "judge": thirty.judge()}
    data = mlflow.data.from_adk_evalset(str(house.file))
    with mlflow.start_run():
        result = mlflow.models.evaluate(data=data, model_type="adk", evaluators="adk", evaluator_config=config)
    return of_run(result.run_id if hasattr(result, "run_id") else result._run_id)


def of_run(run_id: str) -> Mapping[str, Scores]:
    """Return the case scores that a run's table of turns comes to."""
    import mlflow

    rows = mlflow.load_table("adk_eval/invocations.json", run_ids=[run_id])
    found: dict[str, Scores] = {}
    for criterion in thirty.CRITERIA:
        found[criterion] = rows.groupby("eval_id")[f"{criterion}/score"].mean().to_dict()
    return found


def genai_rows(house: House) -> Mapping[str, Scores]:
    """``mlflow.genai.evaluate`` on what an agent did."""
    from mlflow_adk_eval.evalset.conversation import Conversation
    from mlflow_adk_eval.shapes.records import outputs_of

    rows = [
        row | {"outputs": outputs_of(Conversation(actual=house.cases[row["inputs"]["eval_id"]].actual))}
        for row in adk_eval.genai_data(house.eval_set)
    ]
    return genai(rows)


def genai_agent(house: House) -> Mapping[str, Scores]:
    """``mlflow.genai.evaluate`` with a live agent."""
    return genai(adk_eval.genai_data(house.file), predict_fn=adk_eval.predict_fn(thirty.agent()))


def genai(rows: Any, **how: Any) -> Mapping[str, Scores]:
    import mlflow

    result = mlflow.genai.evaluate(data=rows, scorers=adk_eval.scorers.from_config(thirty.CONFIG, judge=thirty.judge()), **how)
    found: dict[str, dict[str, float | None]] = {criterion: {} for criterion in thirty.CRITERIA}
    for _, row in result.result_df.iterrows():
        for criterion in thirty.CRITERIA:
            found[criterion][eval_id_of(row)] = row[f"{criterion}/value"]
    return found


def eval_id_of(row: Any) -> str:
    request = row["request"]
    return (json.loads(request) if isinstance(request, str) else request)["eval_id"]


def traces(house: House) -> Mapping[str, Scores]:
    """The traces of an earlier run, judged anew."""
    return of_report(
        adk_eval.evaluate(
            house.eval_set,
            agent=traces_of(house, house.report.run_id),
            config=thirty.CONFIG,
            judge=thirty.judge(),
            tracking_uri=house.store,
        )
    )


def traces_of(house: House, run_id: str | None) -> Any:
    from mlflow import MlflowClient

    client = MlflowClient(house.store)
    experiment = client.get_experiment_by_name("thirty").experiment_id
    return client.search_traces(locations=[experiment], run_id=run_id, max_results=500)


def managed(house: House) -> Mapping[str, Scores]:
    """An evaluation dataset of MLflow as the eval set."""
    dataset = adk_eval.push_eval_set(house.eval_set, "thirty", experiment="thirty")
    return of_report(adk_eval.evaluate(dataset, agent=thirty.agent(), config=thirty.CONFIG, judge=thirty.judge(), experiment="thirty"))


def managed_genai(house: House) -> Mapping[str, Scores]:
    """An evaluation dataset of MLflow in ``mlflow.genai.evaluate``."""
    dataset = adk_eval.push_eval_set(house.eval_set, "thirty", experiment="thirty")
    return genai(dataset, predict_fn=adk_eval.predict_fn(thirty.agent()))


def under_pytest(house: House) -> Mapping[str, Scores]:
    """The pytest plugin, in a process of its own; the scores as JUnit's XML has them."""
    (house.folder / "thirty_agent.py").write_text("from tests.integrations.thirty import agent\n\nroot_agent = agent()\n")
    (house.folder / "thirty_judge.py").write_text("from tests.integrations.thirty import judge\n\nask = judge().ask\n")
    command = [sys.executable, "-m", "pytest", str(house.file), "--adk-agent", "thirty_agent", "--adk-config", str(house.config)]
    command += ["--adk-judge", "thirty_judge:ask", "--junitxml", "junit.xml", "-p", "no:cacheprovider"]
    project = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{project}:{house.folder}", "PATH": "/usr/bin:/bin", "MLFLOW_ADK_EVAL_LEDGER": "off"}
    done = subprocess.run(command, cwd=house.folder, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, dict[str, float | None]] = {criterion: {} for criterion in thirty.CRITERIA}
    for test in ET.parse(house.folder / "junit.xml").getroot().iter("testcase"):  # noqa: S314 - our own file
        for told in test.iter("property"):
            name = told.get("name", "").removeprefix("adk.")
            if name in found:
                found[name][test.get("name", "")] = float(told.get("value", "nan"))
    return found


WAYS: Mapping[str, Callable[[House], Mapping[str, Scores]]] = {
    "score": recorded,
    "mlflow.models.evaluate of a table": table,
    "mlflow.models.evaluate of a model": model,
    "evaluators=adk": plugin,
    "mlflow.genai.evaluate of rows": genai_rows,
    "mlflow.genai.evaluate of an agent": genai_agent,
    "traces as the agent": traces,
    "a managed dataset": managed,
    "a managed dataset in mlflow.genai.evaluate": managed_genai,
    "pytest": under_pytest,
}


@pytest.fixture(scope="module")
def house(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    import mlflow

    from tests.mlflow_kit import copied

    folder = tmp_path_factory.mktemp("house")
    store = copied(template, folder)
    with pytest.MonkeyPatch.context() as patched, chdir(folder), tracking(store):
        patched.setenv("MLFLOW_ADK_EVAL_LEDGER", "off")
        patched.setenv("MLFLOW_GENAI_EVAL_PREDICT_RATE_LIMIT", "0")
        patched.setenv("MLFLOW_GENAI_EVAL_SCORER_RATE_LIMIT", "0")
        mlflow.set_experiment("thirty")
        yield House(folder, store)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_scores_of_evaluate(house: House, way: str) -> None:
    found = WAYS[way](house)
    for criterion in thirty.CRITERIA:
        assert len(found[criterion]) == len(house.eval_set.eval_cases), criterion
        assert dict(found[criterion]) == pytest.approx(dict(house.wanted[criterion])), criterion


def test_the_thirty_cases_tell_the_doors_apart(house: House) -> None:
    """A criterion on which all cases score alike would agree with anything."""
    assert all(len(set(house.wanted[criterion].values())) > 1 for criterion in thirty.CRITERIA)
