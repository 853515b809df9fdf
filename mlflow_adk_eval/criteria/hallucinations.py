"""``hallucinations_v1``: whether each sentence that the agent said is grounded in what the agent knew.

An answer is split into sentences by rules (`text.sentences`), and a judge gives each a verdict: ``supported``, ``not_applicable`` (it claims
nothing), ``unsupported``, ``contradictory`` or ``disputed``. What the agent knew is its instructions, tools, grounding, earlier turns, the user's
message and the results of tools. Kept beside the score are each sentence with its verdict, its votes and the excerpts that judges quoted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import Field

from mlflow_adk_eval.config.criteria import JudgedSettings
from mlflow_adk_eval.config.spec import CriterionSpec
from mlflow_adk_eval.criteria.criterion import CaseRun
from mlflow_adk_eval.criteria.judged_turns import TRIVIAL, Cell, JudgedTurns, place, tally, trivial
from mlflow_adk_eval.criteria.text.sentences import sentences
from mlflow_adk_eval.criteria.transcript import Step, final_text, knowledge, steps, steps_text
from mlflow_adk_eval.evalset import IntermediateData, Invocation
from mlflow_adk_eval.judge.prompt import blocks_of, load_prompt
from mlflow_adk_eval.judge.question import JudgedItem, Question
from mlflow_adk_eval.judge.voting import VotedItem
from mlflow_adk_eval.results.outcomes import Errored, Outcome, Scored, mean
from mlflow_adk_eval.runtime import gathered

_NAME = "hallucinations_v1"
_WORTH = {"supported": 1.0, "unsupported": 0.0, "contradictory": 0.0, "disputed": 0.0, "not_applicable": 1.0}
_REMARKS = {
    "supporting_excerpt": "the evidence for the sentence, word for word; empty if there is none",
    "contradicting_excerpt": "the evidence against the sentence, word for word; empty if there is none",
}
_MAX_ITEMS = 40
"""Models lose track of longer lists, so a long text takes several questions."""
_MAX_NAMED = 5


class HallucinationsSettings(JudgedSettings):
    """Which of the agent's texts are judged."""

    evaluate_intermediate_nl_responses: bool = Field(default=False, description="whether what the agent said on the way is judged, too.")


@dataclass(frozen=True, slots=True)
class Hallucinations(JudgedTurns[HallucinationsSettings]):
    """The share of an answer's sentences that are supported or claim nothing; the case score is the mean of the turns.

    With ``evaluate_intermediate_nl_responses`` also of each text on the way to the answer; then a turn's score is the mean
    of its texts. An empty answer scores 0. A sentence without a verdict leaves its turn without a score.

    Source: ADK's evaluation criteria. Sentences are found by rules, so that all votes are about the same ones; evidence
    are also earlier turns and data written by hand, but never what the agent itself has said.
    """

    async def turn(self, run: CaseRun, index: int) -> Cell:
        """Ask about every sentence of a turn, in as many questions as it takes, and join what was found."""
        if trivial(final_text(run.actual[index])):
            return Cell(Scored(0.0, TRIVIAL))
        statements = _statements(run.actual[index], intermediate=self.settings.evaluate_intermediate_nl_responses)
        context = knowledge(run.actual[: index + 1])
        asked = [(statement, question) for statement in statements for question in _questions(statement, context)]
        votings = await gathered(partial(self.collector.decide, question, place(run, index, _NAME)) for _, question in asked)
        found: dict[str, list[VotedItem]] = {}
        for (statement, _), voting in zip(asked, votings, strict=True):
            found.setdefault(statement.id, []).extend(voting.results)
        return Cell(_outcome(found), tuple(vote for voting in votings for vote in voting.votes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """What the agent said at one point of a turn."""

    id: str
    text: str
    tool_calls: str
    """The calls that it had made by then, with their results."""


def _statements(turn: Invocation, *, intermediate: bool) -> list[_Statement]:
    """Return the texts to be judged. Data written by hand do not say which calls a text came after, so all of them count."""
    found = steps(turn)
    in_order = not isinstance(turn.intermediate_data, IntermediateData)
    texts = [at for at, step in enumerate(found) if step.kind == "text" and sentences(step.payload)] if intermediate else []
    said = [
        _Statement(id=f"step {number}", text=found[at].payload, tool_calls=_calls(found[:at] if in_order else found))
        for number, at in enumerate(texts, 1)
    ]
    return [*said, _Statement(id="final", text=final_text(turn), tool_calls=_calls(found))]


def _calls(found: Sequence[Step]) -> str:
    return steps_text(step for step in found if step.kind in ("call", "response"))


def _questions(statement: _Statement, context: Mapping[str, str]) -> Iterator[Question]:
    """Yield as many questions as the sentences of a text need; a text without any, such as an emoji, is its own only one."""
    items = [JudgedItem(f"{statement.id} #{number}", text) for number, text in enumerate(sentences(statement.text) or [statement.text], 1)]
    whole = statement.text if len(items) > _MAX_ITEMS else ""
    texts = {**context, "tool_calls": statement.tool_calls, "whole_text": whole}
    blocks = blocks_of(texts)
    for start in range(0, len(items), _MAX_ITEMS):
        chunk = tuple(items[start : start + _MAX_ITEMS])
        yield Question(prompt=load_prompt(_NAME), blocks=blocks, items=chunk, label_values=_WORTH, remarks=_REMARKS)


def _outcome(found: Mapping[str, Sequence[VotedItem]]) -> Outcome:
    """Return the mean of a turn's texts, if every sentence has a verdict."""
    missing = [
        f"sentence {finding.item.id} ({finding.item.text!r}): {finding.outcome.error}"
        for findings in found.values()
        for finding in findings
        if isinstance(finding.outcome, Errored)
    ]
    if missing:
        more = f"; and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        return Errored("; ".join(missing[:_MAX_NAMED]) + more)
    records = {name: [_record(finding) for finding in findings] for name, findings in found.items()}
    scores = {name: mean(record["score"] for record in listed) for name, listed in records.items()}
    details = {"steps": [{"step": name, "score": scores[name], "sentences": listed} for name, listed in records.items()]}
    return Scored(mean(scores.values()), _rationale([record for listed in records.values() for record in listed]), details)


def _record(finding: VotedItem) -> dict[str, Any]:
    """Return all that is known about a sentence."""
    outcome = finding.outcome
    said = {"score": outcome.score, "rationale": outcome.rationale, **outcome.details} if isinstance(outcome, Scored) else {}
    return {"id": finding.item.id, "text": finding.item.text, "verdict": finding.label, "tally": tally(finding), **said}


def _rationale(records: Sequence[Mapping[str, Any]]) -> str:
    """Return each sentence with its verdict and the evidence, those that are not grounded first."""
    grounded = sum(record["score"] > 0 for record in records)
    head = f"Sentences that are grounded or claim nothing: {grounded} of {len(records)}."
    return "\n".join([head, "", *map(_line, sorted(records, key=lambda record: bool(record["score"])))])


def _line(record: Mapping[str, Any]) -> str:
    mark = "✓" if record["score"] else "✗"
    quoted = ((about, record.get(name)) for about, name in (("For", "supporting_excerpt"), ("Against", "contradicting_excerpt")))
    evidence = "".join(f" {about}: “{_flat(text)}”." for about, text in quoted if text)
    return f"- {mark} {record['id']} ({record['tally']}) “{_flat(record['text'])}”: {_flat(record['rationale'])}{evidence}"


def _flat(text: str) -> str:
    return " ".join(text.split())


SPECS = (
    CriterionSpec(
        name=_NAME,
        about="the share of an answer's sentences that are supported or claim nothing",
        kept="each sentence with its label, votes and excerpts",
        settings=HallucinationsSettings,
        prompts=(_NAME,),
        make=Hallucinations,
    ),
)
