"""Each setting of each criterion changes an outcome, a request to a judge or the plan, or is refused with the criteria that read it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.agents.recordings import Recording
from mlflow_adk_eval.config.eval_config import load_config, parse_config
from mlflow_adk_eval.config.spec import (
    CRITERIA,
    INTERMEDIATE,
    CriterionSpec,
    JudgedSettings,
    JudgeModelOptions,
    RubricSettings,
    ServiceSettings,
    VertexSettings,
)
from mlflow_adk_eval.errors import ConfigError, JudgeError, UsageError
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import AgentDetails, AppDetails, EvalSet, IntermediateData, Invocation, Part
from mlflow_adk_eval.judge.protocol import Answer, Request
from mlflow_adk_eval.testing import answer_for
from tests.criteria.vertex_kit import by_us
from tests.judge.providers.vertex_server import evaluating, row
from tests.judge.servers import serving
from tests.kit import call, case, cases, event, recorded, run_of, scenario, turn

HERE = __name__
ASKED: list[tuple[str, Request]] = []
SCENARIO = "per_turn_user_simulator_quality_v1"


def first(request: Request) -> Answer:
    return _said("first", request)


def second(request: Request) -> Answer:
    return _said("second", request)


def _said(name: str, request: Request) -> Answer:
    ASKED.append((name, request))
    return answer_for(request, _label(request.schema["properties"]))


def _label(properties: Mapping[str, Any]) -> str:
    verdict = properties.get("verdict") or next(iter(properties.values()))["properties"]["verdict"]
    label: str = verdict["enum"][-1]
    return label


DETAILS = AppDetails(agent_details={"agent": AgentDetails(name="agent", instructions="Be brief.")})
SAID_BEFORE = IntermediateData(
    tool_uses=(call("look", x=1), call("book", {"n": 1})),
    intermediate_responses=(("agent", (Part(text="I run. I look."),)),),
)
WANTED = (
    turn("The flight runs. It is booked.", user="book").model_copy(update={"intermediate_data": SAID_BEFORE}),
    turn("Yes", call("look", x=1), user="look"),
)
DONE = (
    recorded(
        "It is booked. The flight is running.",
        event(call("other"), call("look", x=1), call("book", {"n": 1.0}), text="On the way."),
        app_details=DETAILS,
    ),
    recorded("Yes", event(call("look", x=2), text="Hm."), app_details=DETAILS),
)
RUBRIC = {"rubric_id": "brief", "rubric_content": {"text_property": "It is brief."}}


def full(name: str = "full", **more: Any) -> Any:
    spoken = [{**RUBRIC, "type": spec.rubric_type, "rubric_id": spec.rubric_type} for spec in CRITERIA.values() if spec.rubric_type]
    return case(name, *WANTED, rubrics=spoken, final_session_state={"a": 1}, **more)


def bare(name: str = "bare") -> Any:
    """A case that says nothing of what is expected."""
    return case(name, turn(None, user="hm"))


EVERYTHING = cases(full())
WITH_GAPS = cases(full(), bare(), scenario("played"), eval_set_id="with_gaps")
PLAYED = cases(scenario("played"), eval_set_id="played")


def of(eval_set: EvalSet) -> Recording:
    """What the agent did in each case."""
    runs: dict[str, tuple[Conversation, ...]] = {}
    for one in eval_set.eval_cases:
        actual: tuple[Invocation, ...] = DONE if one.eval_id == "full" else (recorded("hm", event(call("look", x=2))),)
        runs[one.eval_id] = (Conversation(actual=actual, session_state={"a": 1, "b": 2}),)
    return Recording(name="recorded", runs=runs)


REQUIRED: Mapping[str, Any] = {"tools": ["book"]}
"""Settings that have no default, besides the threshold."""


def least(spec: CriterionSpec) -> dict[str, Any]:
    """The least that a config says of a criterion."""
    threshold = (spec.bounds[0] + min(spec.bounds[1], 9.0)) / 2
    return {"threshold": threshold, **{field: value for field, value in REQUIRED.items() if field in spec.fields}}


def base(spec: CriterionSpec) -> dict[str, Any]:
    """Settings with which a criterion can be decided here."""
    settings = least(spec)
    if issubclass(spec.settings, VertexSettings):
        settings["backend"] = "judge"
    if issubclass(spec.settings, JudgedSettings):
        settings["judge_model_options"] = {"judge_model": f"{HERE}:first", "num_samples": 5}
    return settings


FLIPS: Mapping[str, tuple[Any, ...]] = {
    "threshold": (1.5,),
    INTERMEDIATE: (True,),
    "only_where_expected": (True,),
    "early_stop": (False,),
    "judge_panel": (["gemini-2.5-flash", "gemini-2.5-pro"],),
    "prompt": ("repeated", "examples", "listed"),
    "rubrics": ([RUBRIC],),
    "backend": ("vertex",),
    "match_type": ("EXACT", "SUBSET", "IN_ORDER", "ANY_ORDER"),
    "ignore_args": (True,),
    "include_inner_calls": (True,),
    "tools": ([{"name": "book", "args": {"n": 2}}], ["no_such_tool"]),
    "evaluate_intermediate_nl_responses": (True,),
    "stop_signal": ("BYE",),
    "instruction": ("agent_instructions",),
    "use_reference": (True,),
    "use_effective_order": (False,),
    "rouge_type": ("rouge2", "rougeL", "rougeLsum"),
    "use_stemmer": (True,),
    "split_summaries": (True,),
    "use_strict_string_match": (True,),
}
OPTIONS: Mapping[str, Any] = {
    "judge_model": f"{HERE}:second",
    "judge_model_config": {"temperature": 0.5},
    "num_samples": 1,
}
TOGETHER: Mapping[str, Mapping[str, Any]] = {
    "split_summaries": {"rouge_type": "rougeLsum"},
    "only_where_expected": {"use_reference": True},
}
"""What a setting is read together with, where the criterion has that."""
OF_SPEED = {"parallelism_limit"}
"""Accepted for ADK: how many requests are under way says nothing about what they come to. See docs/development/parity.md."""


def settings_of_all() -> Iterator[tuple[str, str, Any]]:
    """Yield each setting of each criterion that a judge or a computation decides, with a value that is not its default."""
    for name, spec in CRITERIA.items():
        if issubclass(spec.settings, ServiceSettings):
            continue
        for field, info in spec.settings.model_fields.items():
            if field == "judge_model_options":
                yield from ((name, f"{field}.{option}", value) for option, value in OPTIONS.items())
                continue
            default = info.get_default(call_default_factory=True)
            yield from ((name, field, value) for value in FLIPS[field] if value != default)


@cache
def observed_before(name: str, settings: str, eval_set_id: str) -> Any:
    """What `observed` says of settings that are changed one by one."""
    eval_set = {one.eval_set_id: one for one in (EVERYTHING, WITH_GAPS, PLAYED)}[eval_set_id]
    return observed(name, json.loads(settings), eval_set)


def observed(name: str, settings: Mapping[str, Any], eval_set: EvalSet) -> Any:
    """Everything that could differ: why it is refused, or the plan, the outcomes and the requests."""
    ASKED.clear()
    try:
        config = load_config({"criteria": {name: settings}})
        report = adk_eval.score(eval_set, of(eval_set), config, baseline=eval_set, ledger="off")
    except (ConfigError, UsageError, JudgeError) as error:
        return type(error), str(error)
    results = [repr((one.overall, one.per_invocation)) for case_run in report.cases for one in case_run.results if one.criterion == name]
    requests = sorted((judge, request.instructions, request.text, repr(dict(request.settings))) for judge, request in ASKED)
    return config.thresholds(), results, requests


def refused(found: Any) -> bool:
    return found[0] in (ConfigError, UsageError)


@pytest.mark.needs("sacrebleu")
@pytest.mark.parametrize(("name", "field", "value"), list(settings_of_all()), ids=str)
def test_each_setting_changes_something_or_is_refused(name: str, field: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"):
        monkeypatch.delenv(variable, raising=False)
    spec, eval_set = CRITERIA[name], EVERYTHING
    if field == "only_where_expected":
        eval_set = WITH_GAPS
    elif name == SCENARIO:
        eval_set = PLAYED
    before = base(spec)
    if field in TOGETHER and set(TOGETHER[field]) <= set(spec.settings.model_fields):
        before |= TOGETHER[field]
    after = dict(before)
    if "." in field:
        after["judge_model_options"] = before["judge_model_options"] | {field.partition(".")[2]: value}
    else:
        after[field] = value
    if field == "judge_panel":
        after["judge_model_options"] = {"num_samples": 5}  # the model of one judge is refused beside a panel
    plain = observed_before(name, json.dumps(before), eval_set.eval_set_id)
    changed = observed(name, after, eval_set)
    assert changed != plain, f"{name}: {field}={value!r} changes nothing"
    if field == "judge_panel":  # whose first model is looked for, in place of the function
        assert changed[0] is JudgeError
        assert "no API key for Gemini" in changed[1]
    if not refused(changed):
        return
    message = changed[1]
    if field == INTERMEDIATE:
        assert field not in spec.fields
        assert f"{field}: found a setting without effect; wanted a criterion that reads it. It is read by " in message
        assert "response_match_score" in message or " more" in message
    else:
        assert field in message or str(value) in message


def test_every_setting_of_a_judge_is_tried() -> None:
    assert set(OPTIONS) | OF_SPEED == set(JudgeModelOptions.model_fields)


def test_a_setting_that_only_others_have_is_refused_with_those_that_read_it() -> None:
    every = {field for spec in CRITERIA.values() for field in spec.settings.model_fields}
    for name, spec in CRITERIA.items():
        for field in every - set(spec.settings.model_fields):
            with pytest.raises(ConfigError) as caught:
                parse_config({"criteria": {name: {**least(spec), field: None}}}, "config")
            (problem,) = caught.value.problems
            assert problem.path == f"$.criteria.{name}.{field}"
            assert (problem.found, problem.wanted) == ("an unknown key", f"one of {', '.join(spec.fields)}")
            assert "It is read by " in problem.hint or "Did you mean" in problem.hint


@pytest.mark.parametrize("name", [name for name, spec in CRITERIA.items() if issubclass(spec.settings, VertexSettings)])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("judge_model_options", {"num_samples": 3}),
        ("judge_model_options", {"judge_model": "gemini-pro"}),
        ("early_stop", False),
        ("judge_panel", ["a", "b"]),
        ("prompt", "listed"),
    ],
)
def test_the_settings_of_a_judge_are_refused_where_the_service_decides(name: str, field: str, value: Any) -> None:
    spec = CRITERIA[name]
    settings = {**least(spec), "backend": "vertex", field: value}
    with pytest.raises(ConfigError, match=rf"\$\.criteria\.{name}\.{field}: found a setting without effect"):
        parse_config({"criteria": {name: settings}}, "config")


@pytest.mark.needs("google-cloud-aiplatform")
@pytest.mark.parametrize("name", [name for name, spec in CRITERIA.items() if spec.by_service and INTERMEDIATE in spec.fields])
def test_the_service_is_shown_what_was_said_on_the_way_if_the_settings_say_so(name: str) -> None:
    more = {"backend": "vertex"}
    run = run_of([recorded("End.", event(call("look"), text="On the way."), app_details=DETAILS)], None)
    bodies: list[list[Any]] = []
    for included in (False, True):
        with serving(evaluating(lambda *_: row(1))) as server:
            by_us(server, name, run, include_intermediate_responses_in_final=included, **more)
            bodies.append([request.body for request in server.calls])
    assert bodies[0] != bodies[1]


def test_a_default_says_nothing_and_is_accepted_everywhere() -> None:
    """Configs that programs write hold every default."""
    for name, spec in CRITERIA.items():
        written = spec.settings.model_validate(least(spec)).model_dump(mode="json", by_alias=False)
        parse_config({"criteria": {name: written}}, "config")


def test_a_run_keeps_its_config_though_a_setting_of_it_has_no_effect() -> None:
    config = {"criteria": {"tool_trajectory_avg_score": {"threshold": 1, INTERMEDIATE: True}}}
    assert parse_config(config, "config", stored=True).thresholds() == {"tool_trajectory_avg_score": "1.0"}
    with pytest.raises(ConfigError, match="a setting without effect"):
        parse_config(config, "config")


@pytest.mark.parametrize("name", [name for name, spec in CRITERIA.items() if issubclass(spec.settings, RubricSettings)])
def test_rubric_criteria_read_rubrics_of_their_own_type(name: str) -> None:
    kind = CRITERIA[name].settings
    assert issubclass(kind, RubricSettings)
    assert kind.rubric_type == CRITERIA[name].rubric_type
