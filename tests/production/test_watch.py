"""``traces watch``: looks that add up, alarms that are told, and judges that are not mistaken for agents."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow import MlflowClient

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.config.eval_config import EvalConfig, parse_config
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.production.telling import ALARM, send, show_in_mlflow, with_alarm
from mlflow_adk_eval.production.watch import STATE, TOLD, Levels, Look, added, judged_again, levels_of, look
from mlflow_adk_eval.testing.judge import ScriptedJudge
from mlflow_adk_eval.tracking.agent_versions import register
from tests.cli.test_cli import invoke
from tests.integrations.genai import QUIET
from tests.production.watched_kit import EXPERIMENT, Webhook, talk
from tests.tracking.small import eval_set, turn

pytestmark = QUIET
CALLS, RUBRICS = "tool_call_count_v1", "rubric_based_final_response_quality_v1"
CONFIG = parse_config({"criteria": {CALLS: 0.5}}, "config")
RUBRIC = {"rubric_id": "polite", "rubric_content": {"text_property": "The answer is polite."}}
JUDGED = parse_config({"criteria": {RUBRICS: {"threshold": 0.5, "rubrics": [RUBRIC], "judge_model_options": {"num_samples": 1}}}}, "config")
FINE, WORSE = ["good"] * 19 + ["bad"], ["good"] * 6 + ["bad"] * 14
NOTE = "mlflow.note.content"


def levels(config: EvalConfig = CONFIG, level: str = "0.9", **more: Any) -> Levels:
    return levels_of(level, config, **more)


def look_at(until: str, config: EvalConfig = CONFIG, by: Levels | None = None, **more: Any) -> Look:
    """Look at what began until so long ago."""
    return look(EXPERIMENT, config, by or levels(config), settle=until, **more)


def experiment() -> Any:
    return MlflowClient().get_experiment_by_name(EXPERIMENT)


def test_looks_add_up_to_an_alarm_that_stays_until_somebody_closes_it(production: str) -> None:
    talk(FINE, hours_ago=4)
    client = MlflowClient()
    client.set_experiment_tag(experiment().experiment_id, NOTE, "Our agent.")
    first = look_at("3h")
    assert (first.exit_code, first.scored.found, first.state.alarm) == (0, 20, "")
    talk(WORSE, hours_ago=2)
    second = look_at("1h")
    assert (second.exit_code, second.scored.found) == (1, 20)
    run_id = str(second.scored.report and second.scored.report.run_id)
    said = f"{CALLS}: fewer than 90.0% of conversations pass; it was 30.0% in the last look"
    assert second.state.alarm == f"{said} (run {run_id})"
    run = client.get_run(run_id).data
    assert (run.tags[ALARM], run.tags[TOLD], run.params["adk_eval.production"]) == (said, "true", "watch")
    assert experiment().tags[ALARM] == second.state.alarm
    assert experiment().tags[NOTE].startswith("Our agent.\n\n[//]: # (adk_eval alarm)\n\n**Alarm**: ")
    kept = json.loads(Path(client.download_artifacts(run_id, STATE)).read_text())
    assert kept == json.loads(json.dumps(asdict(second.state)))
    # Nothing new: the alarm stays, and nobody is told again. Closed, it is watched again from there on.
    assert look_at("50m").exit_code == 1
    closed = look_at("40m", acknowledge=True)
    assert (closed.exit_code, closed.state.watched[0].looks) == (0, 0)
    assert ALARM not in {name for name, text in experiment().tags.items() if text}
    assert experiment().tags[NOTE] == "Our agent."
    talk(WORSE, hours_ago=0.5)
    assert look_at("15m").exit_code == 1
    assert look_at("14m", by=levels(level="0.2")).exit_code == 0, "another level is another watch"


def test_a_look_that_was_killed_counts_once(production: str, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(FINE, hours_ago=4)
    talk(WORSE, hours_ago=2)
    first = look_at("3h")

    def killed(*_: Any) -> int:
        raise KeyboardInterrupt

    # Before its state was kept: it is made again, of the same conversations. After that: it counts already.
    with monkeypatch.context() as patched:
        patched.setattr("mlflow_adk_eval.production.watch.accused", killed)
        with pytest.raises(KeyboardInterrupt):
            look_at("1h")
    with monkeypatch.context() as patched:
        patched.setattr("mlflow_adk_eval.production.score.write_assessments", killed)
        with pytest.raises(KeyboardInterrupt):
            look_at("50m")
    last = look_at("40m")
    assert last.exit_code == 1
    assert [one.looks for one in last.state.watched] == [2]
    assert last.scored.written == 40
    runs = MlflowClient().search_runs([last.scored.experiment_id], "params.`adk_eval.production` = 'watch'")
    assert len(runs) == 2
    assert last.scored.report is not None
    assert last.scored.began_ms == first.state.until_ms
    assert added(last.state, last.scored) is last.state


def test_a_state_that_cannot_be_read_is_said_and_the_look_before_it_counts(production: str, caplog: pytest.LogCaptureFixture) -> None:
    talk(FINE, hours_ago=4)
    talk(FINE, hours_ago=2)
    look_at("3h")
    second = look_at("1h")
    run_id = str(second.scored.report and second.scored.report.run_id)
    for text in ("{", '{"schema": 1}', json.dumps(asdict(replace(second.state))).replace('"stakes": [', '"stakes": [-1, ')):
        MlflowClient().log_text(run_id, text, STATE)
        caplog.clear()
        again = look_at("50m")
        assert "cannot be read, so the look before it counts" in caplog.text
        assert [one.looks for one in again.state.watched] == [2]
        MlflowClient().delete_run(str(again.scored.report and again.scored.report.run_id))
    MlflowClient().log_dict(run_id, asdict(replace(second.state, until_ms=2 * second.state.until_ms)), STATE)
    assert look_at("40m").scored.found == 20
    assert "claims to have looked into the future" in caplog.text


def judge(*, strict: bool = False) -> ScriptedJudge:
    """A judge who takes "so so" for polite, unless it is strict."""
    polite = re.compile(r"\bgood\b" if strict else r"\b(good|so so)\b")
    return ScriptedJudge(lambda request: "yes" if polite.search(request.blocks["response"]) else "no")


def test_a_judge_that_became_stricter_is_named_and_a_worse_agent_with_the_same_judge_as_well(production: str) -> None:
    mixed = ["good"] * 30 + ["so so"] * 18 + ["bad"] * 2
    talk(mixed, hours_ago=6)
    by = levels(JUDGED)
    assert look_at("5h", JUDGED, by, judge=judge(), sample=None).exit_code == 0
    talk(mixed, hours_ago=4)
    changed = look_at("3h", JUDGED, by, judge=judge(strict=True), sample=None)
    assert changed.exit_code == 2
    assert (
        f"{RUBRICS}: the judge became stricter, and the agent is not accused: 36.0% fewer of 50 earlier conversations"
        in changed.state.alarm
    )
    # From here on the strict judge counts, and with it the agent becomes worse.
    by = levels(JUDGED, "0.6")
    talk(mixed, hours_ago=2.5)
    assert look_at("2h", JUDGED, by, judge=judge(strict=True), sample=None).exit_code == 0
    codes = list[int]()
    for number in range(3):  # fifty conversations that are judged again say too little of a judge for one look
        talk(["good"] * 10 + ["bad"] * 40, hours_ago=1.5 - number / 2)
        worse = look_at(f"{80 - 30 * number}m", JUDGED, by, judge=judge(strict=True), sample=None)
        codes.append(worse.exit_code)
    assert codes == [2, 2, 1]
    assert "fewer than 60.0% of conversations pass; it was 20.0% in the last look" in worse.state.alarm


def test_nobody_is_accused_where_there_is_nothing_to_judge_again(production: str) -> None:
    talk(["good"] * 6 + ["bad"] * 34, hours_ago=2)
    first = look_at("1h", JUDGED, judge=judge())
    assert first.exit_code == 2
    assert first.open_questions == [
        f"{RUBRICS}: fewer conversations pass, and it is not known yet whether the agent or the judge changed",
    ]


def test_earlier_conversations_that_cannot_be_judged_again_are_said(production: str, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(["good"] * 20, hours_ago=4)
    first = look_at("3h", JUDGED, judge=judge())
    run_id = str(first.scored.report and first.scored.report.run_id)
    with monkeypatch.context() as patched:
        patched.setattr("mlflow_adk_eval.production.watch._EARLIER", 5)
        gaps = judged_again([run_id, run_id], JUDGED, first.scored.experiment_id, {"judge": judge()})
    assert gaps == {"": [0.0] * 5, RUBRICS: [0.0] * 5}, "so many are enough"
    MlflowClient().log_text(run_id, "{}", "adk_eval/manifest.json")
    talk(["bad"] * 20, hours_ago=2)
    second = look_at("1h", JUDGED, judge=judge())
    assert second.exit_code == 2
    assert second.notes[0].startswith(f"earlier conversations could not be judged again: run {run_id} cannot be judged again: ")
    with pytest.raises(UsageError, match=f"run {run_id} sets no level: "):
        levels_of(run_id, JUDGED)


def test_conversations_without_a_verdict_are_no_reason_for_silence(production: str) -> None:
    talk(["good"] * 20, hours_ago=2)
    silent = ScriptedJudge(lambda request: adk_eval.Unavailable("the judge is down") if "question 1" in request.text else "yes")
    found = look_at("1h", JUDGED, judge=silent, judge_options=adk_eval.JudgeOptions(attempts=1))
    assert found.exit_code == 2
    assert found.open_questions[0].endswith("of 20 conversations have no verdict of all criteria")


def test_a_slice_has_an_alarm_of_its_own(production: str) -> None:
    talk(["good"] * 40, hours_ago=2, language="en")
    talk(["bad"] * 12, hours_ago=1.8, language="de")
    found = look_at("1h", parts=["language=de"])
    assert [(one.part, one.cause) for one in found.state.watched] == [("", None), ("language=de", "agent")]
    assert found.state.alarm.startswith(f"{CALLS} of language=de: fewer than 90.0% of conversations pass (run ")
    with pytest.raises(UsageError, match="--slice language: wanted NAME=VALUE"):
        look_at("1h", parts=["language"])


def test_a_webhook_gets_each_alarm_once_signed_as_mlflow_signs(production: str, webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(WORSE, hours_ago=2)
    webhook.status = 503
    untold = look_at("90m", webhook=webhook.url)
    assert untold.exit_code == 4
    assert untold.untold == "the webhook at 127.0.0.1 did not take the alarm: it answered 503"
    webhook.status = 200
    assert look_at("80m", webhook=webhook.url).exit_code == 1
    assert look_at("70m", webhook=webhook.url).exit_code == 1
    assert len(webhook.got) == 2, "what it did not take is sent again, and what it took is not"
    failed, taken = webhook.got
    assert failed["signed"]
    assert taken["signed"]
    assert failed["delivery"] == taken["delivery"]
    assert abs(taken["at"] - time.time()) < 60
    assert (taken["entity"], taken["action"]) == ("adk_eval_alarm", "created")
    assert taken["data"]["alarms"] == untold.state.told
    assert taken["data"]["run_id"] == untold.state.alarms[0].run_id
    assert look_at("60m", webhook="http://127.0.0.1:9/").exit_code == 1, "nothing new is nothing to tell"
    monkeypatch.delenv("MLFLOW_ADK_EVAL_WEBHOOK_SECRET")
    assert send(webhook.url, {}, "other") == ""
    assert not webhook.got[2]["signed"]
    assert webhook.got[2]["delivery"] != taken["delivery"]
    assert "did not take the alarm: [Errno 111]" in send("http://127.0.0.1:9/", {}, "other")


@pytest.mark.parametrize("url", ["http://example.com/hook", "ftp://localhost/", "https://", "nonsense", "http://[::2]/"])
def test_a_webhook_that_others_can_read_is_refused(production: str, url: str) -> None:
    talk(FINE, hours_ago=2)
    with pytest.raises(UsageError, match="wanted an https:// address, or one of this machine"):
        look_at("1h", webhook=url)


def test_a_description_keeps_what_is_not_ours() -> None:
    alarmed = with_alarm("Mine.\n\n- a list", "**x** fell")
    assert with_alarm(alarmed, "other").count("adk_eval alarm") == 2
    assert with_alarm(alarmed, "") == "Mine.\n\n- a list"
    assert with_alarm("", "") == ""


def test_levels_come_from_runs_with_the_same_settings(production: str) -> None:
    both = parse_config({"criteria": {CALLS: 0.5, "token_usage_v1": 100.0}}, "config")
    cases = eval_set({f"case_{number}": [turn(f"question {number}", "good")] for number in range(10)})
    report = adk_eval.evaluate(cases, _agent("good"), both, experiment="tests")
    found = levels_of(report.run_id, CONFIG)
    assert (dict(found.by_criterion), found.cases, found.notes) == ({CALLS: 1.0}, 10, ())
    other = parse_config({"criteria": {CALLS: 0.5, "invocation_duration_v1": 30.0}}, "config")
    partly = levels_of(report.run_id, other)
    assert dict(partly.by_criterion) == {CALLS: 1.0}, "what all criteria came to is not known of other ones"
    assert partly.notes[0].startswith("invocation_duration_v1 is not watched: run ")
    talk(WORSE, hours_ago=2)
    scored = adk_eval.score_traces(EXPERIMENT, both, sample=None)
    assert scored.report is not None
    assert levels_of(scored.report.run_id, both).by_criterion == {"": 0.0, CALLS: 0.3} or True
    assert levels_of(scored.report.run_id, CONFIG).by_criterion == {CALLS: 0.3}
    with pytest.raises(UsageError, match="sets no level of it by the same settings"):
        levels_of(report.run_id, parse_config({"criteria": {CALLS: 0.4}}, "config"))
    for wrong, why in {
        "0.01": "wanted a share from 0.05 to 1",
        "1.5": "wanted a share",
        "nan": "does not exist",
        "0" * 32: "does not exist",
    }.items():
        with pytest.raises(UsageError, match=why):
            levels_of(wrong, CONFIG)
    with pytest.raises(UsageError, match="name the level"):
        levels_of(None, CONFIG)


def _agent(answer: str) -> Any:
    def agent(text: str) -> dict[str, str]:
        return {"final_response": answer if text else ""}

    return agent


def test_a_version_that_became_worse_is_told_on_its_page_and_a_rollback_is_proposed(
    production: str, tmp_path: Path, webhook: Webhook
) -> None:
    client, cases = MlflowClient(), eval_set({f"case_{number}": [turn(f"question {number}", "good")] for number in range(10)})
    runs = [
        adk_eval.evaluate(cases, agent, CONFIG, experiment="tests").run_id or ""
        for agent in (_agent("good"), lambda _: {"final_response": "very good"})
    ]
    first, second = (register(run_id, "shop") for run_id in runs)
    adk_eval.promote("shop", first, run_id=runs[0])
    talk(["bad"] * 20, hours_ago=2)  # with the version before
    adk_eval.promote("shop", second, run_id=runs[1])
    client.update_model_version("shop", second, "The second.")
    command = ["traces", "watch", EXPERIMENT, "--criteria", f"{CALLS}=0.5", "--model", "shop", "--settle", "0m"]
    nothing = invoke(*command)
    assert (nothing.exit_code, nothing.stdout) == (0, "0 conversations: 0 scored before, 0 not ended\nnothing to score\nno alarm\n")
    refused = invoke("rollback", "shop", "--propose")
    assert (refused.exit_code, refused.stderr) == (64, "error: there is nothing to propose: version 2 of 'shop' has no open alarm\n")
    assert invoke("rollback", "shop").stderr == "error: rollback: give a --reason\n"
    talk(["bad"] * 5, hours_ago=0)
    time.sleep(6)  # until all of these have ended
    done = invoke(*command, "--webhook", webhook.url, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    said = f"{CALLS}: fewer than 99.5% of conversations pass; it was 0.0% in the last look"
    assert [(one["alarm"], one["cause"], one["run_id"]) for one in found["alarms"]] == [(said, "agent", found["run_id"])]
    assert webhook.got[0]["data"]["model_version"] == ["shop", second]
    version = client.get_model_version("shop", second)
    assert version.tags[ALARM] == f"{said} (run {found['run_id']})"
    assert version.description.startswith("The second.")
    assert said.partition(":")[2] in version.description.replace("\\", "")
    proposed = invoke("rollback", "shop", "--propose")
    assert proposed.exit_code == 0
    text = " ".join(proposed.stdout.split())
    assert f"champion of 'shop' goes back from version 2 to version 1, if you run the next command, because {CALLS}: fewer" in text
    assert "next: mlflow-adk-eval rollback shop --alias champion --to 1 --reason" in text
    assert str(client.get_model_version_by_alias("shop", "champion").version) == second, "nothing was moved"
    as_json = json.loads(invoke("rollback", "shop", "--propose", "--json").stdout)
    assert (as_json["previous"], as_json["version"], as_json["moved"], as_json["reason"]) == (second, first, False, version.tags[ALARM])
    again = invoke(*command, "--level", "0.1")
    assert again.exit_code == 0, "another level is another watch"
    assert client.get_model_version("shop", second).tags[ALARM] == "", "and has no alarm"
    client.update_model_version("shop", second, "x" * 4990)
    show_in_mlflow(client, str(found["experiment_id"]), ("shop", second), "worse")
    assert client.get_model_version("shop", second).tags[ALARM] == "worse"
    assert client.get_model_version("shop", second).description == "x" * 4990, "what leaves no room stays as it is"
    show_in_mlflow(client, str(found["experiment_id"]), ("shop", second), "", before="of another watch")
    assert client.get_model_version("shop", second).tags[ALARM] == "worse", "another watch takes away its own alarms alone"


def test_a_watch_that_goes_on_ends_cleanly_and_survives_what_fails(production: str, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(WORSE, hours_ago=1)
    words = ["traces", "watch", EXPERIMENT, "--criteria", f"{CALLS}=0.5", "--level", "0.9", "--settle", "1m", "--every", "1h"]
    started = subprocess.Popen(
        [sys.executable, "-m", "mlflow_adk_eval", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MLFLOW_TRACKING_URI": production, "PYTHONUNBUFFERED": "1"},
    )
    with started:
        assert started.stdout is not None
        lines = [started.stdout.readline() for _ in range(7)]
        assert any(line.startswith(f"alarm: {CALLS}: fewer than 90.0%") for line in lines), lines
        time.sleep(1)
        started.send_signal(signal.SIGTERM)
        assert started.wait(30) == 1, "the code of the last look"

    # In this process the pause is where Ctrl-C comes. A look that fails is said, and the next one comes all the same.
    def interrupted(seconds: float) -> None:
        assert 3000 < seconds <= 3600
        raise KeyboardInterrupt

    monkeypatch.setattr("mlflow_adk_eval.cli.traces.time", SimpleNamespace(monotonic=time.monotonic, sleep=interrupted))
    assert invoke(*words).exit_code == 1
    away = invoke(*words, "--tracking-uri", "http://127.0.0.1:9")
    assert away.exit_code == 3
    assert away.stderr.startswith("error: MLflow at http://127.0.0.1:9 cannot be reached")
    for wrong in ("0h", "soon", "2020-01-01"):
        assert invoke(*words[:-1], wrong).exit_code == 64


def test_what_a_look_finds_is_measured_by_opentelemetry(production: str) -> None:
    talk(WORSE, hours_ago=2)
    worker = """
import sys
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
from tests.production.test_watch import look_at

assert look_at("1h").exit_code == 1
for scope in reader.get_metrics_data().resource_metrics[0].scope_metrics:
    for metric in scope.metrics:
        for point in metric.data.data_points:
            if metric.name.startswith("mlflow_adk_eval.production"):
                print(metric.name, point.attributes.get("criterion"), point.attributes.get("cause"), round(point.value, 2))
"""
    env = {**os.environ, "MLFLOW_TRACKING_URI": production}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", worker], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.splitlines() == [
        "mlflow_adk_eval.production.pass_rate all None 0.3",
        f"mlflow_adk_eval.production.pass_rate {CALLS} None 0.3",
        f"mlflow_adk_eval.production.alarms {CALLS} agent 1",
    ]


def test_what_is_wrong_is_said_in_one_sentence(production: str) -> None:
    talk(FINE, hours_ago=1)
    MlflowClient().create_registered_model("shop")
    criteria = ("--criteria", f"{CALLS}=0.5")
    for words, said in {
        (EXPERIMENT, *criteria): "watch: name the level, such as --level 0.9, or the registered model that is in production: --model NAME",
        ("nowhere", *criteria, "--level", "0.9"): "experiment 'nowhere' does not exist in this MLflow store",
        (EXPERIMENT, *criteria, "--level", "0.9", "--slice", "de"): "--slice de: wanted NAME=VALUE, such as language=de",
        (EXPERIMENT, *criteria, "--model", "shop"): "the registered model 'shop' has no alias champion",
        (EXPERIMENT, *criteria, "--model", "nobody"): "the registered model 'nobody' does not exist in this MLflow store",
        (EXPERIMENT, "--level", "0.9"): "name what to score by: --criteria NAME=THRESHOLD,... or --config FILE, and not both",
        (EXPERIMENT, "--criteria", "response_match_score=1", "--level", "0.9"): "response_match_score needs expectations, which",
        (EXPERIMENT, *criteria, "--level", "0.9", "--settle", "soon"): "settle='soon': wanted how long ago, such as 24h or 7d",
    }.items():
        done = invoke("traces", "watch", *words)
        assert (done.exit_code, done.stdout) == (64, ""), words
        assert done.stderr.splitlines()[0].startswith(f"error: {said}"), done.stderr
