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

from mlflow_adk_eval.config.spec import CriterionSpec, JudgedSettings
from mlflow_adk_eval.criteria.criterion import CaseRun
from mlflow_adk_eval.criteria.judged_turns import TRIVIAL, Cell, JudgedTurns, place, says_nothing, tally
from mlflow_adk_eval.criteria.text import sentences
from mlflow_adk_eval.criteria.transcript import Step, calls_material, final_material, knowledge, steps
from mlflow_adk_eval.evalset.material import NOTHING, Material, material_of, unshown_in
from mlflow_adk_eval.evalset.models import IntermediateData, Invocation
from mlflow_adk_eval.judge.prompt import blocks_of, load_prompt
from mlflow_adk_eval.judge.question import JudgedItem, Question
from mlflow_adk_eval.judge.voting import VotedItem
from mlflow_adk_eval.results.outcomes import Errored, Outcome, Scored, grouped, mean
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

    evaluate_intermediate_nl_responses: bool = Field(default=False, description="whether intermediate responses are also judged.")


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
        if says_nothing(final_material(run.actual[index])):
            return Cell(Scored(0.0, TRIVIAL))
        statements = _statements(run.actual[index], intermediate=self.settings.evaluate_intermediate_nl_responses)
        context = knowledge(run.actual[: index + 1])
        questions = [(statement.id, question) for statement in statements for question in _questions(statement, context)]
        votings = await gathered(partial(self.collector.decide, question, place(run, index, _NAME)) for _, question in questions)
        votes = tuple(vote for voting in votings for vote in voting.votes)
        unasked = next((voting.unasked for voting in votings if voting.unasked), None)
        if unasked:
            return Cell(unasked, votes)
        findings = grouped((name, found) for (name, _), voting in zip(questions, votings, strict=True) for found in voting.results)
        return Cell(_outcome(findings), votes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """What the agent said at one point of a turn."""

    id: str
    said: Material
    calls: Material
    """The calls that the agent had made by then, with their results."""


def _statements(turn: Invocation, *, intermediate: bool) -> list[_Statement]:
    """Return the texts to be judged. Data written by hand do not say which calls a text came after, so all of them count."""
    taken = steps(turn)
    in_order = not isinstance(turn.intermediate_data, IntermediateData)
    texts = [at for at, step in enumerate(taken) if step.kind == "text" and sentences(step.payload)] if intermediate else []
    statements: list[_Statement] = []
    for number, at in enumerate(texts, 1):
        before: Sequence[Step] = taken[:at] if in_order else taken
        said = material_of(taken[at].payload)
        statements.append(_Statement(id=f"step {number}", said=said, calls=calls_material(before)))
    statements.append(_Statement(id="final", said=final_material(turn), calls=calls_material(taken)))
    return statements


def _questions(statement: _Statement, context: Mapping[str, Material]) -> Iterator[Question]:
    """Yield as many questions as the sentences of a text need; a text without any, such as an emoji, is its own only one."""
    said = statement.said
    found = sentences(said.text) or [said.text]
    items = [JudgedItem(f"{statement.id} #{number}", text) for number, text in enumerate(found, 1)]
    material = {
        **context,
        "tool_calls": statement.calls,
        "whole_text": said if len(items) > _MAX_ITEMS else NOTHING,
    }
    blocks = blocks_of(material)
    unshown = unshown_in((*material.values(), said))  # the sentences are of what was said
    for start in range(0, len(items), _MAX_ITEMS):
        chunk = tuple(items[start : start + _MAX_ITEMS])
        yield Question(
            prompt=load_prompt(_NAME),
            blocks=blocks,
            unshown=unshown,
            items=chunk,
            label_values=_WORTH,
            remarks=_REMARKS,
        )


def _outcome(findings_of: Mapping[str, Sequence[VotedItem]]) -> Outcome:
    """Return the mean of a turn's texts, if every sentence has a verdict: each with its evidence, those that are not grounded first."""
    every = ((one.item, one.outcome) for findings in findings_of.values() for one in findings)
    missing = [f"sentence {item.id} ({item.text!r}): {outcome.error}" for item, outcome in every if isinstance(outcome, Errored)]
    if missing:
        more = f"; and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        return Errored("; ".join(missing[:_MAX_NAMED]) + more)
    listed: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for name, findings in findings_of.items():
        records: list[dict[str, Any]] = [
            {"id": finding.item.id, "text": finding.item.text, "verdict": finding.label, "tally": tally(finding)}
            | {"score": outcome.score, "rationale": outcome.rationale, **outcome.details}
            for finding, outcome in ((finding, finding.outcome) for finding in findings)
            if isinstance(outcome, Scored)
        ]
        parts.append({"step": name, "score": mean(record["score"] for record in records), "sentences": records})
        listed += records
    grounded = sum(record["score"] > 0 for record in listed)
    lines = [f"Sentences that are grounded or make no claim: {grounded} of {len(listed)}.", ""]
    for record in sorted(listed, key=lambda record: bool(record["score"])):
        quoted = ((about, record.get(name)) for about, name in (("For", "supporting_excerpt"), ("Against", "contradicting_excerpt")))
        evidence = "".join(f" {about}: “{_flat(text)}”." for about, text in quoted if text)
        verdict = f"- {'✓' if record['score'] else '✗'} {record['id']} ({record['tally']}) “{_flat(record['text'])}”"
        lines.append(f"{verdict}: {_flat(record['rationale'])}{evidence}")
    return Scored(mean(part["score"] for part in parts), "\n".join(lines), {"steps": parts})


def _flat(text: str) -> str:
    return " ".join(text.split())


SPECS = (
    CriterionSpec(
        name=_NAME,
        origin="adk",
        about="the share of an answer's sentences that are supported or make no claim",
        kept="each sentence with its label, votes and excerpts",
        settings=HallucinationsSettings,
        needs=("call_results",),
        prompts=(_NAME,),
        make=Hallucinations,
    ),
)
