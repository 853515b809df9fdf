"""Conversations of a production run become cases: which ones, what they hold, and what people said of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.entities import AssessmentSource
from mlflow.tracing.utils.copy import copy_trace_to_experiment

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.files import load_eval_set, write_eval_set
from mlflow_adk_eval.production.cases import ProductionCases, cases_from_traces
from mlflow_adk_eval.production.thresholds import thresholds_of
from tests.agents.traces.framework_traces import FRAMEWORKS, recorded
from tests.cli.test_cli import invoke
from tests.integrations.genai import QUIET, tracking
from tests.mlflow_kit import Server, copied
from tests.production.lights import EXPERIMENT, POLITE, SESSIONS, judge, scored, talk

pytestmark = QUIET
IMPOLITE, CRASHED = f"{POLITE} below its threshold 1", "ConnectionError: player 10 of ann@example.com does not answer"
BUSY = "tool_call_count_v1 above its threshold 2"


@pytest.fixture(scope="module")
def made(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A store with traces of production, and the run that scored them."""
    folder = tmp_path_factory.mktemp("production")
    store = copied(template, folder)
    with chdir(folder), tracking(store):
        talk()
        report = scored(store).report
        assert report
        yield store, report.run_id or ""


@pytest.fixture
def own(made: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A copy of that store, to write into."""
    uri, _ = made
    (tmp_path / "mlflow.db").write_bytes(Path(uri.removeprefix("sqlite:///")).read_bytes())
    monkeypatch.chdir(tmp_path)
    with tracking(f"sqlite:///{tmp_path / 'mlflow.db'}"):
        yield f"sqlite:///{tmp_path / 'mlflow.db'}"


def taken(store: str, source: str = EXPERIMENT, **options: Any) -> ProductionCases:
    return cases_from_traces(source, tracking_uri=store, **options)


def traces(session: str) -> list[str]:
    """Return the ids of the traces of a session, in order of time."""
    found = mlflow.search_traces(
        locations=[mlflow.get_experiment_by_name(EXPERIMENT).experiment_id],  # type: ignore[union-attr]
        filter_string=f"trace.name = 'assistant' AND metadata.`mlflow.trace.session` = '{session}'",
        return_type="list",
    )
    return [trace.info.trace_id for trace in sorted(found, key=lambda trace: trace.data.spans[0].start_time_ns)]


def person(name: str = "anna") -> AssessmentSource:
    return AssessmentSource(source_type="HUMAN", source_id=name)


def test_failed_conversations_are_grouped_and_each_cause_has_one_case(made: tuple[str, str]) -> None:
    store, run_id = made
    found = taken(store)
    assert (found.run_id, found.conversations, found.duplicates, found.labels, found.unread) == (run_id, 5, {}, (), ())
    assert found.causes == {
        f"{IMPOLITE} · 2 cases, 1 criterion": ("rude",),
        f"{CRASHED} · 2 cases": ("crash",),
        f"{BUSY} · 1 case, 1 criterion": ("busy",),
    }
    assert {case.eval_id: case.tags for case in found.eval_set.eval_cases} == {
        "rude": ("production", "open", f"cause: {IMPOLITE}"),
        "crash": ("production", "open", f"cause: {CRASHED}"),
        "busy": ("production", "open", f"cause: {BUSY}"),
    }


def test_a_case_has_what_the_user_said_and_the_id_of_the_trace_and_expects_nothing(made: tuple[str, str]) -> None:
    found = taken(made[0], made[1], per_cause=2)
    assert found.eval_set.eval_ids == tuple(SESSIONS)[1:]
    case = found.eval_set.eval_cases[1]
    turns = case.conversation or ()
    assert [turn.user_text for turn in turns] == [text for text, _ in SESSIONS["rude_again"]]
    assert [turn.invocation_id for turn in turns] == traces("rude_again")
    assert [(turn.final_response, turn.intermediate_data) for turn in turns] == [(None, None)] * 2
    assert case.session_input is None


def test_everything_may_become_a_case(made: tuple[str, str]) -> None:
    found = taken(made[0], failed=False)
    assert sorted(found.eval_set.eval_ids) == sorted(["good", "rude_again", "crash", "crash_again", "busy"])
    assert found.duplicates == {"rude": "good"}
    assert found.conversations == 6
    tags = {case.eval_id: case.tags for case in found.eval_set.eval_cases}
    assert tags["good"] == ("production", "open")
    assert tags["crash_again"] == ("production", "open", f"cause: {CRASHED}")


def test_what_another_eval_set_has_is_named_and_ids_are_new_there(made: tuple[str, str], tmp_path: Path) -> None:
    turns = ({"user_content": {"parts": [{"text": "LIGHT ON, please."}]}},)
    crash = {"eval_id": "crash", "conversation": [{"user_content": {"parts": [{"text": "Something else"}]}}]}
    beside = adk_eval.EvalSet.model_validate({"eval_set_id": "x", "eval_cases": [{"eval_id": "case_1", "conversation": turns}, crash]})
    write_eval_set(beside, tmp_path / "beside.evalset.json")
    for given in (beside, tmp_path / "beside.evalset.json"):
        found = taken(made[0], beside=given)
        assert found.duplicates == {"rude": "case_1"}
        assert list(found.causes.values()) == [("rude_again",), ("crash_2",), ("busy",)]
    again = taken(made[0], beside=taken(made[0], per_cause=9).eval_set)
    assert (again.eval_set.eval_cases, len(again.duplicates)) == ((), 5)
    assert list(again.causes.values()) == [(), (), ()]


def test_texts_are_redacted_also_those_of_causes(made: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALL_TOKEN", "Play music")
    found = taken(made[0], per_cause=2, redact=lambda text: text.replace("ann@example.com", "[mail]"))
    text = found.eval_set.model_dump_json()
    assert "ann@example.com" not in text + str(found.causes)
    assert "Play music" not in text
    assert "[mail]" in text
    assert "[HALL_TOKEN]" in text
    with pytest.raises(UsageError, match="redact raised ZeroDivisionError"):
        taken(made[0], redact=lambda _: str(1 / 0))


def test_what_a_person_expected_becomes_the_answer_and_such_a_case_goes_first(own: str) -> None:
    for session in ("rude_again", "crash"):
        last = traces(session)[-1]
        mlflow.log_expectation(trace_id=last, name="expected_response", value="An old answer", source=person())
        mlflow.log_expectation(trace_id=last, name="expected_response", value=f"Sure, {session}, ann@example.com.", source=person())
        code = AssessmentSource(source_type="CODE", source_id="script")
        mlflow.log_expectation(trace_id=last, name="expected_response", value="nobody's", source=code)
    found = taken(own, redact=lambda text: text.replace("ann@example.com", "[mail]"))
    cases = {case.eval_id: case for case in found.eval_set.eval_cases}
    assert list(cases) == ["rude_again", "crash", "busy"]
    assert cases["crash"].tags == ("production", "open calls", f"cause: {CRASHED}".replace("ann@example.com", "[mail]"))
    assert [turn.final_text for turn in cases["crash"].conversation or ()] == ["Sure, crash, [mail]."]
    assert "open" in cases["rude_again"].tags, "its first turn has no answer yet"
    assert [turn.final_text for turn in cases["rude_again"].conversation or ()] == ["", "Sure, rude_again, [mail]."]
    first = traces("rude_again")[0]
    whole = {"mlflow.trace.session": "rude_again"}
    mlflow.log_expectation(trace_id=first, name="expected_response", value="Bye.", source=person(), metadata=whole)
    mlflow.log_expectation(trace_id=first, name="expected_response", value="Done.", source=person())
    (case, *_) = taken(own).eval_set.eval_cases
    assert [turn.final_text for turn in case.conversation or ()] == ["Done.", "Sure, rude_again, ann@example.com."]
    assert "open" not in case.tags


def test_what_people_said_of_a_criterion_becomes_labels_that_calibrate_reads(own: str, tmp_path: Path) -> None:
    one, *_ = traces("rude")
    mlflow.log_feedback(trace_id=one, name=POLITE, value=True, source=person())
    mlflow.log_feedback(trace_id=one, name=POLITE, value="no", source=person())
    mlflow.log_feedback(trace_id=one, name=POLITE, value=False, source=person("bob"))
    mlflow.log_feedback(trace_id=traces("rude_again")[1], name="polite", value=True, source=person())
    mlflow.log_feedback(trace_id=traces("good")[0], name=POLITE, value=True, source=person())
    mlflow.log_feedback(trace_id=traces("good")[0], name=POLITE, value=0.0, source=AssessmentSource(source_type="LLM_JUDGE", source_id="m"))
    mlflow.log_feedback(trace_id=traces("good")[0], name="thumbs", value=False, source=person())
    found = taken(own)
    said = [(row["eval_id"], row["invocation_index"], row["rubric_id"], row["label"], row["labeller"]) for row in found.labels]
    assert sorted(said) == [
        ("good", "0", "", "pass", "anna"),
        ("rude", "0", "", "fail", "anna"),
        ("rude", "0", "", "fail", "bob"),
        ("rude_again", "1", "polite", "pass", "anna"),
    ]
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(found.labels[0]))
        table.writeheader()
        table.writerows(found.labels)
    calibration = adk_eval.calibrate(found.run_id, tmp_path / "labels.csv", tracking_uri=own)
    assert (calibration.labels.count, calibration.labels.labellers) == (4, 2)
    assert calibration.rates(POLITE).true_failures == 1  # type: ignore[union-attr]
    assert adk_eval.calibrate(found.run_id, tracking_uri=own).labels.count == 5, "with the one that anna changed"
    mlflow.log_feedback(trace_id=traces("busy")[0], name=POLITE, value="perhaps", source=person())
    found = taken(own)
    assert len(found.unread) == 1
    assert "'perhaps'" in found.unread[0]


def test_the_verdict_of_a_judge_that_is_missing_is_no_failure(own: str) -> None:
    def down(_: Any) -> Any:
        raise ConnectionError("the judge is down")

    scored(own, judge=down, again=True)
    found = taken(own)
    assert found.conversations == 3
    assert [name.partition(" ·")[0] for name in found.causes] == [CRASHED, BUSY]


def test_open_cases_are_not_compared_with_what_nobody_wrote(own: str, tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text("def answer(message):\n    return 'Sure.'\n")
    found = taken(own)
    write_eval_set(found.eval_set, tmp_path / "open.evalset.json")
    criteria = (
        "response_match_score",
        "tool_trajectory_avg_score",
        "tool_parameter_match",
        "final_response_match_v2",
        "rapid_eval_exact_match",
    )
    config = {"criteria": dict.fromkeys(criteria, 0.5)}
    file = str(tmp_path / "open.evalset.json")
    with pytest.raises(adk_eval.ConfigError, match="3 of 3 cases lack what is expected, which nobody has written"):  # before it is asked
        adk_eval.evaluate(file, lambda message: "Sure.", config, judge=judge, tracking_uri=own)
    said = {case.eval_id: ["Sure."] for case in found.eval_set.eval_cases}
    report = adk_eval.score(file, said, config, judge=judge)
    assert report.verdict == "undecided"
    wanted = "nobody has written what is expected; write it, and remove the tag 'open' of the case"
    for case in report.cases:
        assert [result.overall.error for result in case.results if result.decides] == [f"invocation 1 of 1: {wanted}"] * len(criteria)  # type: ignore[union-attr]
    closed = load_eval_set(tmp_path / "open.evalset.json").model_dump(mode="json", exclude_none=True)
    for case in closed["eval_cases"]:
        case["tags"] = ["production"]
        case["conversation"][0]["final_response"] = {"role": "model", "parts": [{"text": "Sure."}]}
    passed = adk_eval.evaluate(
        adk_eval.EvalSet.model_validate(closed), lambda message: "Sure.", {"criteria": {"response_match_score": 0.5}}, tracking_uri=own
    )
    assert passed.passed


def test_bad_input_is_told_in_a_sentence(own: str) -> None:
    mlflow.set_experiment("empty")
    with pytest.raises(
        UsageError, match=r"experiment 'empty' has no run that scored its traces; first run mlflow-adk-eval traces score empty"
    ):
        taken(own, "empty")
    with pytest.raises(UsageError, match="run 'nowhere' does not exist"):
        taken(own, "nowhere")
    with pytest.raises(UsageError, match="per_cause=0: wanted a whole number of at least 1"):
        taken(own, per_cause=0)
    plain = adk_eval.evaluate(
        taken(own).eval_set, lambda message: "Sure.", {"criteria": {"tool_call_count_v1": 2}}, tracking_uri=own, experiment="plain"
    )
    with pytest.raises(UsageError, match="scored an eval set, not traces, so its conversations are cases already"):
        taken(own, plain.run_id or "")
    assert taken(own, mlflow.get_experiment_by_name(EXPERIMENT).experiment_id).run_id == taken(own).run_id  # type: ignore[union-attr]


def test_the_command_writes_the_cases_and_the_labels_and_says_what_to_do(own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hiding.py").write_text("def mails(text):\n    return text.replace('ann@example.com', '[mail]')\n")
    monkeypatch.syspath_prepend(tmp_path)
    mlflow.log_feedback(trace_id=traces("rude")[0], name=POLITE, value=False, source=person())
    run_id = taken(own).run_id
    where = ("traces", "to-cases", EXPERIMENT, "--failed", "-o", "f.evalset.json", "--tracking-uri", own)
    done = invoke(*where, "--redact", "hiding:mails", "--labels", "labels.csv")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"run: {run_id}",
        "f.evalset.json: 3 cases from 5 failed conversations",
        f"  {IMPOLITE} · 2 cases, 1 criterion: rude",
        f"  {CRASHED} · 2 cases: crash".replace("ann@example.com", "[mail]"),
        f"  {BUSY} · 1 case, 1 criterion: busy",
        "labels.csv: 1 label",
        'next: write what 3 open cases should expect, and remove the tag "open"',
    ]
    assert load_eval_set("f.evalset.json").eval_set_id == "f"
    assert adk_eval.calibrate(run_id, "labels.csv", tracking_uri=own).labels.count == 1
    assert (invoke(*where).exit_code, invoke(*where).stderr) == (64, "error: f.evalset.json already exists; --force overwrites it\n")
    again = invoke(*where[:4], "--per-cause", 3, "--beside", "f.evalset.json", "-o", "more.evalset.json", "--tracking-uri", own, "--json")
    told = json.loads(again.stdout)
    assert (told["cases"], told["open"], told["duplicates"]) == (2, 2, {"rude": "rude", "crash": "crash", "busy": "busy"})
    nothing = invoke(*where[:4], "--beside", "more.evalset.json", "-o", "x.evalset.json", "--per-cause", 9, "--tracking-uri", own)
    assert "3 cases from" in nothing.stdout
    assert invoke("validate", "f.evalset.json", "more.evalset.json").exit_code == 0


@pytest.mark.needs("google-adk", "2.13")  # before, it refuses tags
def test_google_adk_loads_the_cases(own: str) -> None:
    eval_set = pytest.importorskip("google.adk.evaluation.eval_set")
    found = taken(own)
    write_eval_set(found.eval_set, "adk.evalset.json")
    loaded = eval_set.EvalSet.model_validate_json(Path("adk.evalset.json").read_text())
    assert [case.eval_id for case in loaded.eval_cases] == list(found.eval_set.eval_ids)


def test_texts_of_production_are_data(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not commands of a terminal, not part of a filter, not a formula of this package."""
    monkeypatch.chdir(tmp_path)
    store = copied(template, tmp_path)
    with tracking(store):
        mlflow.set_experiment(EXPERIMENT)
        for session in ("\x1b[2Jgone' OR 'a'='a", "{{ 6 * 7 }}"):
            with suppress(ConnectionError), mlflow.start_span("assistant", span_type="AGENT") as span:
                span.set_inputs({"question": f"Tell {session}"})
                mlflow.update_current_trace(metadata={"mlflow.trace.session": session}, tags={"adk.eval_case_id": "'"})
                raise ConnectionError(f"\x1b]0;{session}\x07")
        mlflow.flush_trace_async_logging()
        scored(store)
        done = invoke("traces", "to-cases", EXPERIMENT, "--failed", "--per-cause", 2, "-o", "x.evalset.json", "--tracking-uri", store)
        assert done.exit_code == 0, done.stderr
        assert done.stdout.replace("\n", "").isprintable()
        texts = [turn.user_text for case in load_eval_set("x.evalset.json").eval_cases for turn in case.conversation or ()]
        assert sorted(texts) == sorted(["Tell \x1b[2Jgone' OR 'a'='a", "Tell {{ 6 * 7 }}"])


def test_ids_that_fit_into_no_filter_are_not_asked_for(own: str) -> None:
    turn = {"invocation_id": "tr-1') OR ('a' = 'a", "user_content": {"parts": [{"text": "Hi"}]}}
    eval_set = adk_eval.EvalSet.model_validate({"eval_set_id": "x", "eval_cases": [{"eval_id": "c", "conversation": [turn]}]})
    config = {"criteria": {"tool_call_count_v1": 2}}
    report = adk_eval.evaluate(eval_set, lambda message: "Sure.", config, tracking_uri=own, experiment=EXPERIMENT)
    mlflow.MlflowClient(own).log_param(report.run_id, "adk_eval.production", "score")
    mlflow.log_feedback(trace_id=traces("busy")[0], name="tool_call_count_v1", value=False, source=person())
    found = taken(own, report.run_id or "")
    assert (found.conversations, found.labels) == (0, ())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_traces_of_other_frameworks_become_cases(framework: str, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = copied(template, tmp_path)
    with tracking(store):
        experiment = mlflow.set_experiment(EXPERIMENT).experiment_id
        for trace in recorded(framework):
            copy_trace_to_experiment(trace, experiment)
        mlflow.flush_trace_async_logging()
        scored(store, config={"criteria": {"tool_call_count_v1": 0}})
        made = taken(store)
        (case,) = made.eval_set.eval_cases
        assert [turn.user_text for turn in case.conversation or ()] == ["Light on in the hall, please.", "Thanks."]
        assert case.tags == ("production", "open", "cause: tool_call_count_v1 above its threshold 0")
        assert all(mlflow.get_trace(turn.invocation_id) for turn in case.conversation or ())
        assert thresholds_of(EXPERIMENT, store)


def test_a_store_that_does_not_answer_is_a_failed_run(tmp_path: Path) -> None:
    done = invoke("traces", "to-cases", EXPERIMENT, "-o", tmp_path / "x.json", "--tracking-uri", "http://127.0.0.1:9")
    assert done.exit_code == 3
    assert not (tmp_path / "x.json").exists()


@pytest.mark.slow
def test_a_server_gives_labels_and_answers_as_well(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with tracking(server.uri):
        talk()
        scored(server.uri)
        mlflow.log_feedback(trace_id=traces("rude")[0], name=POLITE, value=False, source=person())
        mlflow.log_expectation(trace_id=traces("busy")[0], name="expected_response", value="Dim.", source=person())
        made = taken(server.uri)
        assert [case.eval_id for case in made.eval_set.eval_cases if "open" not in case.tags] == ["busy"]
        assert [(row["eval_id"], row["label"]) for row in made.labels] == [("rude", "fail")]
