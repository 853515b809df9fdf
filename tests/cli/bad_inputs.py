"""Broken eval sets and configs, and what the one error about each must say. For the library's tests and the command line's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadInput:
    """A file that cannot be used."""

    name: str
    kind: Literal["evalset", "config"]
    content: bytes
    path: str
    """A JSON path that the error names."""
    says: str
    """What the error says about it."""


TURN: Json = {"user_content": {"parts": [{"text": "hi"}]}}
SCENARIO: Json = {"starting_prompt": "hi", "conversation_plan": "p"}
CASE, AT_TURN = "$.eval_cases[0]", "$.eval_cases[0].conversation[0]"


def _of(*cases: Any, **fields: Any) -> Json:
    return {"eval_set_id": "s", "eval_cases": list(cases)} | fields


def _case(*turns: Any, **fields: Any) -> Json:
    return {"eval_id": "c", "conversation": list(turns)} | fields


def _turn(**fields: Any) -> Json:
    return _of(_case(TURN | fields))


def _data(**fields: Any) -> Json:
    return _turn(intermediate_data=fields)


def _scenario(**fields: Any) -> Json:
    return _of({"eval_id": "c", "conversation_scenario": SCENARIO | fields})


_FINE = json.dumps(_of(_case(TURN)))
_DEEP = '{"eval_set_id": "s", "eval_cases": [{"eval_id": "c", "conversation": [], "final_session_state": {"x": %s}}]}'

TEXTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "an empty text"),
    "blank": (b" \n\t ", "an empty text"),
    "truncated": (_FINE[:-20].encode(), "EOF while parsing"),
    "cut in a string": (_FINE[:25].encode(), "EOF while parsing a string"),
    "two values": (_FINE.encode() + b" {}", "trailing characters"),
    "yaml": (b"eval_set_id: s\neval_cases: []\n", "not JSON"),
    "comment": (b'{\n  // cases\n  "eval_set_id": "s"}', "line 2"),
    "trailing comma": (b'{"eval_set_id": "s", "eval_cases": [],}', "trailing comma"),
    "single quotes": (b"{'eval_set_id': 's'}", "not JSON"),
    "python constants": (b'{"eval_set_id": None}', "not JSON"),
    "utf-16 with mark": (_FINE.encode("utf-16"), "text in UTF-16"),
    "utf-16 without mark": (_FINE.encode("utf-16-le"), "text in UTF-16"),
    "utf-32": (_FINE.encode("utf-32"), "text in UTF-16 or UTF-32"),
    "latin-1": ('{"eval_set_id": "café", "eval_cases": []}'.encode("latin-1"), "invalid unicode"),
    "binary": (bytes(range(128, 256)), "not JSON"),
    "half a surrogate pair": (b'{"eval_set_id": "\\ud83d", "eval_cases": []}', "hex escape"),
    "nested ten thousand deep": ((_DEEP % ("[" * 10_000 + "]" * 10_000)).encode(), "recursion limit"),
    "nested ten thousand objects deep": ((_DEEP % ('{"a":' * 10_000 + "1" + "}" * 10_000)).encode(), "recursion limit"),
    "number of ten thousand digits": ((_DEEP % ("9" * 10_000)).encode(), "number out of range"),
    "control character in a string": (b'{"eval_set_id": "a\nb", "eval_cases": []}', "control character"),
}
"""Texts that are no JSON of any kind, with a fragment of the reason."""

EVAL_SETS: dict[str, tuple[Any, str, str]] = {
    "null": (None, "$", "found null; wanted an eval set"),
    "a number": (5, "$", "found 5; wanted an eval set"),
    "a string": ("set", "$", "found 'set'; wanted an eval set"),
    "nothing known": ({"foo": 1}, "$", "wanted an eval set (an object with eval_set_id and eval_cases)"),
    "a config": ({"criteria": {"safety_v1": 1}}, "$", "found an eval config"),
    "a result": ({"eval_set_result_id": "r", "eval_case_results": []}, "$", "found a result of ADK"),
    "a single case": (_case(TURN), "$", "found a single eval case"),
    "no id": ({"eval_cases": []}, "$.eval_set_id", "found nothing"),
    "no cases": ({"eval_set_id": "s"}, "$.eval_cases", "found nothing"),
    "id is a number": (_of() | {"eval_set_id": 5}, "$.eval_set_id", "found 5; wanted a string"),
    "cases are an object": (_of() | {"eval_cases": {"c": {}}}, "$.eval_cases", "found an object with c; wanted a list"),
    "misspelt cases": ({"eval_set_id": "s", "evalCase": []}, "$.evalCase", "Did you mean 'eval_cases'?"),
    "both spellings": (_of(evalSetId="t"), "$.evalSetId", "a second spelling of eval_set_id"),
    "case is a string": (_of("c"), CASE, "found 'c'; wanted an object"),
    "case without id": (_of({"conversation": []}), f"{CASE}.eval_id", "found nothing"),
    "case id is null": (_of(_case() | {"eval_id": None}), f"{CASE}.eval_id", "found null; wanted a string"),
    "same id twice": (_of(_case(TURN), _case(TURN)), "$.eval_cases[1].eval_id", "the same as $.eval_cases[0].eval_id"),
    "neither conversation nor scenario": (_of({"eval_id": "c"}), CASE, "found neither of them"),
    "conversation and scenario": (_of(_case(conversation_scenario=SCENARIO)), CASE, "found both of them"),
    "both, beside an unknown field": (_of(_case(conversation_scenario=SCENARIO, zz=1)), CASE, "found both of them"),
    "misspelt conversation": (_of({"eval_id": "c", "conversations": []}), f"{CASE}.conversations", "Did you mean 'conversation'?"),
    "conversation is a text": (_of({"eval_id": "c", "conversation": "hi"}), f"{CASE}.conversation", "wanted a list"),
    "turn is a text": (_of(_case("hi")), AT_TURN, "found 'hi'; wanted an object"),
    "turn without user": (_of(_case({"final_response": {}})), f"{AT_TURN}.user_content", "found nothing"),
    "misspelt user": (_of(_case({"user_contents": {}})), f"{AT_TURN}.user_contents", "Did you mean 'user_content'?"),
    "legacy turn in a new set": (_of(_case({"query": "hi"})), f"{AT_TURN}.user_content", "found nothing"),
    "user is a text": (_of(_case({"user_content": "hi"})), f"{AT_TURN}.user_content", "found 'hi'; wanted an object"),
    "parts are a text": (_of(_case({"user_content": {"parts": "hi"}})), f"{AT_TURN}.user_content.parts", "wanted a list"),
    "text is a number": (_of(_case({"userContent": {"parts": [{"text": 5}]}})), f"{AT_TURN}.userContent.parts[0].text", "wanted a string"),
    "misspelt part": (_of(_case({"user_content": {"parts": [{"txt": "a"}]}})), f"{AT_TURN}.user_content.parts[0].txt", "mean 'text'?"),
    "answer is a list": (_turn(final_response=[]), f"{AT_TURN}.final_response", "found a list of 0; wanted an object"),
    "data is a list": (_turn(intermediate_data=[]), f"{AT_TURN}.intermediate_data", "found a list of 0; wanted an object"),
    "both shapes": (_data(tool_uses=[], invocation_events=[]), f"{AT_TURN}.intermediate_data.invocation_events", "another shape"),
    "args are a text": (_data(tool_uses=[{"name": "f", "args": "{}"}]), f"{AT_TURN}.intermediate_data.tool_uses[0].args", "found '{}'"),
    "args are a list": (_data(toolUses=[{"args": [1]}]), f"{AT_TURN}.intermediate_data.toolUses[0].args", "wanted an object"),
    "misspelt args": (_data(tool_uses=[{"name": "f", "arg": {}}]), f"{AT_TURN}.intermediate_data.tool_uses[0].arg", "mean 'args'?"),
    "misspelt events": (_data(invocation_event=[]), f"{AT_TURN}.intermediate_data.invocation_event", "Did you mean 'invocation_events'?"),
    "event without author": (
        _data(invocation_events=[{}]), f"{AT_TURN}.intermediate_data.invocation_events[0].author", "found nothing",
    ),
    "broken event beside an unknown field": (
        _data(invocation_events=[{"author": "a"}, {"author": 5}], zz=1), f"{AT_TURN}.intermediate_data.invocation_events[1].author", "found 5",
    ),
    "response as an object": (
        _data(intermediate_responses=[{"author": "a"}]), f"{AT_TURN}.intermediate_data.intermediate_responses[0]", "wanted a list",
    ),
    "response without parts": (
        _data(intermediate_responses=[["a"]]), f"{AT_TURN}.intermediate_data.intermediate_responses[0][1]", "item 2 of this list",
    ),
    "response of three": (
        _data(intermediate_responses=[["a", [], 1]]), f"{AT_TURN}.intermediate_data.intermediate_responses[0]", "a list of exactly 2",
    ),
    "time is a date": (_turn(creation_timestamp="2026-01-01"), f"{AT_TURN}.creation_timestamp", "found '2026-01-01'; wanted a number"),
    "rubric without text object": (_turn(rubrics=[{"rubric_id": "r"}]), f"{AT_TURN}.rubrics[0].rubric_content", "found nothing"),
    "rubric content is a text": (
        _of(_case(TURN, rubrics=[{"rubric_id": "r", "rubric_content": "polite"}])), f"{CASE}.rubrics[0].rubric_content", "wanted an object",
    ),
    "misspelt rubric id": (
        _of(_case(TURN, rubrics=[{"rubricID_": "r", "rubric_content": {}}])), f"{CASE}.rubrics[0].rubricID_", "Did you mean 'rubric_id'?",
    ),
    "agents are a list": (_turn(app_details={"agent_details": []}), f"{AT_TURN}.app_details.agent_details", "wanted an object"),
    "agent without name": (
        _turn(app_details={"agent_details": {"my agent": {}}}), f"{AT_TURN}.app_details.agent_details['my agent'].name", "found nothing",
    ),
    "session without user": (_of(_case(session_input={"app_name": "a"})), f"{CASE}.session_input.user_id", "found nothing"),
    "misspelt user id": (
        _of(_case(session_input={"app_name": "a", "user": "u"})), f"{CASE}.session_input.user", "Did you mean 'user_id'?",
    ),
    "state is a list": (
        _of(_case(session_input={"app_name": "a", "user_id": "u", "state": []})), f"{CASE}.session_input.state", "wanted an object",
    ),
    "final state is a text": (_of(_case(final_session_state="x")), f"{CASE}.final_session_state", "found 'x'; wanted an object"),
    "unknown persona": (_scenario(user_persona="robot"), f"{CASE}.conversation_scenario.user_persona", "EXPERT, NOVICE, EVALUATOR"),
    "persona in lower case": (_scenario(user_persona="novice"), f"{CASE}.conversation_scenario.user_persona", "Did you mean 'NOVICE'?"),
    "persona is a list": (_scenario(userPersona=[]), f"{CASE}.conversation_scenario.userPersona", "found a list of 0; wanted a persona"),
    "half a persona": (_scenario(user_persona={"id": "x"}), f"{CASE}.conversation_scenario.user_persona.behaviors", "found nothing"),
    "scenario without plan": (
        _of({"eval_id": "c", "conversation_scenario": {"starting_prompt": "x"}}), f"{CASE}.conversation_scenario.conversation_plan", "nothing",
    ),
    "legacy case without turns": ([{"name": "a"}], "$[0].data", "found nothing"),
    "legacy case with misspelt turns": ([{"name": "a", "datas": []}], "$[0].datas", "Did you mean 'data'?"),
    "legacy turn without query": ([{"reference": "x"}], "$[0].query", "found nothing"),
    "legacy turn with a misspelt tool use": (
        [{"query": "x", "expected_tool_uses": []}], "$[0].expected_tool_uses", "Did you mean 'expected_tool_use'?",
    ),
    "legacy tool use without input": (
        [{"query": "x", "expected_tool_use": [{"tool_name": "f"}]}], "$[0].expected_tool_use[0].tool_input", "found nothing",
    ),
    "legacy name twice": ([{"name": "a", "data": []}, {"name": "a", "data": []}], "$[1].name", "the same as $[0].name"),
    "legacy list of numbers": ([1, 2], "$[1]", "found 2; wanted an object"),
    "legacy turn after cases": ([{"name": "a", "data": []}, {"query": "x"}], "$[1].name", "found nothing"),
}  # fmt: skip
"""Eval sets that are JSON, with the path and a fragment of the message."""

_RUBRICS = "$.criteria.rubric_based_tool_use_quality_v1.rubrics"


def _criteria(**criteria: Any) -> Json:
    return {"criteria": criteria}


def _custom(threshold: Any = 1, **metric: Any) -> Json:
    return {"criteria": {"m": threshold}, "custom_metrics": {"m": metric}}


def _rubrics(*rubrics: Any) -> Json:
    return _criteria(rubric_based_tool_use_quality_v1={"threshold": 1, "rubrics": list(rubrics)})


_INTERVAL = {"metric_name": "m", "metric_value_info": {"interval": {"min_value": 0, "max_value": 1}}}
_CODE = {"name": "pkg.mod.fn"}

CONFIGS: dict[str, tuple[Any, str, str]] = {
    "null": (None, "$", "found null; wanted an object with criteria"),
    "a list": ([], "$", "found a list of 0"),
    "a threshold": (0.5, "$", "found 0.5"),
    "nothing": ({}, "$.criteria", "found nothing"),
    "no criteria": (_criteria(), "$.criteria", "at least one criterion with a threshold"),
    "criteria are null": ({"criteria": None}, "$.criteria", "found null; wanted at least one criterion"),
    "criteria are a list": ({"criteria": ["safety_v1"]}, "$.criteria", "found a list of 1"),
    "misspelt criteria": ({"criterias": {"safety_v1": 1}}, "$.criterias", "Did you mean 'criteria'?"),
    "unknown key": (_criteria(safety_v1=1) | {"banana": 1}, "$.banana", "wanted one of criteria, custom_metrics"),
    "unknown criterion": (_criteria(banana=1), "$.criteria.banana", "Known are tool_call_count_v1"),
    "misspelt criterion": (_criteria(tool_trajectory_score=1), "$.criteria.tool_trajectory_score", "mean 'tool_trajectory_avg_score'?"),
    "criterion with dashes": ({"criteria": {"SAFETY-v1": 1}}, "$.criteria['SAFETY-v1']", "Did you mean 'safety_v1'?"),
    "threshold is null": (_criteria(safety_v1=None), "$.criteria.safety_v1", "found null; wanted a threshold"),
    "threshold is a list": (_criteria(safety_v1=[1]), "$.criteria.safety_v1", "found a list of 1; wanted a threshold"),
    "threshold is a word": (_criteria(safety_v1="high"), "$.criteria.safety_v1", "found 'high'; wanted a number"),
    "threshold is NaN": (_criteria(safety_v1=float("nan")), "$.criteria.safety_v1", "found NaN; wanted a finite number"),
    "threshold is infinite": (_criteria(token_usage_v1=float("inf")), "$.criteria.token_usage_v1", "wanted a finite number"),
    "threshold above 1": (_criteria(safety_v1=5), "$.criteria.safety_v1", "found 5; wanted a number from 0 to 1"),
    "threshold below 0": (_criteria(safety_v1={"threshold": -1}), "$.criteria.safety_v1.threshold", "found -1"),
    "threshold below 1 on a scale from 1": (
        _criteria(response_evaluation_score=0.8), "$.criteria.response_evaluation_score", "a number from 1 to 5",
    ),
    "negative duration": (_criteria(invocation_duration_v1=-1), "$.criteria.invocation_duration_v1", "a number of at least 0"),
    "no threshold": (_criteria(safety_v1={}), "$.criteria.safety_v1.threshold", "found nothing"),
    "misspelt threshold": (_criteria(safety_v1={"treshold": 1}), "$.criteria.safety_v1.treshold", "Did you mean 'threshold'?"),
    "unknown match type": (
        _criteria(tool_trajectory_avg_score={"threshold": 1, "match_type": "SAME"}), "$.criteria.tool_trajectory_avg_score.match_type", "'IN_ORDER'",
    ),
    "ignore_args is a word": (
        _criteria(tool_trajectory_avg_score={"threshold": 1, "ignoreArgs": "all"}), "$.criteria.tool_trajectory_avg_score.ignoreArgs", "true or false",
    ),
    "setting of another criterion": (
        _criteria(response_match_score={"threshold": 1, "match_type": "EXACT"}), "$.criteria.response_match_score.match_type", "an unknown key",
    ),
    "misspelt judge options": (
        _criteria(hallucinations_v1={"threshold": 1, "judge_model_option": {}}), "$.criteria.hallucinations_v1.judge_model_option", "judge_model_options",
    ),
    "no samples": (
        _criteria(final_response_match_v2={"threshold": 1, "judge_model_options": {"num_samples": 0}}),
        "$.criteria.final_response_match_v2.judge_model_options.num_samples", "a number of at least 1",
    ),
    "half a sample": (
        _criteria(final_response_match_v2={"threshold": 1, "judge_model_options": {"num_samples": 2.5}}),
        "$.criteria.final_response_match_v2.judge_model_options.num_samples", "found 2.5; wanted a whole number",
    ),
    "rubric without text": (_rubrics({"rubric_id": "r", "rubric_content": {}}), f"{_RUBRICS}[0].rubric_content.text_property", "no text"),
    "rubric with an unknown key": (
        _rubrics({"rubric_id": "r", "rubric_content": {"text_property": "x", "text": "x"}}), f"{_RUBRICS}[0].rubric_content.text", "unknown key",
    ),
    "rubric id twice": (
        _rubrics(*[{"rubric_id": "r", "rubric_content": {"text_property": "x"}}] * 2), f"{_RUBRICS}[1].rubric_id", "'r' a second time",
    ),
    "custom metrics are a list": (_criteria(safety_v1=1) | {"custom_metrics": []}, "$.custom_metrics", "wanted an object"),
    "custom metric without code": (_custom(), "$.custom_metrics.m.code_config", "found nothing"),
    "custom code as a text": (_custom(code_config="pkg.mod.fn"), "$.custom_metrics.m.code_config", "wanted an object"),
    "custom code with arguments": (_custom(code_config=_CODE | {"args": []}), "$.custom_metrics.m.code_config.args", "an unknown key"),
    "custom threshold out of range": (_custom(2, code_config=_CODE, metric_info=_INTERVAL), "$.criteria.m", "a number from 0 to 1"),
    "custom metric without threshold": (_custom({}, code_config=_CODE), "$.criteria.m.threshold", "found nothing"),
    "unused custom metric": (
        _criteria(safety_v1=1) | {"custom_metrics": {"my-metric": {"code_config": _CODE}}}, "$.custom_metrics['my-metric']", "no criterion uses",
    ),
    "unknown simulator": (_criteria(safety_v1=1) | {"user_simulator_config": {"type": "robot"}}, "$.user_simulator_config.type", "'llm_backed'"),
    "too few turns": (
        _criteria(safety_v1=1) | {"user_simulator_config": {"max_allowed_invocations": -2}},
        "$.user_simulator_config.max_allowed_invocations", "a number of at least -1",
    ),
    "no time": (_criteria(safety_v1=1) | {"live_model_config": {"timeout_seconds": 0}}, "$.live_model_config.timeout_seconds", "a number above 0"),
    "case criteria are a list": (_criteria(safety_v1=1) | {"case_criteria": []}, "$.case_criteria", "wanted an object"),
    "case without criteria": (_criteria(safety_v1=1) | {"case_criteria": {"a b": {}}}, "$.case_criteria['a b']", "no criterion"),
    "an eval set": (_of(), "$.eval_cases", "an unknown key"),
}  # fmt: skip
"""Configs that are JSON, with the path and a fragment of the message."""

CASES: list[BadInput] = [
    *(BadInput(f"eval set: {name}", "evalset", text, "$", says) for name, (text, says) in TEXTS.items()),
    *(BadInput(f"config: {name}", "config", text, "$", says) for name, (text, says) in TEXTS.items()),
    *(BadInput(f"eval set: {name}", "evalset", json.dumps(value).encode(), path, says) for name, (value, path, says) in EVAL_SETS.items()),
    *(BadInput(f"config: {name}", "config", json.dumps(value).encode(), path, says) for name, (value, path, says) in CONFIGS.items()),
]
