"""Answers of which it is known what they deserve, to try judges on: a line of JSON each, and what they are as an eval set.

The items that ship in `bench_items.jsonl` were written by hand, in eleven languages, each with the mistake that it holds, if any. Some are
another one over again, longer or with its rubrics in another order, and deserve the same: what a judge makes of these shows its biases.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mlflow_adk_eval.config.spec import CRITERIA, JudgedSettings, JudgeModelOptions, PromptVariant, RubricSettings, VertexSettings
from mlflow_adk_eval.errors import InputError, JudgeError, Problem, did_you_mean
from mlflow_adk_eval.evalset.models import EvalSet, Invocation, Strict
from mlflow_adk_eval.evalset.parse import decode, parse, read_text
from mlflow_adk_eval.judge.prompt import is_varied
from mlflow_adk_eval.runtime import model_or_object

_SHIPPED = "bench_items.jsonl"


class BenchError(InputError):
    """Items that cannot be used."""

    noun = "set of items"


class ToolUse(Strict):
    """A call of a tool, and what came back."""

    name: str
    args: dict[str, Any] = Field(default_factory=dict)
    result: dict[str, Any] = Field(default_factory=dict)


class BenchItem(Strict):
    """An answer, and whether it deserves to pass a judged criterion."""

    id: str = Field(min_length=1)
    criterion: str
    label: Literal["pass", "fail"]
    question: str
    response: str
    reference: str | None = None
    """What a good answer is, for criteria that compare."""
    tools: tuple[ToolUse, ...] = ()
    rubrics: tuple[str, ...] = ()
    """All of which it must satisfy, for criteria by rubrics."""
    kind: str = ""
    """What is special about it, such as ``wrong number``; accuracy is told by it."""
    language: str = ""
    like: str | None = None
    """The item that it is over again, with the same label."""
    differs: Literal["length", "position"] | None = None
    """In what it differs from that: it is longer, or its rubrics stand in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCell:
    """A cell of which it is known whether it deserves to pass."""

    eval_id: str
    invocation_index: int | None
    """``None``: the whole case."""
    criterion: str
    passes: bool
    kind: str = ""
    language: str = ""
    like: str | None = None
    differs: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSet:
    """What judges are tried on."""

    source: str
    eval_set: EvalSet
    actual: Mapping[str, Sequence[Invocation]] | Any
    """What the agent did, as `score` takes it."""
    config: Mapping[str, Any]
    """The criteria, without judges."""
    cells: tuple[BenchCell, ...]


def load_items(source: str | Path | Iterable[Mapping[str, Any]] | None = None) -> tuple[str, list[BenchItem]]:
    """Return the name of a set of items and the items, from a file of JSON Lines or from mappings; ``None``: those that ship.

    Raises:
        BenchError: with what is wrong with each of them.
    """
    if source is None:
        name, lines = _SHIPPED, list(_lines((files("mlflow_adk_eval.analysis.calibration") / _SHIPPED).read_bytes(), _SHIPPED))
    elif isinstance(source, str | Path):
        name, lines = str(source), list(_lines(read_text(Path(source), error=BenchError), str(source)))
    else:
        name, lines = "items", [(f"$[{number}]", dict(item)) for number, item in enumerate(source)]
    problems, items = list[Problem](), list[BenchItem]()
    for place, value in lines:
        try:
            items.append(parse(BenchItem, value, name, error=BenchError))
            problems += _item_problems(place, items[-1])
        except BenchError as error:
            problems += [Problem(f"{place} {problem.path}", problem.found, problem.wanted, problem.hint) for problem in error.problems]
    problems += _problems_together(items)
    if not lines:
        problems.append(Problem("$", "no items", "one JSON object per line"))
    if problems:
        raise BenchError(name, problems)
    return name, items


def _lines(text: bytes, source: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield f"line {number}", decode(line, f"{source}, line {number}", error=BenchError)


def _item_problems(place: str, item: BenchItem) -> Iterator[Problem]:
    known = judged_names()
    if item.criterion not in known:
        wanted = f"a criterion that a judge decides for single turns: {', '.join(known)}"
        yield Problem(f"{place} $.criterion", repr(item.criterion), wanted, did_you_mean(item.criterion, known))
        return
    if issubclass(CRITERIA[item.criterion].settings, RubricSettings) != bool(item.rubrics):
        found, wanted = ("rubrics", "none") if item.rubrics else ("no rubrics", "a list of texts")
        yield Problem(f"{place} $.rubrics", found, f"{wanted}, for {item.criterion}")
    if (item.like is None) != (item.differs is None):
        yield Problem(f"{place} $.differs", "only one of like and differs", "both or neither")


def _problems_together(items: Sequence[BenchItem]) -> Iterator[Problem]:
    by_id: dict[str, BenchItem] = {}
    for item in items:
        if by_id.setdefault(item.id, item) is not item:
            yield Problem("$", f"the id {item.id!r} twice", "each id once")
    for item in items:
        other = by_id.get(item.like or item.id)
        if other is None or (other.criterion, other.label) != (item.criterion, item.label):
            found = f"like {item.like!r}" + ("" if other is None else " with another label or criterion")
            yield Problem(f"item {item.id!r}", found, "the id of an item with the same label and criterion")


def judged_names() -> list[str]:
    """Return the criteria that items can be about."""
    judged = [name for name, spec in CRITERIA.items() if spec.prompts and not name.startswith("rapid_eval")]
    return [name for name in judged if not any(word in name for word in ("user_simulator", "trajectory", "multi_turn"))]


def bench_set(source: str, items: Sequence[BenchItem]) -> BenchSet:
    """Return items as an eval set of a case each, what was done in it, and the criterion that decides it."""
    criteria, about = dict.fromkeys(item.criterion for item in items), {"criterion", "kind", "language", "like", "differs"}
    cases = [{"eval_id": item.id, "conversation": [_turn(item, item.reference or "", ())]} for item in items]
    return BenchSet(
        source=source,
        eval_set=EvalSet.model_validate({"eval_set_id": "judge_bench", "eval_cases": cases}),
        actual={item.id: [_turn(item, item.response, item.tools)] for item in items},
        config={
            "criteria": {name: _settings(name, ()) for name in criteria},
            "case_criteria": {item.id: {item.criterion: _settings(item.criterion, item.rubrics)} for item in items},
        },
        cells=tuple(
            BenchCell(eval_id=item.id, invocation_index=None, passes=item.label == "pass", **item.model_dump(include=about))
            for item in items
        ),
    )


def _settings(name: str, rubrics: Sequence[str]) -> dict[str, Any]:
    listed = [{"rubric_id": f"rubric_{number}", "rubric_content": {"text_property": text}} for number, text in enumerate(rubrics, 1)]
    backend = {"backend": "judge"} if issubclass(CRITERIA[name].settings, VertexSettings) else {}
    return {"threshold": {"final_response_match_v2": 0.5}.get(name, 1.0), **backend, **({"rubrics": listed} if listed else {})}


def _turn(item: BenchItem, answer: str, tools: Sequence[ToolUse]) -> Invocation:
    uses = [{"id": str(number), "name": tool.name, "args": tool.args} for number, tool in enumerate(tools)]
    results = [{"id": str(number), "name": tool.name, "response": tool.result} for number, tool in enumerate(tools)]
    return Invocation.model_validate({
        "invocation_id": item.id,
        "user_content": {"role": "user", "parts": [{"text": item.question}]},
        "final_response": {"role": "model", "parts": [{"text": answer}]},
        "intermediate_data": {"tool_uses": uses, "tool_responses": results},
    })  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A judge to try, and how it is asked."""

    name: str
    """What tables call it."""
    judge: Any
    settings: Mapping[str, Any]
    """Of each criterion, beside its own."""


def contender_of(given: Any, votes: int) -> Contender:
    """Return a judge with its settings, from ``MODEL`` or ``MODEL?setting=value&…``, or from a judge object or function; several are a panel.

    A name such as ``module:name`` is that of an object or a function.

    A setting is one of a criterion, of ``judge_model_options``, or else of ``judge_model_config``.

    >>> contender_of("gemini-2.5-flash?num_samples=1&temperature=0", 3).settings["judge_model_options"]
    {'num_samples': 1, 'judge_model_config': {'temperature': 0}}
    """
    model, _, query = given.partition("?") if isinstance(given, str) else (given, "", "")
    settings: dict[str, Any] = {"early_stop": False}
    options: dict[str, Any] = {"num_samples": votes}
    generation: dict[str, Any] = {}
    for pair in filter(None, query.split("&")):
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise BenchError(f"judge {given}", [Problem("$", repr(pair), "MODEL?setting=value&setting=value")])
        home = options if key in JudgeModelOptions.model_fields else settings if key in JudgedSettings.model_fields else generation
        try:
            home[key] = json.loads(text)
        except ValueError:
            home[key] = text
    options |= {"judge_model_config": generation} if generation else {}
    named = model.split(",") if isinstance(model, str) else list(model) if isinstance(model, list | tuple) else [model]
    members = [model_or_object(one, "judge", error=JudgeError) if isinstance(one, str) else one for one in named]
    name = given if isinstance(given, str) else ",".join(map(_name, named))
    return Contender(name=name, judge=members if len(members) > 1 else members[0], settings=settings | {"judge_model_options": options})


def _name(judge: Any) -> str:
    return judge if isinstance(judge, str) else str(getattr(judge, "model", "") or getattr(judge, "__name__", "") or type(judge).__name__)


def asked_with(config: Mapping[str, Any], contender: Contender) -> dict[str, Any]:
    """Return a config whose criteria are asked as a contender is, of which a variant of the prompt may concern only some."""
    variant: PromptVariant = contender.settings.get("prompt") or "standard"
    names = config["criteria"].keys()
    varied = {name for name in names if is_varied(CRITERIA[name].prompts, variant)} or names  # one that concerns none is refused later
    as_ever = {key: value for key, value in contender.settings.items() if key != "prompt"}

    def merged(criteria: Mapping[str, Any]) -> dict[str, Any]:
        return {name: {**settings, **(contender.settings if name in varied else as_ever)} for name, settings in criteria.items()}

    own = config.get("case_criteria") or {}
    return {"criteria": merged(config["criteria"]), "case_criteria": {eval_id: merged(criteria) for eval_id, criteria in own.items()}}
