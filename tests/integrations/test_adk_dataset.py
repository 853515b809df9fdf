"""``mlflow.data.from_adk_evalset``: what it costs everybody, what it reads, and what MLflow keeps of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlflow_adk_eval.errors import EvalSetError, UsageError
from mlflow_adk_eval.evalset.files import dumps, load_eval_set
from mlflow_adk_eval.evalset.models import eval_set_digest
from tests.integrations.plugin_kit import configured_store
from tests.tracking.small import CONFIG, answering, expected_of, rooms

EXAMPLE = Path(__file__).parents[2] / "example_projects" / "home_automation" / "home_automation.evalset.json"
DIGEST = eval_set_digest(rooms()).removeprefix("sha256:")[:36]


@pytest.fixture(scope="module")
def uri(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with configured_store(template, tmp_path_factory.mktemp("datasets")) as configured:
        yield configured


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rooms.evalset.json"
    path.write_text(dumps(rooms()))
    return path


def python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error:Failure attempting:UserWarning", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.mark.slow
def test_importing_mlflow_loads_next_to_nothing_of_ours_and_says_nothing() -> None:
    done = python("import sys, mlflow, mlflow.models\nprint('\\n'.join(sys.modules))")
    loaded = set(done.stdout.split())
    ours = {name for name in loaded if name.startswith("mlflow_adk_eval")}
    assert ours == {"mlflow_adk_eval", *(f"mlflow_adk_eval.integrations{name}" for name in ("", ".evaluator", ".evaluator.dataset"))}
    assert not {name for name in loaded if name.startswith(("google.adk", "google.genai"))}
    assert "adk_evalset" not in done.stderr


@pytest.mark.slow
def test_mlflow_lists_the_evaluator_and_loads_nothing_for_it_but_its_class() -> None:
    done = python(
        "import sys, mlflow\nprint(mlflow.models.list_evaluators())\nprint([n for n in sys.modules if n.startswith('mlflow_adk_eval')])"
    )
    evaluators, loaded = done.stdout.splitlines()
    assert "'adk'" in evaluators
    assert loaded.count("mlflow_adk_eval.") == 4  # two of them are packages without content
    assert "mlflow_adk_eval.integrations.evaluator.evaluator" in loaded


def test_it_is_known_by_our_digest_under_the_id_of_the_set(file: Path) -> None:
    import mlflow

    dataset = mlflow.data.from_adk_evalset(str(file))
    assert (dataset.name, dataset.digest) == ("rooms", DIGEST)
    assert dataset.profile == {"num_cases": 3, "digest": eval_set_digest(rooms())}
    assert dataset.schema is None
    stored = dataset.to_dict()
    assert json.loads(stored["profile"]) == dataset.profile
    assert stored["source_type"] == "adk_evalset"


def test_a_name_and_a_digest_of_ones_own_are_taken(file: Path) -> None:
    import mlflow

    dataset = mlflow.data.from_adk_evalset(file, name="nightly", digest="v7")
    assert (dataset.name, dataset.digest) == ("nightly", "v7")
    assert dataset.profile["digest"] == eval_set_digest(rooms())


def test_only_what_the_user_named_is_written_down(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.chdir(file.parent)
    text = mlflow.data.from_adk_evalset("rooms.evalset.json").to_json()
    assert str(file.parent) not in text
    assert "rooms.evalset.json" in text


def test_a_selection_is_a_dataset_of_its_own(file: Path) -> None:
    import mlflow

    dataset = mlflow.data.from_adk_evalset(f"{file}:heat,light")
    assert dataset.eval_set.eval_ids == ("light", "heat")
    assert dataset.digest != DIGEST
    assert [case["eval_id"] for case in dataset.source.load()["eval_cases"]] == ["light", "heat"]


def test_a_legacy_file_and_a_folder_are_read_whatever_config_is_beside_them(tmp_path: Path) -> None:
    import mlflow

    legacy = [{"query": "hello", "expected_tool_use": [], "reference": "hi"}]
    (tmp_path / "old.test.json").write_text(json.dumps(legacy))
    (tmp_path / "test_config.json").write_text("no config at all")
    assert mlflow.data.from_adk_evalset(tmp_path / "old.test.json").profile["num_cases"] == 1
    folder = mlflow.data.from_adk_evalset(tmp_path)
    loaded = mlflow.data.get_source(folder).load()
    assert loaded["eval_cases"][0]["conversation"][0]["user_content"]["parts"][0]["text"] == "hello"


def test_an_eval_set_that_is_no_file_has_no_path(uri: str) -> None:
    import mlflow

    dataset = mlflow.data.from_adk_evalset(rooms())
    assert dataset.named is None
    assert [case["eval_id"] for case in mlflow.data.get_source(dataset).load()["eval_cases"]] == ["light", "heat", "both"]
    with mlflow.start_run(experiment_id=mlflow.create_experiment("an object")) as run:
        mlflow.log_input(dataset)
    (stored,) = mlflow.get_run(run.info.run_id).inputs.dataset_inputs
    with pytest.raises(UsageError, match=r"'rooms' was not a file when it was logged; its runs contain it"):
        mlflow.data.get_source(stored).load()


def test_a_broken_file_is_refused_with_its_problems(tmp_path: Path) -> None:
    import mlflow

    path = tmp_path / "broken.evalset.json"
    path.write_text('{"eval_set_id": "x", "eval_cases": [{"conversation": []}]}')
    with pytest.raises(EvalSetError, match="eval_id"):
        mlflow.data.from_adk_evalset(path)


def test_mlflow_logs_it_and_gives_back_its_source(uri: str, file: Path) -> None:
    import mlflow

    with mlflow.start_run(experiment_id=mlflow.create_experiment("a file")) as run:  # the first source in an experiment stays
        mlflow.log_input(mlflow.data.from_adk_evalset(str(file)), context="evaluation")
    (logged,) = mlflow.get_run(run.info.run_id).inputs.dataset_inputs
    assert (logged.dataset.name, logged.dataset.digest, logged.dataset.source_type) == ("rooms", DIGEST, "adk_evalset")
    source = mlflow.data.get_source(logged)
    assert source.uri == str(file)
    assert [case["eval_id"] for case in source.load()["eval_cases"]] == ["light", "heat", "both"]


def test_the_source_of_a_run_of_evaluate_is_its_artifact(uri: str) -> None:
    import mlflow

    from mlflow_adk_eval import evaluate

    report = evaluate(rooms(), expected_of(rooms()), CONFIG, experiment="artifact")
    (logged,) = mlflow.get_run(report.run_id).inputs.dataset_inputs
    assert [case["eval_id"] for case in mlflow.data.get_source(logged).load()["eval_cases"]] == ["light", "heat", "both"]


def test_anybody_elses_source_stays_what_it_is(file: Path) -> None:
    from mlflow.data.dataset_source_registry import get_registered_sources

    (ours,) = [source for source in get_registered_sources() if source.__name__ == "EvalSetSource"]
    assert not ours._can_resolve(str(file))


def test_evaluate_takes_it_with_the_config_beside_its_file(uri: str, file: Path) -> None:
    import mlflow

    from mlflow_adk_eval import evaluate

    (file.parent / "test_config.json").write_text(json.dumps({"criteria": {"response_match_score": 0.25}}))
    dataset = mlflow.data.from_adk_evalset(str(file), name="nightly")
    report = evaluate(dataset, answering(rooms(), heat="no"), experiment="taken")
    assert report.config.thresholds() == {"response_match_score": "0.25"}
    assert report.verdict == "failed"
    run = mlflow.get_run(report.run_id)
    (logged,) = run.inputs.dataset_inputs
    assert (logged.dataset.name, logged.dataset.digest, logged.dataset.source_type) == ("nightly", DIGEST, "adk_evalset")
    assert mlflow.data.get_source(logged).uri == str(file)
    assert run.data.params["adk_eval.eval_set_digest"] == eval_set_digest(rooms())


def test_evaluate_takes_a_managed_dataset_and_its_run_links_to_it(uri: str) -> None:
    import mlflow

    from mlflow_adk_eval import evaluate
    from mlflow_adk_eval.tracking.eval_set_datasets import push_eval_set

    dataset = push_eval_set(rooms(), "managed rooms")
    report = evaluate(dataset, expected_of(rooms()), CONFIG, experiment="managed")
    assert report.passed
    run = mlflow.get_run(report.run_id)
    (logged,) = run.inputs.dataset_inputs
    assert (logged.dataset.name, logged.dataset.digest) == ("managed rooms", DIGEST)
    assert json.loads(logged.dataset.source) == {"dataset_id": dataset.dataset_id}
    assert logged.dataset.source_type == "mlflow_evaluation_dataset"


def test_metrics_of_mlflow_see_a_row_for_each_case() -> None:
    import mlflow

    frame = mlflow.data.from_adk_evalset(EXAMPLE).to_frame()
    example = load_eval_set(EXAMPLE)
    assert list(frame["eval_id"]) == list(example.eval_ids)
    asked = [[turn.user_text for turn in case.conversation or ()] for case in example.eval_cases]
    assert [said if isinstance(said, list) else [said] for said in frame["inputs"]] == asked
    assert any(len(said) > 1 for said in asked)
    (inputs,) = mlflow.data.from_adk_evalset(EXAMPLE).to_pyfunc().inputs
    assert list(inputs.columns) == ["eval_id", "inputs"]
