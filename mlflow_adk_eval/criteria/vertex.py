"""The criteria that Vertex AI's evaluation service decides: those that ADK has, and the other metrics that the service offers today.

ADK's, which are safety, coherence and three about whole conversations, can be decided in two ways, as the setting ``backend`` says. With ``vertex``, ADK's way and the default, the service is asked; it takes a
project and credentials, and its own explanation and its verdicts on single properties are kept beside the score. With ``judge``, a model of
the config is asked with our prompts, as for every other judged criterion, and each vote is kept. The two ways need not agree to the digit. The others have the name that the service gives
the metric with its version, so that another version is another criterion, and only the service decides them: it alone knows what it looks for.

An answer that says nothing gets the worst score without a call, and so does a conversation without any answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS
from mlflow_adk_eval.config.spec import CriterionSpec, ServiceSettings, VertexSettings
from mlflow_adk_eval.criteria import transcript
from mlflow_adk_eval.criteria.criterion import CaseRun, whole_case
from mlflow_adk_eval.criteria.judged_turns import (
    TRIVIAL,
    Cell,
    JudgedTurns,
    ask_judge,
    combined,
    judged_turns,
    place,
    predetermined,
    says_nothing,
    single,
)
from mlflow_adk_eval.evalset.material import Material, unshown_in
from mlflow_adk_eval.evalset.media import Media, media_of_part, text_of_file
from mlflow_adk_eval.evalset.models import Content, IntermediateData, Invocation, Json, Part
from mlflow_adk_eval.evalset.observation import Need
from mlflow_adk_eval.judge.prompt import blocks_of, load_prompt
from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.judge.question import JudgedItem, Question
from mlflow_adk_eval.judge.voting import CellKey, VoteCollector, vote_on
from mlflow_adk_eval.results.outcomes import Errored, Judged, Outcome, Scored, Vote

if TYPE_CHECKING:  # reading a config loads this module, and asks no service
    from mlflow_adk_eval.judge.providers.vertex import Result, RubricVerdict, VertexService

_AGENT = "agent"
"""Who speaks where the data do not name an agent."""
_KINDS = ("function_call", "function_response", "text", "inline_data", "file_data", "executable_code", "code_execution_result")
"""What a part can be for the service. It has one of them."""
_MEDIA = {"inline_data", "file_data"}
_CONTENT_OF = {"function_call": "args", "function_response": "response"}


def conversation(turns: Sequence[Invocation]) -> Json:
    """Return a conversation, with what its agents were told, each as it was when it is first recorded, did and had for tools."""
    agents: Json = {}
    for turn in turns:
        for name, details in (turn.app_details.agent_details if turn.app_details else {}).items():
            tools = [tool for declaration in details.tool_declarations if (tool := _tool(declaration))]
            agents.setdefault(name, {"agent_id": details.name, "instruction": details.instructions, "tools": tools})
    in_order = [_turn(index, list(_events(turn))) for index, turn in enumerate(turns)]
    return {"prompt": {"contents": {"contents": []}}, "agent_eval_data": {"agents": agents, "turns": in_order}}


def _turn(index: int, events: list[Json]) -> Json:
    return {"turn_index": index, "turn_id": f"turn_{index}", "events": events}


def _events(turn: Invocation) -> Iterator[Json]:
    yield {"author": "user", "content": _content(turn.user_content, "user")}
    if isinstance(turn.intermediate_data, IntermediateData):
        yield from (_event(step) for step in transcript.steps(turn) if not isinstance(step.payload, Media))
    yield from ({"author": event.author, "content": _content(event.content, "model")} for event in turn.events if event.content)
    yield {"author": _AGENT, **({"content": _content(turn.final_response, "model")} if turn.final_response else {})}


def _event(step: transcript.Step) -> Json:
    """Return a step of a turn that was written by hand."""
    numbered = {"id": step.id} if step.id else {}
    match step.kind:
        case "call":
            part: Json = {"function_call": {**numbered, "name": step.name, "args": _struct(step.payload)}}
        case "response":
            part = {"function_response": {**numbered, "name": step.name, "response": _struct(step.payload)}}
        case "media":
            part = {"text": f"[{step.name}]\n{step.payload}"}
        case "text":
            part = {"text": step.payload}
    role = "user" if step.kind == "response" else "model"
    return {"author": step.author or _AGENT, "content": {"role": role, "parts": [part]}}


def _content(content: Content, role: str) -> Json:
    parts = (_part(part) for part in content.parts or ())
    return {"role": content.role or role, "parts": [part for part in parts if part]}


def _part(part: Part) -> Json | None:
    """Return a part as the service knows it; ``None`` for one that it does not know."""
    kind = next((name for name in _KINDS if getattr(part, name)), None)
    if kind is None:
        return None
    if kind == "inline_data" and (file := _text_file(part)):
        return {"text": file}
    value = getattr(part, kind)
    if kind in _CONTENT_OF:
        inner = _CONTENT_OF[kind]
        value = {"name": value.name or "", inner: _struct(getattr(value, inner))} | ({"id": value.id} if value.id else {})
    else:
        value = {name: text for name, text in dict(value).items() if isinstance(text, str)} if kind in _MEDIA else _plain(value)
    return {kind: value, **({"thought": True} if part.thought else {})}


def _text_file(part: Part) -> str:
    """Return the text of a text file after its name; empty for any other part."""
    for media, held in media_of_part(part):
        if text := text_of_file(held):
            return f"[{media}]\n{text}"
    return ""


def _tool(declaration: Any) -> Json | None:
    """Return a tool, also where a function is declared without one around it; ``None`` for what is not an object."""
    plain = _plain(declaration)
    if not isinstance(plain, dict):
        return None
    bare = "name" in plain and not any(name in plain for name in transcript.DECLARATIONS)
    return {"function_declarations": [plain]} if bare else plain


def _struct(value: Any) -> Json:
    """Return a JSON object, which is all that arguments and answers of a tool can be for the service."""
    plain = _plain({} if value is None else value)
    return plain if isinstance(plain, dict) else {"result": plain}


def _plain(value: Any) -> Any:
    """Return what JSON makes of a value of any kind."""
    return json.loads(transcript.json_text(value))


_SHARE = (0.0, 1.0)
_GRADES: Mapping[str, float] = {str(grade): float(grade) for grade in range(1, 6)}
_PROPERTY = re.compile(r"^- item_\d+ `(\w+)`: (.+)$", re.MULTILINE)
"""How a prompt lists what is judged besides one thing."""


@dataclass(frozen=True, slots=True)
class TurnGrade(JudgedTurns[VertexSettings]):
    """The judge's grade of each turn's answer; the case score is the mean. An answer that says nothing gets the worst one."""

    name: str
    label_values: Mapping[str, float]
    """The grades."""

    async def turn(self, run: CaseRun, index: int) -> Cell:
        """Ask for a grade of the answer in the light of the earlier turns."""
        turn = run.actual[index]
        response = self.answer(turn)
        if says_nothing(response):
            worst = min(self.label_values, key=self.label_values.__getitem__)
            return Cell(Scored(self.label_values[worst], TRIVIAL, {"verdict": worst}))
        material = {
            "earlier_turns": transcript.dialogue_material(run.actual[:index]),
            "user_message": transcript.user_material(turn),
            "response": response,
        }
        question = Question(
            prompt=load_prompt(self.name),
            blocks=blocks_of(material),
            unshown=unshown_in(material.values()),
            label_values=self.label_values,
        )
        return await ask_judge(self.collector, question, place(run, index, self.name))


@dataclass(frozen=True, slots=True)
class CaseGrade:
    """The judge's grade of a conversation as a whole: the share of the properties in the prompt that it has; one score per case.

    A conversation in which the agent gave no answer at all scores 0.
    """

    name: str
    settings: VertexSettings
    collector: VoteCollector

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge the case as a whole."""
        if obstacle := predetermined(run):
            return whole_case(run, obstacle)
        prompt = load_prompt(self.name)
        properties = [JudgedItem(name, text) for name, text in _PROPERTY.findall(prompt.text)]  # none where it asks about the one thing
        items = tuple(replace(item, text=None) for item in properties) or (JudgedItem(),)
        material = transcript.whole_conversation(run.actual)
        question = Question(
            prompt=prompt,
            blocks=blocks_of(material),
            unshown=unshown_in(material.values()),
            items=items,
            label_values={"no": 0.0, "yes": 1.0},
        )
        voting = await self.collector.decide(question, place(run, len(run.actual) - 1, self.name))
        if voting.unasked:
            return whole_case(run, voting.unasked, voting.votes)
        named = [replace(result, item=item) for result, item in zip(voting.results, properties, strict=False)]
        outcome = combined(named, "property") if named else single(voting.results[0])
        return whole_case(run, outcome, voting.votes)


@dataclass(frozen=True, slots=True)
class Sent:
    """What the service is sent of a turn or a conversation."""

    instance: Json
    unshown: tuple[Media, ...]
    """The media in it. The service's metrics read the text parts of a conversation alone, whatever else they are sent."""


Send = Callable[[CaseRun, int, Material], Sent]
"""From a turn of a case, by its index, and what counts as its answer to what the service is sent."""


def _alone(run: CaseRun, index: int, answer: Material) -> Sent:
    """Return one message of a user and an agent's answer."""
    user = transcript.user_material(run.actual[index])
    question, said = ({"parts": [{"text": one.text}]} for one in (user, answer))
    events = [{"author": "user", "content": question}, {"author": "model", "content": said}]
    texts = {"prompt": {"contents": {"contents": [question]}}, "response": {"contents": {"contents": [said]}}}
    return Sent({**texts, "agent_eval_data": {"turns": [_turn(0, events)]}}, unshown_in((user, answer)))


def _in_conversation(run: CaseRun, index: int, answer: Material) -> Sent:
    """Return a turn whose message follows what was said before."""
    said = [(role, material(turn)) for turn in run.actual[:index] for role, material in _SPEAKERS]
    earlier = [{"role": role, "parts": [{"text": one.text}]} for role, one in said if one.text]
    alone = _alone(run, index, answer)
    contents = [*earlier, *alone.instance["prompt"]["contents"]["contents"]]
    unshown = (*unshown_in(one for _, one in said), *alone.unshown)
    return Sent({**alone.instance, "prompt": {"contents": {"contents": contents}}}, unshown)


def _with_steps(run: CaseRun, index: int, answer: Material) -> Sent:
    """Return a turn with what its agents were told, did and had for tools."""
    alone, whole = _alone(run, index, answer), _whole(run.actual[index : index + 1])
    instance = {**alone.instance, "agent_eval_data": whole.instance["agent_eval_data"]}
    return Sent(instance, (*alone.unshown, *whole.unshown))


def _answer_alone(_run: CaseRun, _index: int, answer: Material) -> Sent:
    """Return an answer as an instance of the Rapid Eval API."""
    return Sent({"prediction": answer.text}, answer.unshown)


def _whole(turns: Sequence[Invocation]) -> Sent:
    """Return a conversation."""
    return Sent(conversation(turns), unshown_in(transcript.whole_conversation(turns).values()))


_SPEAKERS: Sequence[tuple[str, Callable[[Invocation], Material]]] = (
    ("user", transcript.user_material),
    ("model", transcript.final_material),
)


@dataclass(frozen=True, slots=True)
class VertexTurns:
    """The service's score of each turn's answer; the case score is the mean. An answer that says nothing gets the worst one."""

    name: str
    metric: str
    """What the service calls it."""
    send: Send
    bounds: tuple[float, float]
    settings: VertexSettings
    service: VertexService

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge each turn on its own, all at the same time."""
        return await judged_turns(run, partial(self._turn, run), self.settings)

    async def _turn(self, run: CaseRun, index: int) -> Cell:
        turn = run.actual[index]
        included = self.settings.include_intermediate_responses_in_final
        response = transcript.final_material(turn, include_intermediate=included)
        if says_nothing(response):
            return Cell(Scored(self.bounds[0], TRIVIAL))
        sent = self.send(run, index, response)
        result = await self.service.evaluate(self.metric, sent.instance, self.bounds, unshown=sent.unshown)
        return Cell(_outcome(result), votes_of(result, self.metric, place(run, index, self.name)))


@dataclass(frozen=True, slots=True)
class VertexCase:
    """The service's score of a conversation as a whole: the share of the properties it looks for. One score per case.

    A conversation in which the agent gave no answer at all scores 0.
    """

    name: str
    settings: VertexSettings
    service: VertexService

    async def __call__(self, run: CaseRun, /) -> Judged:
        """Judge the case as a whole."""
        if obstacle := predetermined(run):
            return whole_case(run, obstacle)
        sent = _whole(run.actual)
        result = await self.service.evaluate(self.name, sent.instance, _SHARE, unshown=sent.unshown)
        votes = votes_of(result, self.name, place(run, run.turns - 1, self.name))
        return whole_case(run, _outcome(result), votes)


def _outcome(result: Result) -> Outcome:
    if result.score is None:
        return Errored(result.error)
    lines = [result.explanation, *(f"- {_word(verdict)}: {_explained(verdict, ' ')}" for verdict in result.verdicts)]
    rubrics = [
        {"id": verdict.rubric_id, "text": verdict.description, "verdict": _word(verdict)}
        | {"score": float(verdict.met), "rationale": verdict.reasoning}
        for verdict in result.verdicts
    ]
    details: Json = {"rubrics": rubrics} if rubrics else {}
    if result.confidence is not None:
        details["confidence"] = result.confidence
    return Scored(result.score, "\n".join(filter(None, lines)), details)


def votes_of(result: Result, metric: str, at: CellKey) -> tuple[Vote, ...]:
    """Return a vote for each property that the service looked for; one on the whole where there are none, or no score."""
    if result.unasked:
        return ()
    answer = result.answer or Answer(text="", model=f"vertex:{metric}")
    said: Json = {name: getattr(result, name) for name in ("explanation", "error", "reused")} | {"value": result.score}
    verdict, raw = None if result.score is None else f"{result.score:g}", answer.text if result.error else ""
    vote = vote_on(at, answer, rubric_id=None, vote_index=0, verdict=verdict, raw=raw, **said)
    named = [
        replace(
            vote, rubric_id=one.rubric_id, verdict=_word(one), explanation=_explained(one, "\n"), error="", raw="", value=float(one.met)
        )
        for one in result.verdicts
    ]
    return (vote, *named) if result.error or not named else tuple(named)


def _word(verdict: RubricVerdict) -> str:
    return "yes" if verdict.met else "no"


def _explained(verdict: RubricVerdict, between: str) -> str:
    return between.join(filter(None, (verdict.description or verdict.rubric_id, verdict.reasoning)))


def _spec(name: str, about: str, **how: Any) -> CriterionSpec:
    return CriterionSpec(name=name, origin="adk", about=about, settings=VertexSettings, prompts=(name,), **how)


def _turn_spec(name: str, about: str, worth: Mapping[str, float], metric: str, send: Send) -> CriterionSpec:
    bounds, kept = (min(worth.values()), max(worth.values())), "the service's explanation, or every vote with its explanation"
    by_service = partial(VertexTurns, name, metric, send, bounds)
    return _spec(
        name,
        about,
        kept=kept,
        reads_intermediate=True,
        bounds=bounds,
        make=partial(TurnGrade, name=name, label_values=worth),
        by_service=by_service,
    )


def _case_spec(name: str, about: str, needs: tuple[Need, ...] = ()) -> CriterionSpec:
    kept = "the service's explanation and its verdict on each rubric, or every vote with its explanation"
    return _spec(name, about, kept=kept, scope="case", needs=needs, make=partial(CaseGrade, name), by_service=partial(VertexCase, name))


def _service_spec(name: str, about: str, send: Send, needs: tuple[Need, ...] = ()) -> CriterionSpec:
    how: dict[str, Any] = {"kept": "the service's explanation and its verdict on each rubric", "settings": ServiceSettings, "needs": needs}
    how["reads_intermediate"] = True
    by_service = partial(VertexTurns, name, name, send, _SHARE)
    return CriterionSpec(name=name, origin="vertex", about=about, make=by_service, by_service=by_service, **how)


SPECS = (
    _turn_spec("safety_v1", "1 for each answer that is safe, else 0", {"unsafe": 0.0, "safe": 1.0}, "safety_v1", _alone),
    _turn_spec(
        "response_evaluation_score",
        "how coherent each answer is, from 1 to 5",
        _GRADES,
        RAPID_METRICS["coherence"].name,  # which the service answers for ADK's criterion, too
        _answer_alone,
    ),
    _case_spec("multi_turn_task_success_v1", "whether the conversation reached the user's goal"),
    _case_spec("multi_turn_trajectory_quality_v1", "how well the agent conducted the conversation", ("calls",)),
    _case_spec("multi_turn_tool_use_quality_v1", "how well the agent used its tools in the conversation", ("calls",)),
    _service_spec("general_quality_v2", "how good each answer is, by rubrics that the service writes for the message", _alone),
    _service_spec("text_quality_v2", "how well each answer is written", _alone),
    _service_spec("instruction_following_v2", "how far each answer does what the message asks for", _alone),
    _service_spec("safety_v3", "1 for each answer that is safe, else 0", _alone),
    _service_spec("multi_turn_general_quality_v2", "how good each answer is, given the earlier turns", _in_conversation),
    _service_spec("multi_turn_text_quality_v2", "how well each answer is written, given the earlier turns", _in_conversation),
    _service_spec("final_response_quality_v2", "how good each answer is, given the agent's instructions, tools and steps", _with_steps),
    _service_spec("hallucination_v2", "how much of each answer the agent's instructions and tools support", _with_steps),
    _service_spec("tool_use_quality_v2", "how well the agent used its tools in each turn", _with_steps, ("calls",)),
)
