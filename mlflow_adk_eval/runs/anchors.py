"""Anchors: answers of earlier runs that a run has its judge judge again, so that a judge that changed is told from an agent that did.

A run with a judged criterion keeps them as `ANCHORS`, an artifact in its manifest. Each `Anchor` is a cell of an earlier run: what the judge said
then, and what it says now, asked past the ledger. `cells_of` finds the cells that can be judged again, and `chosen` takes some, in an order that
follows from the hash of the new run's id. MLflow gives that when the run starts, so nobody who is judged has a say in it. The verdicts have no part in
it either.

Two single votes are compared, so voting must not favour one side: the votes that are asked only while a verdict is open do not count. Those
that are asked first do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from math import ceil, floor, isfinite
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field

from mlflow_adk_eval.config.eval_config import EvalConfig, judged_criteria
from mlflow_adk_eval.config.spec import CRITERIA, VertexSettings
from mlflow_adk_eval.evalset.models import Strict, canonical_json
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.results.outcomes import Vote, grouped
from mlflow_adk_eval.runs.manifest import key_of_criterion, prompt_keys

ANCHORS = "anchors.json"
"""The artifact of a run with its anchors."""
ANCHORS_PARAM = "adk_eval.anchors_sha256"
"""The parameter of a run with the hash of that artifact, so that it can be read without the rest of the run."""
MOST_SOURCES = 5
"""Of so many earlier runs cells are taken at most."""

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
CellId = tuple[str, str, int, int, str]
"""A run, a case, its run, a turn and a criterion."""


class Anchor(Strict):
    """A cell of an earlier run that was judged again."""

    criterion: str
    run_id: str
    """The earlier run."""
    eval_id: str
    run: Count
    turn: Count
    before: Share
    """The mean of the earlier votes, from 0 for the worst label to 1 for the best."""
    votes_before: Annotated[int, Field(ge=1)]
    now: Share
    """The vote of this run, on the same scale."""
    labelled: bool
    """Whether people had labelled the cell."""
    asked_in: str
    """The evaluation that asked for the vote, which must be this run's own."""
    asked_at: str
    """When, in UTC, such as ``2027-01-31T12:00:00Z``."""

    @property
    def cell(self) -> CellId:
        """What was judged."""
        return self.run_id, self.eval_id, self.run, self.turn, self.criterion

    @property
    def difference(self) -> float:
        """How much better the judge finds the same answer now, from −1 to 1."""
        return self.now - self.before


class Previous(Strict):
    """The last run of the experiment that had anchors of the same judge."""

    run_id: str
    evidence_sha256: str


class JudgeAnchors(Strict):
    """The anchors of one judge."""

    judge: str
    """Its identity, see `judges_of`."""
    criteria: tuple[str, ...]
    """The criteria that it decides."""
    previous: Previous | None = None
    """``None``: there was none."""
    planned: Count
    """How many cells were to be judged again."""
    missing: tuple[str, ...] = ()
    """Why cells were not judged again, a reason for each; or why none could be chosen."""
    anchors: tuple[Anchor, ...] = ()
    """In the order in which they were chosen."""


class Anchors(Strict):
    """The anchors of a run."""

    version: Literal[1] = 1
    judges: tuple[JudgeAnchors, ...] = ()

    def of(self, judge: str) -> JudgeAnchors | None:
        """Return those of one judge; ``None``: it is none of this run."""
        return next((one for one in self.judges if one.judge == judge), None)

    def dumps(self) -> bytes:
        """Return them as JSON."""
        return self.model_dump_json(indent=1).encode()


def read_anchors(text: bytes, source: str = ANCHORS) -> Anchors:
    """Return the anchors in a file; `source`: what messages call it.

    Raises:
        InputError: with every problem of it.
    """
    return parse(Anchors, text, source)


@dataclass(frozen=True, slots=True)
class KnownJudge:
    """Who decides a criterion in a run, and what it is asked."""

    judge: str
    """What tells judges apart: models with their hosts, and a hash of the settings by which they generate, where there are some."""
    question: str
    """A hash of the prompts and of all settings that a question depends on. Only answers to the same question are compared."""


def judges_of(config: EvalConfig, params: Mapping[str, str]) -> dict[str, KnownJudge]:
    """Return the judges of a run by criterion, as far as what they said can be asked for again.

    Left out are criteria that no judge has answered for, that compare with a baseline, whose settings differ between cases, and those of Vertex AI's
    evaluation service.
    """
    judges: dict[str, KnownJudge] = {}
    for name, listed in judged_criteria(config).items():
        answered, (one, *others) = params.get(f"adk_eval.judge.{key_of_criterion(name)}", ""), listed
        by_service = isinstance(one, VertexSettings) and one.backend == "vertex"
        if not answered or others or by_service or "baseline" in CRITERIA[name].needs:
            continue
        settings = one.model_dump(mode="json", exclude={"threshold", "early_stop", "judge_panel", "judge_model_options"})
        generation = one.judge_model_options.judge_model_config
        prompts = [params.get(key) for key in prompt_keys(name)]
        mark = f" with settings {order_of(generation)[:12]}" if generation else ""
        judges[name] = KnownJudge(judge=answered + mark, question=order_of(settings, generation, prompts))
    return judges


def order_of(*what: object) -> str:
    """Return a hash, in hex, to order things by which nobody can choose who does not choose all of `what`."""
    return hashlib.sha256(canonical_json(what)).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierCell:
    """A cell of an earlier run that can be judged again."""

    id: CellId
    before: Mapping[str | None, Sequence[float]]
    """The values of the votes that count, from 0 to 1, by what was voted on, such as a rubric."""
    calls: int = 1
    """How many questions it takes."""
    labelled: bool = False


def cells_of(run_id: str, votes: Iterable[Vote], config: EvalConfig, judges: Mapping[str, KnownJudge]) -> list[EarlierCell]:
    """Return the cells of a run that can be judged again: those for which its own evaluation asked, each answer of a judge once.

    Args:
        run_id: the run.
        votes: those of the run, or of one of its parts.
        config: of the run.
        judges: the criteria that count, see `judges_of`.
    """
    known = (vote for vote in votes if vote.criterion in judges)
    cast = grouped(((run_id, vote.eval_id, vote.run_index, vote.invocation_index, vote.criterion), vote) for vote in known)
    cells = list[EarlierCell]()
    seen = {_answer(vote) for listed in cast.values() for vote in listed if not vote.reused}
    for cell, listed in cast.items():
        # Those that are asked for whatever they say: as many as a verdict takes at least; of a panel, the first one's.
        votes_each = judged_criteria(config)[cell[-1]][0].judge_model_options.num_samples
        count = 1 if " | " in judges[cell[-1]].judge else ceil(votes_each / 2)
        first = [vote for vote in listed if vote.vote_index < count]
        before = values_of(first, config)
        # Equal answers of the agent share an answer of the judge, which would count twice.
        shared = {_answer(vote) for vote in first if vote.reused}
        if before and not any(vote.asked_in for vote in first) and not shared & seen:
            paid = sum(vote.vote_index == 0 and vote.input_tokens is not None for vote in first)  # noted at the first item of each answer
            cells.append(EarlierCell(id=cell, before=before, calls=max(paid, 1)))
        seen |= shared
    return cells


def _answer(vote: Vote) -> tuple[str, int, str, str, float]:
    """Return what tells the answer of a judge from others, where a vote did not pay for it itself."""
    return vote.criterion, vote.vote_index, vote.model, vote.asked_at, vote.latency_s


def values_of(votes: Iterable[Vote], config: EvalConfig) -> dict[str | None, list[float]]:
    """Return the values of votes on a cell, from 0 to 1, by what was voted on. Votes without a verdict have none."""
    cast = ((vote.rubric_id, vote.value, *config.bounds(vote.criterion)) for vote in votes if vote.value is not None)
    return grouped((item, min(max((value - low) / (high - low), 0.0), 1.0)) for item, value, low, high in cast if isfinite(value))


def anchor_of(cell: EarlierCell, votes: Sequence[Vote], config: EvalConfig, evaluation: str) -> Anchor | None:
    """Return what a judge says of a cell now; ``None``: nothing that can be compared.

    Args:
        cell: the cell.
        votes: those that were asked for now; a cell with several rubrics or sentences has one of each.
        config: of the run that asked.
        evaluation: the id of the evaluation that asked.
    """
    now = values_of(votes, config)
    if not (both := [item for item in cell.before if item in now]):
        return None
    run_id, eval_id, run, turn, criterion = cell.id
    return Anchor(
        criterion=criterion,
        run_id=run_id,
        eval_id=eval_id,
        run=run,
        turn=turn,
        before=fmean(fmean(cell.before[item]) for item in both),
        votes_before=min(len(cell.before[item]) for item in both),
        now=fmean(fmean(now[item]) for item in both),
        labelled=cell.labelled,
        asked_in=evaluation,
        asked_at=max(vote.asked_at for vote in votes),
    )


def calls_allowed(votes: Iterable[Vote], criteria: Collection[str], share: float) -> int:
    """Return how many calls anchors may take: a share of the answers that a run itself has asked for in these criteria."""
    paid, resumed = set[tuple[object, ...]](), set[tuple[object, ...]]()
    for vote in votes:
        if vote.criterion in criteria and vote.verdict is not None and not vote.asked_in:
            if not vote.reused:  # of one answer, each rubric or sentence has a vote
                paid.add((*_answer(vote), vote.eval_id, vote.run_index, vote.invocation_index))
            resumed.add(_answer(vote))
    resumed -= {one[:5] for one in paid}
    return floor(share * (len(paid) + len(resumed)) + 1e-9)


def chosen(sources: Iterable[Sequence[EarlierCell]], run_id: str, calls: int, used: Collection[CellId]) -> list[EarlierCell]:
    """Return the cells that a run has judged again, in their order.

    Cells of the earliest source come first, of one source those with a label, and of these that with the least hash. The criteria take turns.

    Args:
        sources: the cells of earlier runs, the earliest first; no more are read than are needed, and not more than `MOST_SOURCES`.
        run_id: the run that judges them again.
        calls: how many calls they may take.
        used: the cells that were judged again before.
    """
    ordered: dict[str, list[EarlierCell]] = {}
    for cells in islice(sources, MOST_SOURCES if calls else 0):
        free = [cell for cell in cells if cell.id not in used]
        for cell in sorted(free, key=lambda cell: (not cell.labelled, order_of(run_id, *cell.id))):
            ordered.setdefault(cell.id[-1], []).append(cell)
        if ordered and min(map(len, ordered.values())) >= calls:
            break
    taken: list[EarlierCell] = []
    for cell in chain.from_iterable(zip_longest(*(ordered[name] for name in sorted(ordered, key=lambda name: order_of(run_id, name))))):
        if cell is not None and cell.calls <= calls:
            taken.append(cell)
            calls -= cell.calls
    return taken
