"""Runs with any scores, and policies in a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mlflow_adk_eval.analysis.calibration.calibration import settings_sha256
from mlflow_adk_eval.config.eval_config import load_config
from mlflow_adk_eval.evalset.models import EvalSet, Invocation, InvocationEvent, InvocationEvents
from mlflow_adk_eval.gating.policy.load import parse_policy
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.rules.comparable import Baseline
from mlflow_adk_eval.results.decision import Check
from mlflow_adk_eval.results.outcomes import CriterionResult, Errored, Outcome, Scored, Vote, case_outcome
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.examined import examine
from mlflow_adk_eval.runs.manifest import Evidence
from tests.gating.gate_kit import RESPONSE, decide_on, evidence_of, turn
from tests.gating.promotion.claim_kit import version_id
from tests.kit import case_result

Scores = Mapping[str, Sequence[float | None]]
"""By case, one per run; ``None``: the criterion has failed there."""
CHAMPION = "the champion, version 3 of 'home'"
JUDGED = "final_response_match_v2"


def report_with(
    scores: Mapping[str, Scores],
    *,
    thresholds: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    tags: Mapping[str, Any] | None = None,
    votes: Sequence[Vote] = (),
) -> Report:
    """Return a report in which each criterion came to some scores, one turn per case; those without a threshold are information."""
    demanded = {RESPONSE: 0.5} if thresholds is None else thresholds
    settings = load_config({"criteria": demanded, **(config or {})})
    names = list(dict.fromkeys(case for found in scores.values() for case in found))
    conversations = {name: [turn(f"Hello {name}", "Hi", "")] for name in names}
    tagged = tags or {}
    cases = [{"eval_id": name, "conversation": conversations[name], **({"tags": tagged[name]} if name in tagged else {})} for name in names]
    num_runs = max((len(values) for found in scores.values() for values in found.values()), default=1)
    results = [
        case_result(
            eval_id=name,
            run_index=index,
            actual=tuple(map(_seen, conversations[name])),
            expected=tuple(conversations[name]),
            results=tuple(
                _result(settings, criterion, name, found[name][index], index, votes) for criterion, found in scores.items() if name in found
            ),
        )
        for name in names
        for index in range(num_runs)
    ]
    return Report(
        eval_set=EvalSet.model_validate({"eval_set_id": "home", "eval_cases": cases}),
        config=settings,
        cases=tuple(results),
        num_runs=num_runs,
    )


def _seen(turn: Invocation) -> Invocation:
    """A turn of which everything is known that a score may rest on."""
    used = InvocationEvent(author="home", usage_metadata={"prompt_token_count": 1}, model_version="m")
    known = {"intermediate_data": InvocationEvents(invocation_events=(used,)), "duration": 1.0, "inference_call_count": 1}
    return turn.model_copy(update=known)


def _result(config: Any, criterion: str, eval_id: str, score: float | None, run: int, votes: Sequence[Vote]) -> CriterionResult:
    cell: Outcome = Errored("the judge is down") if score is None else Scored(score, "because")
    settings = config.criteria_of(eval_id).get(criterion)
    return CriterionResult(
        criterion=criterion,
        threshold=settings.threshold if settings else None,
        greater_is_better=config.greater_is_better(criterion),
        overall=case_outcome([cell]),
        per_invocation=(cell,),
        votes=tuple(vote for vote in votes if (vote.eval_id, vote.run_index, vote.criterion) == (eval_id, run, criterion)),
    )


def run_with(scores: Scores, *, criterion: str = RESPONSE, run_id: str = "r-1", model_id: str = "m-1", **more: Any) -> Evidence:
    """Return the evidence of a run in which one criterion came to some scores."""
    return evidence_of(report_with({criterion: scores}, **more), run_id=run_id, model_id=model_id)


def cases(*values: float) -> dict[str, list[float | None]]:
    """Return cases with one value each, called a to z, then a1 and so on."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return {letters[index % 26] + (str(index // 26) if index > 25 else ""): [value] for index, value in enumerate(values)}


def policy(**demands: Any) -> Policy:
    return parse_policy(demands, "policy")


def champion(evidence: Evidence) -> Baseline:
    return Baseline(name=CHAMPION, version=version_id("3"), run=examine(evidence))


def only_check(evidence: Evidence, demanded: Policy, **more: Any) -> Check:
    """Return the one check of a policy with one demand."""
    (found,) = decide_on(evidence, demanded, **more).checks
    return found


def vote(eval_id: str, number: int, verdict: str | None, *, criterion: str = JUDGED, **more: Any) -> Vote:
    cast = Vote(
        eval_id=eval_id,
        run_index=0,
        invocation_index=0,
        criterion=criterion,
        rubric_id=None,
        vote_index=number,
        verdict=verdict,
        explanation="",
        model="gemini-2.5-flash-001",
        latency_s=0.25,
        input_tokens=1000,
        output_tokens=100,
        error="" if verdict else "503",
    )
    return replace(cast, **more)


def calibration_of(
    criterion: str, config: Mapping[str, Any], counts: tuple[int, int, int, int], params: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """Return a calibration of the judge of a criterion: true passes, false passes, true failures, false failures."""
    rates = dict(zip(("true_passes", "false_passes", "true_failures", "false_failures"), counts, strict=True))
    sample = {"passed": counts[0] + counts[1], "judged": sum(counts)}
    loaded = load_config(config)
    known = {f"threshold.{criterion}": loaded.thresholds()[criterion]} | dict(params or {})
    return {
        "made_at": "2027-01-01T00:00:00+00:00",
        "made_by": "ada@home",
        "runs": [{"run_id": "r-0", "evidence_sha256": "0" * 64, "ended_at": "2027-01-01T00:00:00Z"}],
        "labels": {"source": "labels.csv", "sha256": "0" * 64, "count": sum(counts), "labellers": 1},
        "criteria": {criterion: {**rates, "sample": sample, "params": known, "settings_sha256": settings_sha256(loaded, criterion)}},
        "labelled": [],
    }
