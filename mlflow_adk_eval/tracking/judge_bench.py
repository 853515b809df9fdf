"""Judges side by side on answers of which it is known what they deserve, kept as an MLflow run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Unpack

from mlflow.entities import Metric, Param

from mlflow_adk_eval.analysis.calibration.bench import BenchCell, BenchSet, Contender, asked_with, bench_set, contender_of, load_items
from mlflow_adk_eval.analysis.calibration.judge_error import rates_of
from mlflow_adk_eval.analysis.calibration.labels import opinions_of
from mlflow_adk_eval.analysis.stats.intervals import wilson_interval
from mlflow_adk_eval.config.eval_config import judged_criteria
from mlflow_adk_eval.config.spec import CRITERIA, VertexSettings
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.calibration import judged_run
from mlflow_adk_eval.gating.named_runs import run_id_of
from mlflow_adk_eval.gating.registry import store_at
from mlflow_adk_eval.gating.rules.measures import answers_of, flip_of
from mlflow_adk_eval.judge.setup import JudgeArgs
from mlflow_adk_eval.results.outcomes import CriterionResult, grouped, reason_of
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.recordings import score
from mlflow_adk_eval.store.reaching import reaching_mlflow
from mlflow_adk_eval.tracking.calibrate import Table, from_table
from mlflow_adk_eval.tracking.client import connect, experiment_of
from mlflow_adk_eval.tracking.earlier_runs import recording_of_run
from mlflow_adk_eval.tracking.storable import fitted

ANSWERS, RESULTS = "judge_bench/answers.json", "judge_bench/results.json"
"""Where a run keeps the table of all answers, and the numbers."""
_LONGEST = 200
_RATES = {"accuracy": "agreement", "kappa": "kappa", "sensitivity": "sensitivity", "specificity": "specificity"}
_NUMBERS = ("undecided", "unreadable", "input_tokens", "output_tokens", "flip_rate", "latency_s")
Share = tuple[float, float, float]
"""A share with its confidence interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """What a judge makes of pairs of answers that deserve the same and differ in one thing."""

    pairs: int
    changed: Share | None
    """The share of pairs on which it changes its verdict; ``None`` without pairs."""
    towards_pass: int
    """Pairs of which it passes only the longer, or reordered, one."""
    towards_fail: int
    """Pairs of which it passes only the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeScore:
    """How one judge did."""

    judge: str
    settings: Mapping[str, Any]
    items: int
    undecided: int
    """Items without a verdict, which are in no rate."""
    rates: Mapping[str, Share | None]
    """Accuracy, κ, sensitivity and specificity, with their intervals."""
    by_criterion: Mapping[str, Mapping[str, Share | None]]
    by_kind: Mapping[str, tuple[int, int]]
    """Right verdicts and all, by what is special about an item."""
    flip_rate: float | None
    """The share of votes against the verdict that they took part in, on average over the items."""
    length: Bias
    position: Bias
    answers: int
    unreadable: int
    """Answers that could not be read."""
    input_tokens: int
    output_tokens: int
    latency_s: float | None
    """The median of an answer, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeBench:
    """Judges side by side."""

    source: str
    confidence: float
    scores: tuple[JudgeScore, ...]
    run_id: str | None
    """``None``: it was not logged."""
    answers: tuple[Mapping[str, Any], ...]
    """A row for each judge and item: the truth, the verdict, what was said."""

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as JSON values, without the answers."""
        value = asdict(self)
        del value["answers"]
        return value


def judge_bench(
    judges: Sequence[Any],
    items: str | Path | Iterable[Mapping[str, Any]] | None = None,
    *,
    run: str | None = None,
    labels: Table | None = None,
    votes: int = 3,
    confidence: float = 0.95,
    experiment: str | None = "judge_bench",
    tracking_uri: str | None = None,
    **judging: Unpack[JudgeArgs],
) -> JudgeBench:
    """Return the accuracy of several judges on answers with known verdicts.

    Args:
        judges: models' names, optionally with settings (``gemini-2.5-flash?temperature=0&num_samples=5``), judges, functions, or
            panels of them as lists (``gemini-2.5-pro,openai/gpt-5-mini``).
        items: a JSON Lines file, or mappings, as in `docs/how_to/judge_bench.md`; ``None``: the package's own.
        run: with `labels`, the run with the labelled answers; they are judged again.
        labels: a table of labels for `run`, as for `calibrate`.
        votes: how often to ask each question. All votes are cast, to measure flips.
        confidence: the confidence level of all intervals.
        experiment: the experiment to log the results to, by name; ``None``: none.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        judging: options, budget (for each judge) and ledger, as `score` takes them.

    Raises:
        BenchError: with every problem of the items, or of a judge's settings.
        UsageError: if labels have no run, or a run has no labels.
        JudgeError: if a judge cannot be set up.
    """
    if (run is None) != (labels is None) or (run is not None and items is not None):
        raise UsageError("judge_bench: wanted items, or labels together with their run")
    if not judges or votes < 1 or "judge" in judging:
        raise UsageError("judge_bench: wanted at least one judge, and at least one vote")
    bench = bench_set(*load_items(items)) if run is None or labels is None else _labelled_cells(run, labels, tracking_uri)
    contenders = [contender_of(judge, votes) for judge in judges]
    if twice := [name for name, count in Counter(one.name for one in contenders).items() if count > 1]:
        raise UsageError(f"judge_bench: {twice[0]} is repeated; change the settings or the name of one")
    scores, answers = list[JudgeScore](), list[dict[str, Any]]()
    for contender in contenders:
        report = score(bench.eval_set, bench.actual, asked_with(bench.config, contender), **judging | {"judge": contender.judge})
        results = {(case.eval_id, result.criterion): result for case in report.cases for result in case.results}
        rows = [_row(contender, cell, results[cell.eval_id, cell.criterion]) for cell in bench.cells]
        pairs = [(cell, row["judge"]) for cell, row in zip(bench.cells, rows, strict=True)]
        scores.append(_score(contender, report, pairs, confidence))
        answers += rows
    done = JudgeBench(source=bench.source, confidence=confidence, scores=tuple(scores), run_id=None, answers=tuple(answers))
    return done if experiment is None else _logged(done, experiment, tracking_uri)


def _labelled_cells(run_id: str, labels: Table, tracking_uri: str | None) -> BenchSet:
    """Return the labelled cells of a run, with what the agent did there."""
    with store_at(tracking_uri) as store:
        run_id = run_id_of(run_id, store)
        run = judged_run(store.evidence(run_id))
    given, source, _, _ = from_table(labels, run.units)
    config = run.report.config
    judged = {name for name in judged_criteria(config) if CRITERIA[name].prompts}  # others have only Vertex AI's evaluation service
    cells = tuple(
        BenchCell(eval_id=unit.eval_id, invocation_index=unit.invocation_index, criterion=unit.criterion, passes=opinion.passed)
        for unit, opinion in opinions_of(given).items()
        if opinion.passed is not None and unit.rubric_id is None and unit.run_index == 0 and unit.criterion in judged
    )
    if not cells:
        raise UsageError(f"judge_bench: {source} labels no verdict of a judge in the first run of a case")
    own: dict[str, dict[str, Any]] = {cell.eval_id: {} for cell in cells}
    for eval_id, name in sorted({(cell.eval_id, cell.criterion) for cell in cells}):  # which a judge decides, whoever did before
        settings = config.criteria_of(eval_id)[name]
        backend = {"backend": "judge"} if isinstance(settings, VertexSettings) else {}
        own[eval_id][name] = settings.model_dump(mode="json", exclude_unset=True) | backend
    criteria = {name: settings for each in own.values() for name, settings in each.items()}
    recorded = recording_of_run(run_id, tracking_uri).runs
    actual = {eval_id: list(recorded[eval_id][0].actual) for eval_id in own}
    eval_set = run.eval_set.model_copy(update={"eval_cases": tuple(run.eval_set.named(set(own)).values())})
    return BenchSet(source=source, eval_set=eval_set, actual=actual, config={"criteria": criteria, "case_criteria": own}, cells=cells)


def _row(contender: Contender, cell: BenchCell, result: CriterionResult) -> dict[str, Any]:
    outcome = result.overall if cell.invocation_index is None else result.per_invocation[cell.invocation_index]
    passed = None if outcome is None else result.reached(outcome)
    cast = [vote for vote in result.votes if cell.invocation_index in (None, vote.invocation_index)]
    explanation = next((vote.explanation for vote in cast if vote.explanation), "")
    return {
        "judge_name": contender.name,
        "item": cell.eval_id if cell.invocation_index is None else f"{cell.eval_id} #{cell.invocation_index}",
        "criterion": cell.criterion,
        "kind": cell.kind,
        "language": cell.language,
        "truth": cell.passes,
        "judge": passed,
        "right": None if passed is None else passed == cell.passes,
        "votes": ", ".join(f"{verdict} {count}" for verdict, count in Counter(vote.verdict or "none" for vote in cast).items()),
        "said": explanation if passed is not None or outcome is None else reason_of(outcome),
    }


def _score(contender: Contender, report: Report, pairs: Sequence[tuple[BenchCell, bool | None]], confidence: float) -> JudgeScore:
    decided = [(cell, passed) for cell, passed in pairs if passed is not None]
    criteria = dict.fromkeys(cell.criterion for cell, _ in pairs)
    kinds = grouped((cell.kind, cell.passes == passed) for cell, passed in decided if cell.kind)
    flips = [flip for case in report.cases if (flip := flip_of(case.results)) is not None]
    given = [answer for case in report.cases for answer in answers_of(case.results)]
    return JudgeScore(
        judge=contender.name,
        settings=contender.settings,
        items=len(pairs),
        undecided=len(pairs) - len(decided),
        rates=_rates(decided, confidence),
        by_criterion={name: _rates([pair for pair in decided if pair[0].criterion == name], confidence) for name in criteria},
        by_kind={kind: (sum(right), len(right)) for kind, right in kinds.items()},
        flip_rate=fmean(flips) if flips else None,
        length=_bias(decided, "length", confidence),
        position=_bias(decided, "position", confidence),
        answers=len(given),
        unreadable=sum(any(vote.raw for vote in answer) and all(vote.verdict is None for vote in answer) for answer in given),
        input_tokens=sum(vote.input_tokens or 0 for answer in given for vote in answer),
        output_tokens=sum(vote.output_tokens or 0 for answer in given for vote in answer),
        latency_s=median(answer[0].latency_s for answer in given) if given else None,
    )


def _rates(decided: Sequence[tuple[BenchCell, bool]], confidence: float) -> dict[str, Share | None]:
    rates = rates_of([(cell.like or cell.eval_id, passed, cell.passes) for cell, passed in decided])
    measures = {name: rates.measure(of, confidence) for name, of in _RATES.items()}
    return {name: None if value is None or interval is None else (value, *interval) for name, (value, interval) in measures.items()}


def _bias(decided: Sequence[tuple[BenchCell, bool]], differs: str, confidence: float) -> Bias:
    """Compare each longer or reordered item with the one that it is over again."""
    verdicts = {cell.eval_id: passed for cell, passed in decided}
    pairs = [(verdicts[cell.like], passed) for cell, passed in decided if cell.differs == differs and cell.like in verdicts]
    changed = sum(before != after for before, after in pairs)
    share = (changed / len(pairs), *wilson_interval(changed / len(pairs), len(pairs), confidence)) if pairs else None
    more = sum(after and not before for before, after in pairs)
    return Bias(pairs=len(pairs), changed=share, towards_pass=more, towards_fail=changed - more)


def _logged(bench: JudgeBench, experiment: str, tracking_uri: str | None) -> JudgeBench:
    client = connect(tracking_uri)
    with reaching_mlflow("the judges' results could not be logged"):
        run = client.create_run(experiment_of(client, experiment), run_name=f"judges on {bench.source}"[:_LONGEST])
        run_id = str(run.info.run_id)
        metrics, params = list[Metric](), [Param("items", bench.source[:_LONGEST])]
        for number, one in enumerate(bench.scores):
            params.append(Param(f"judge.{number}", fitted(one.judge, _LONGEST)))
            ends = ("", "_low", "_high")
            measures = [(name + end, value) for name, share in one.rates.items() for end, value in zip(ends, share or (), strict=False)]
            measures += [(name, value) for name in _NUMBERS if (value := getattr(one, name)) is not None]
            metrics += [Metric(f"judge.{number}/{name}", float(value), run.info.start_time, 0) for name, value in measures]
        client.log_batch(run_id, metrics=metrics, params=params)
        client.log_table(run_id, {name: [row[name] for row in bench.answers] for name in bench.answers[0]}, ANSWERS)
        logged = replace(bench, run_id=run_id)
        client.log_text(run_id, json.dumps(logged.to_json(), ensure_ascii=False, indent=2), RESULTS)
        client.set_terminated(run_id)
    return logged
