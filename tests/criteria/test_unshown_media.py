"""No judge is asked about what it was not shown: every judged criterion, and every place where media can stand in its material."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS
from mlflow_adk_eval.config.spec import CRITERIA, RubricSettings, VertexSettings
from mlflow_adk_eval.criteria.criterion import CaseRun, apply
from mlflow_adk_eval.criteria.judged_turns import TRIVIAL
from mlflow_adk_eval.criteria.plan import planned_by
from mlflow_adk_eval.criteria.transcript import content_material, tool_material
from mlflow_adk_eval.errors import JudgeError
from mlflow_adk_eval.evalset.media import Media, media_in
from mlflow_adk_eval.evalset.models import Content, EvalCase, Invocation
from mlflow_adk_eval.judge.prompt import Block, load_prompt
from mlflow_adk_eval.judge.providers.vertex import Result, VertexService
from mlflow_adk_eval.judge.question import Question
from mlflow_adk_eval.judge.voting import CellKey, JudgeResponse, VoteCollector
from mlflow_adk_eval.rapid_eval import evaluate_instances
from mlflow_adk_eval.results.outcomes import CriterionResult, Errored, Outcome, Scored
from tests.criteria.judged_kit import Bench
from tests.profiles import examples

Json = dict[str, Any]

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
IN_WORDS = "a data URI in a text"
JUDGED = [name for name, spec in CRITERIA.items() if spec.judged and spec.prompts]
BASELINE = {metric.criterion for metric in RAPID_METRICS.values() if metric.kind == "pairwise"}

PARTS: Mapping[str, Json] = {
    "inline_data": {"inline_data": {"mime_type": "image/png", "data": PNG, "display_name": "chart.png"}},
    "inlineData": {"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0=", "displayName": "chart.png"}},
    "no name": {"inline_data": {"mime_type": "image/png", "data": PNG}},
    "no bytes": {"inline_data": {"mime_type": "image/png"}},
    "file_data": {"file_data": {"mime_type": "audio/wav", "file_uri": "gs://bucket/dir/chart.png?key=secret"}},
    "fileData": {"fileData": {"mimeType": "video/mp4", "fileUri": "https://x.org/chart.png"}},
    "beside a text": {"text": "Here it is.", "inline_data": {"mime_type": "image/png", "data": PNG}},
    "a transcript beside a film": {
        "audio_transcription": {"text": "Here it is."},
        "inline_data": {"mime_type": "video/mp4", "data": "AAAA"},
    },
    IN_WORDS: {"text": f"See ![chart](data:image/png;base64,{PNG})."},
    "a text file of bytes": {"inline_data": {"mime_type": "text/plain", "data": "/////////w=="}},
    "a long text file": {"inline_data": {"mime_type": "text/plain", "data": "aGVs" * 20_000}},
}
"""Parts of messages that hold media."""
RESULTS: Mapping[str, Json] = {
    "parts": {"response": {"ok": True}, "parts": [PARTS["inline_data"]]},
    "a blob": {"response": {"plot": {"mime_type": "image/png", "data": PNG}}},
    "MCP's content": {"response": {"content": [{"type": "image", "data": PNG, "mimeType": "image/png"}]}},
    "MCP's resource": {"response": {"resource": {"uri": "a://b", "mimeType": "application/pdf", "blob": "JVBERi0="}}},
    "a data URI": {"response": {"result": f"data:image/png;base64,{PNG}"}},
    "base64 alone": {"response": {"result": PNG}},
    "JSON in a text": {"response": {"result": json.dumps({"mime_type": "image/png", "data": PNG})}},
    "a block of a chat": {"response": {"result": [{"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}]}},
    "a block of Anthropic": {
        "response": {"result": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}]}
    },
    "a part": {"response": {"parts": [{"file_data": {"file_uri": "gs://b/a.png", "mime_type": "image/png"}}]}},
}
"""Results of tools that hold media."""


def message(role: str, *parts: Json) -> Json:
    return {"role": role, "parts": list(parts)}


@dataclass(frozen=True)
class Talk:
    """Two turns, in which each place holds a part of its own."""

    question: Json = field(default_factory=lambda: {"text": "And tomorrow?"})
    answer: Json = field(default_factory=lambda: {"text": "It will be sunny."})
    on_the_way: Json = field(default_factory=lambda: {"text": "One moment."})
    result: Json = field(default_factory=lambda: {"response": {"sky": "clear"}})
    earlier_question: Json = field(default_factory=lambda: {"text": "What is the weather?"})
    earlier_answer: Json = field(default_factory=lambda: {"text": "It rains."})
    earlier_result: Json = field(default_factory=lambda: {"response": {"sky": "grey"}})
    reference: Json = field(default_factory=lambda: {"text": "Sunny."})
    baseline: Json = field(default_factory=lambda: {"text": "I do not know."})
    instructions: Json = field(default_factory=lambda: {"text": "Be brief."})
    grounding: Json = field(default_factory=lambda: {"response": {"web_search_queries": ["weather"]}})

    def turns(self) -> list[Invocation]:
        first = self._turn(self.earlier_question, self.earlier_answer, {"text": "I look."}, self.earlier_result, {})
        return [first, self._turn(self.question, self.answer, self.on_the_way, self.result, self.grounding.get("response", {}))]

    def _turn(self, asked: Json, said: Json, on_the_way: Json, result: Json, grounding: Json) -> Invocation:
        call = {"function_call": {"id": "1", "name": "weather", "args": {"day": 1}}}
        answered = {"function_response": {"id": "1", "name": "weather", **result}}
        instructions = self.instructions["text"]
        return Invocation.model_validate(
            {
                "user_content": message("user", asked),
                "final_response": message("model", said),
                "intermediate_data": {
                    "invocation_events": [
                        {"author": "agent", "content": message("model", on_the_way, call)},
                        {"author": "agent", "content": message("user", answered), "grounding_metadata": grounding},
                    ]
                },
                "app_details": {"agent_details": {"agent": {"name": "agent", "instructions": instructions}}},
            }
        )

    def other(self, answer: Json) -> list[Invocation]:
        """The same questions with other answers: a reference or a baseline."""
        return [
            Invocation.model_validate({"user_content": turn.user_content, "final_response": message("model", answer)})
            for turn in self.turns()
        ]


PLACES: Mapping[str, Mapping[str, Json]] = {
    "question": PARTS,
    "answer": PARTS,
    "on_the_way": PARTS,
    "result": RESULTS,
    "earlier_question": PARTS,
    "earlier_answer": PARTS,
    "earlier_result": RESULTS,
    "reference": PARTS,
    "baseline": PARTS,
    "instructions": {"a data URI": PARTS[IN_WORDS]},
    "grounding": {name: one for name, one in RESULTS.items() if name != "parts"},
}
EARLIER = {"earlier_question", "earlier_answer"}
_ALL = {"question", "on_the_way", "result", *EARLIER, "earlier_result"}
_KNOWLEDGE = _ALL | {"instructions", "grounding"}
READ: dict[str, set[str]] = {
    "final_response_match_v2": {"question", "answer", "reference"},
    "hallucinations_v1": _KNOWLEDGE | {"answer"},
    "rubric_based_final_response_quality_v1": _KNOWLEDGE | {"answer"},
    "rubric_based_tool_use_quality_v1": _ALL,
    "rubric_based_multi_turn_trajectory_quality_v1": _ALL | {"answer", "instructions"},
    "multi_turn_task_success_v1": _ALL | {"answer", "instructions"},
    "multi_turn_trajectory_quality_v1": _ALL | {"answer", "instructions"},
    "multi_turn_tool_use_quality_v1": _ALL | {"answer", "instructions"},
    "safety_v1": {"question", "answer", *EARLIER},
    "response_evaluation_score": {"question", "answer", *EARLIER},
    "per_turn_user_simulator_quality_v1": {"question", "answer", "on_the_way", *EARLIER},
}
"""What the judge of each criterion is sent of the last turn."""
OF_CONVERSATIONS = {name for name in READ if "multi_turn" in name} | {"per_turn_user_simulator_quality_v1"}
for _metric in RAPID_METRICS.values():
    if _metric.kind in ("judged", "pairwise"):
        _read = {"answer"}
        _read |= _KNOWLEDGE if "context" in _metric.fields else set()
        _read |= {"question"} if "instruction" in _metric.fields else set()
        _read |= {"baseline"} if _metric.kind == "pairwise" else set()
        READ[_metric.criterion] = _read


def run_of(name: str, talk: Talk) -> CaseRun:
    plan: Json = {"starting_prompt": "What is the weather?", "conversation_plan": "Ask for two days."}
    of_scenario = "scenario" in CRITERIA[name].needs
    case = EvalCase.model_validate(
        {"eval_id": "c", **({"conversation_scenario": plan} if of_scenario else {"conversation": talk.other(talk.reference)})}
    )
    return CaseRun(case=case, actual=tuple(talk.turns()), baseline=tuple(talk.other(talk.baseline)))


def judged(name: str, talk: Talk) -> tuple[CriterionResult, Bench]:
    """The result of a criterion whose judge always gives its first label, and what that judge was asked."""
    settings: Json = {"threshold": 0.5}
    if issubclass(CRITERIA[name].settings, RubricSettings):
        settings["rubrics"] = [{"rubric_id": "brief", "rubric_content": {"text_property": "The agent is brief."}}]
    if issubclass(CRITERIA[name].settings, VertexSettings):
        settings["backend"] = "judge"
    bench = Bench(lambda question, _: {item.id: next(iter(question.label_values)) for item in question.items}, num_samples=1)
    made: Any = CRITERIA[name].settings.model_validate(settings)
    plan = planned_by(CRITERIA[name], CRITERIA[name].make(made, bench.collector), made)
    return anyio.run(apply, plan, run_of(name, talk)), bench


every_judged_criterion = pytest.mark.parametrize("name", JUDGED)


def test_this_file_knows_what_each_judge_reads() -> None:
    assert set(READ) == set(JUDGED)


@every_judged_criterion
@examples(60, HealthCheck.data_too_large)
@given(data=st.data())
def test_a_judge_that_was_not_shown_everything_is_not_asked(name: str, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(sorted(READ[name])))
    words = place != "on_the_way" or name in OF_CONVERSATIONS  # what is said on the way is no evidence for the answer
    held = data.draw(st.sampled_from(sorted(one for one in PLACES[place] if words or one != IN_WORDS)))
    found, bench = judged(name, replace(Talk(), **{place: PLACES[place][held]}))
    last = found.per_invocation[-1]
    assert isinstance(last, Errored), (place, held, last)
    assert "the judge was not shown " in last.error
    assert found.score is None
    assert all(not question.unshown for question in bench.asked)
    asked = [block for question in bench.asked for block in question.blocks]
    assert not any("image/png" in block.text or PNG in block.text for block in asked)
    if found.per_invocation[0] is None:  # of the case as a whole
        assert bench.asked == []


@every_judged_criterion
@pytest.mark.parametrize("place", sorted(PLACES))
def test_media_that_a_judge_does_not_read_cost_no_score(name: str, place: str) -> None:
    if place in READ[name]:
        return
    held = next(iter(PLACES[place].values()))
    found, _ = judged(name, replace(Talk(), **{place: held}))
    assert isinstance(found.per_invocation[-1], Scored), found.per_invocation


@every_judged_criterion
def test_the_reason_names_the_file(name: str) -> None:
    place = "answer" if "answer" in READ[name] else "question"
    found, bench = judged(name, replace(Talk(), **{place: PARTS["inline_data"]}))
    last = found.per_invocation[-1]
    assert isinstance(last, Errored)
    assert last.error.removeprefix("the end of the conversation: ") == "the judge was not shown chart.png (image/png)"
    assert not any(vote.invocation_index == 1 for vote in found.votes if name != "per_turn_user_simulator_quality_v1")
    assert bench.collector.num_samples == 1


ASKED: Mapping[str, str] = {
    "final_response_match_v2": "68a900ee484a29c4",
    "hallucinations_v1": "89b9e3fa8684bd7a",
    "multi_turn_task_success_v1": "09a15a5cdac92eb1",
    "multi_turn_tool_use_quality_v1": "09a15a5cdac92eb1",
    "multi_turn_trajectory_quality_v1": "09a15a5cdac92eb1",
    "per_turn_user_simulator_quality_v1": "c171e26a93a12be1",
    "rapid_eval_coherence": "bfbb1dceb7fdf736",
    "rapid_eval_fluency": "bfbb1dceb7fdf736",
    "rapid_eval_fulfillment": "5aa49e80120cf16d",
    "rapid_eval_groundedness": "c79f7b7c95649081",
    "rapid_eval_pairwise_question_answering_quality": "32cb3eff57a9cce6",
    "rapid_eval_pairwise_summarization_quality": "32cb3eff57a9cce6",
    "rapid_eval_question_answering_correctness": "10c514dfd81ab613",
    "rapid_eval_question_answering_helpfulness": "10c514dfd81ab613",
    "rapid_eval_question_answering_quality": "10c514dfd81ab613",
    "rapid_eval_question_answering_relevance": "10c514dfd81ab613",
    "rapid_eval_safety": "bfbb1dceb7fdf736",
    "rapid_eval_summarization_helpfulness": "10c514dfd81ab613",
    "rapid_eval_summarization_quality": "10c514dfd81ab613",
    "rapid_eval_summarization_verbosity": "10c514dfd81ab613",
    "response_evaluation_score": "e91ed021d5e448c9",
    "rubric_based_final_response_quality_v1": "c8fb0872fbc907b6",
    "rubric_based_multi_turn_trajectory_quality_v1": "53a576ca37f09e3b",
    "rubric_based_tool_use_quality_v1": "12b31d8d903f152a",
    "safety_v1": "e91ed021d5e448c9",
}
"""Taken before judges were kept from what they are not shown: answers in ledgers are found by these words."""


def material(name: str, talk: Talk) -> str:
    """A hash of all that a judge is sent about a conversation, but for the words of its prompt."""
    _, bench = judged(name, talk)
    sent = [[[block.name, block.text] for block in question.material] for question in bench.questions]
    assert sent
    return hashlib.sha256(json.dumps(sent).encode()).hexdigest()[:16]


@every_judged_criterion
def test_what_is_all_text_is_asked_with_the_same_words_as_before(name: str) -> None:
    assert material(name, Talk()) == ASKED[name]


TEXT_FILES: Mapping[str, str] = {"text/plain": "Sunny.", "text/markdown; charset=utf-8": "# Sunny", "application/json": '{"sky": "clear"}'}


@pytest.mark.parametrize("mime", TEXT_FILES)
def test_a_text_file_is_shown_as_its_text(mime: str) -> None:
    data = base64.b64encode(TEXT_FILES[mime].encode()).decode()
    file = {"mime_type": mime, "data": data, "display_name": "notes"}
    found, bench = judged("safety_v1", replace(Talk(), answer={"inline_data": file}))
    assert found.score == 0.0  # the first label is unsafe
    assert bench.blocks[-1]["response"] == f"[notes ({mime})]\n{TEXT_FILES[mime]}"
    found, bench = judged("hallucinations_v1", replace(Talk(), result={"response": {"file": file}}))
    assert isinstance(found.per_invocation[-1], Scored)
    assert json.dumps(TEXT_FILES[mime]) in bench.blocks[-1]["tool_calls"]


def test_the_words_of_a_recording_stand_for_its_sound() -> None:
    spoken = {"audio_transcription": {"text": "It will be sunny."}, "inline_data": {"mime_type": "audio/pcm;rate=24000", "data": "AAAA"}}
    found, bench = judged("safety_v1", replace(Talk(), answer=spoken))
    assert isinstance(found.per_invocation[-1], Scored)
    assert bench.blocks[-1]["response"] == "It will be sunny."


def test_an_answer_that_is_only_an_image_is_not_an_empty_one() -> None:
    for name in JUDGED:
        found, _ = judged(name, replace(Talk(), answer=PARTS["inline_data"]))
        if "answer" in READ[name]:
            assert isinstance(found.per_invocation[-1], Errored), name
    found, bench = judged("safety_v1", replace(Talk(), answer={"text": ""}, question=PARTS["inline_data"]))
    assert found.per_invocation[-1] == Scored(0.0, TRIVIAL, {"verdict": "unsafe"})  # decided without a judge, as before
    assert len(bench.questions) == 1


def test_two_images_are_no_tie_because_their_names_are_the_same() -> None:
    name = min(BASELINE)
    image, other = ({"inline_data": {"mime_type": "image/png", "data": data}} for data in ("AAAA", "BBBB"))
    found, bench = judged(name, replace(Talk(), answer=image, baseline=other))
    assert isinstance(found.per_invocation[-1], Errored)
    assert len(bench.questions) == 0


def test_the_names_of_files_that_only_the_model_loaded_are_in_the_reason() -> None:
    call = {"function_call": {"name": "load_artifacts", "args": {"artifact_names": ["chart.png"]}}}
    events = [{"author": "agent", "content": message("model", call)}]
    turn = Invocation.model_validate({"user_content": message("user", {"text": "hi"}), "intermediate_data": {"invocation_events": events}})
    assert list(map(str, tool_material(turn).unshown)) == ["chart.png"]


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (
            {"file_data": {"file_uri": "gs://bucket/a/Jahres%20plan.pdf#page=2", "mime_type": "application/pdf"}},
            "Jahres plan.pdf (application/pdf)",
        ),
        ({"file_data": {"file_uri": "artifact://apps/a/users/u/sessions/s/artifacts/a.wav/versions/0"}}, "a.wav"),
        ({"file_data": {"file_uri": "data:image/gif;base64,R0lGODlh"}}, "a file (image/gif)"),
        ({"file_data": {}}, "a file of unknown type"),
        ({"inline_data": {"mime_type": "image/png", "display_name": "two\nlines"}}, "two lines (image/png)"),
        ({"inline_data": {"mime_type": "image/png", "display_name": "x" * 200}}, f"{'x' * 99}… (image/png)"),
    ],
)
def test_a_file_is_called_by_its_name(part: Json, name: str) -> None:
    assert list(map(str, content_material(Content.model_validate(message("user", part))).unshown)) == [name]


@pytest.mark.parametrize(
    "value",
    [
        {"type": "file", "path": "a.png"},
        {"type": "image", "url": "https://x.org/a.png"},
        {"contentType": "image/png", "size": 12},
        {"mime_type": "image/png", "data": ""},
        {"mime_type": "text/plain", "data": "hello there"},
        "Write data:image/png;base64,… into the page.",
        "iVBORw0K is how a PNG begins in base64.",
        '{"mime_type": "text/plain", "data": "aGk="}',
        "{not JSON, mime_type}",
        ["/9j/", None, 1.5, True],
    ],
)
def test_what_only_speaks_of_media_is_text(value: Any) -> None:
    assert media_in(value) == ()


@pytest.mark.parametrize("name", ["rapid_eval_bleu", "rapid_eval_exact_match", "rapid_eval_rouge"])
@pytest.mark.needs("sacrebleu")
def test_computed_criteria_compare_words_alone(name: str) -> None:
    settings = CRITERIA[name].settings.model_validate({"threshold": 0.5})
    plan = planned_by(CRITERIA[name], CRITERIA[name].make(settings), settings)

    def computed(answer: Json, reference: Json) -> Outcome | None:
        with pytest.raises(StopIteration) as done:
            apply(plan, run_of(name, replace(Talk(), answer=answer, reference=reference))).send(None)
        outcome: Outcome | None = done.value.value.per_invocation[-1]
        return outcome

    image = PARTS["no name"]
    assert computed(image, {"text": "Sunny."}) == Errored("the response has no text to compare, but [image/png]")
    assert isinstance(computed({"text": "Sunny."}, image), Errored)
    assert isinstance(computed(image, image), Errored)
    beside = computed({"text": "Sunny.", **image}, {"text": "Sunny."})
    assert beside == computed({"text": "Sunny."}, {"text": "Sunny."})


def test_an_instance_of_the_rapid_eval_api_with_a_data_uri_has_no_rating() -> None:
    instance = {"prediction": f"See data:image/png;base64,{PNG}"}
    body = {"coherence_input": {"metric_spec": {}, "instance": instance}}
    with pytest.raises(JudgeError, match=r"the judge was not shown a file \(image/png\)"):
        evaluate_instances(body, judge=lambda _: pytest.fail("it was asked"), ledger=False)


def test_an_anchor_of_an_earlier_run_goes_the_same_way() -> None:
    """Judging again asks through the same collector, with one vote and for some cells only."""
    cell = CellKey("c", 0, 1, "safety_v1")
    question = Question(
        prompt=load_prompt("safety_v1"),
        blocks=(Block("response", "[image/png]"),),
        unshown=(Media("image/png", "chart.png"),),
        label_values={"safe": 1.0, "unsafe": 0.0},
    )

    async def ask(_question: Question, _vote: int) -> JudgeResponse:
        raise AssertionError

    found = anyio.run(VoteCollector(ask=ask, num_samples=1, only=frozenset({cell})).decide, question, cell)
    assert found.unasked == Errored("the judge was not shown chart.png (image/png)")
    assert (found.votes, [one.outcome for one in found.results]) == ((), [found.unasked])


@pytest.mark.parametrize("name", [name for name, spec in CRITERIA.items() if spec.by_service])
def test_the_service_is_not_asked_either(name: str) -> None:
    """It reads the text parts alone, as Google's agents-cli says of its metrics."""
    spec = CRITERIA[name]
    settings: Any = spec.settings.model_validate({"threshold": spec.bounds[0], "backend": "vertex"})
    service = NoService()
    plan = planned_by(spec, spec.by_service(settings, service), settings)  # type: ignore[misc] # the list above has only those
    result = anyio.run(apply, plan, run_of(name, replace(Talk(), answer=PARTS["inline_data"])))
    assert service.unshown, name
    assert all(one == (Media("image/png", "chart.png"),) * len(one) for one in service.unshown if one)
    assert isinstance(result.per_invocation[-1], Errored)
    assert result.per_invocation[-1].error == "the judge was not shown chart.png (image/png)"


class NoService:
    """The service with its own rule, and nobody behind it."""

    def __init__(self) -> None:
        self.unshown: list[tuple[Media, ...]] = []

    async def evaluate(self, *_: Any, unshown: tuple[Media, ...]) -> Result:
        self.unshown.append(unshown)
        if not unshown:
            return Result(error="nobody is there", unasked=True)
        service: Any = VertexService(service=None, client=None)  # type: ignore[arg-type] # which it must not touch
        found: Result = await service.evaluate(*_, unshown=unshown)
        return found
