"""A report in which judges decided, made by hand: what was voted, what could not be, and what needed no vote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mlflow_adk_eval.config.eval_config import EvalConfig, parse_config
from mlflow_adk_eval.evalset.models import EvalSet, eval_set_digest
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Errored, Outcome, Scored, Vote, case_outcome
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.tracking.bundle import Bundle, bundle_of
from tests.kit import case_result
from tests.tracking.small import eval_set, recorded, turn

MATCH, RUBRICS, TRAJECTORY = "final_response_match_v2", "rubric_based_final_response_quality_v1", "tool_trajectory_avg_score"
MODEL = "gemini-2.5-flash-001"
DOWN = "503 the judge is down"


def rubric(rubric_id: str) -> dict[str, Any]:
    return {"rubric_id": rubric_id, "rubric_content": {"text_property": f"The answer is {rubric_id}."}}


CONFIG: dict[str, Any] = {
    "criteria": {
        TRAJECTORY: 1.0,
        MATCH: {"threshold": 0.8, "judge_model_options": {"num_samples": 3}},
        RUBRICS: {"threshold": 0.25, "rubrics": [rubric("short"), rubric("polite")]},
    }
}
USAGE = JudgeUsage(
    calls=13,
    failed_calls=2,
    calls_saved=4,
    reused=3,
    input_tokens=1200,
    output_tokens=34,
    ballots=5,
    split_ballots=2,
    votes=12,
    dissenting_votes=3,
    models=("gemini-2.5-flash",),
    prompts={f"{MATCH}@1+1": "a" * 64, f"{RUBRICS}@2+1": "b" * 64},
)


def rooms() -> EvalSet:
    """Two cases, three turns."""
    return eval_set(
        {
            "light": [turn("light on", "the light is on", ("switch", {"room": "hall"})), turn("thanks", "you are welcome")],
            "heat": [turn("21 degrees please", "it is set to 21 degrees", ("heat", {"to": 21}))],
        }
    )


def vote(
    eval_id: str, index: int, criterion: str, number: int, verdict: str | None, explanation: str = "", item: str | None = None, **more: Any
) -> Vote:
    made = Vote(
        eval_id=eval_id,
        run_index=0,
        invocation_index=index,
        criterion=criterion,
        rubric_id=item,
        vote_index=number,
        verdict=verdict,
        explanation=explanation,
        model=MODEL,
        latency_s=0.25,
        input_tokens=100,
        output_tokens=None,
        error="" if verdict else DOWN,
        raw="" if verdict else "{half an ans",
        host="this process",
    )
    return replace(made, **more)


def item(rubric_id: str, verdict: str, rationale: str, votes: dict[str, int], *dissent: str) -> dict[str, Any]:
    """Return what details hold of a rubric."""
    text, score = f"The answer is {rubric_id}.", float(verdict == "yes")
    found: dict[str, Any] = {"id": rubric_id, "text": text, "verdict": verdict, "score": score, "rationale": rationale, "votes": votes}
    return found | ({"dissent": list(dissent)} if dissent else {})


SPLIT = Scored(
    1.0, "valid 2:1: it says the same", {"verdict": "valid", "votes": {"valid": 2, "invalid": 1}, "dissent": ["invalid: no room"]}
)
UNANIMOUS = Scored(1.0, "valid 2:0: as polite", {"verdict": "valid", "votes": {"valid": 2}})
HALF = Scored(
    0.5,
    "- ✓ The answer is short. (yes 2:0): five words\n- ✗ The answer is polite. (no 2:1): it gives orders",
    {
        "items": [
            item("short", "yes", "five words", {"yes": 2}),
            item("polite", "no", "it gives orders", {"no": 2, "yes": 1}, "yes: it says please"),
        ]
    },
)
TRIVIAL = Scored(
    0.0, "nothing was said", {"items": [item("short", "no", "nothing was said", {}), item("polite", "no", "nothing was said", {})]}
)
LOST = Errored(f"1 of 3 votes are available, too few for a verdict: {DOWN} (2 times)")
LOST_RUBRIC = Errored(f"rubric 'polite': 1 of 5 votes are available, too few for a verdict: {DOWN} (4 times)")

MATCH_VOTES = (
    vote("light", 0, MATCH, 0, "valid", "it says the same"),
    vote("light", 0, MATCH, 1, "invalid", "no room", reused=True),
    vote("light", 0, MATCH, 2, "valid", "same"),
    vote("light", 1, MATCH, 0, "valid", "as polite"),
    vote("light", 1, MATCH, 1, "valid", "fine"),
)
RUBRIC_VOTES = (
    vote("light", 0, RUBRICS, 0, "yes", "five words", "short"),
    vote("light", 0, RUBRICS, 0, "no", "it gives orders", "polite", input_tokens=None),
    vote("light", 0, RUBRICS, 1, "yes", "brief", "short"),
    vote("light", 0, RUBRICS, 1, "yes", "it says please", "polite", input_tokens=None),
    vote("light", 0, RUBRICS, 2, "no", "rude", "polite", input_tokens=None),
)
LOST_VOTES = (vote("heat", 0, MATCH, 0, "valid", "it is"), vote("heat", 0, MATCH, 1, None), vote("heat", 0, MATCH, 2, None))
LOST_RUBRIC_VOTES = (
    vote("heat", 0, RUBRICS, 0, "yes", "short enough", "short"),
    vote("heat", 0, RUBRICS, 0, "no", "no please", "polite"),
    vote("heat", 0, RUBRICS, 1, "yes", "short", "short"),
    vote("heat", 0, RUBRICS, 1, None, "", "polite"),
)


def result(config: EvalConfig, criterion: str, cells: tuple[Outcome | None, ...], votes: tuple[Vote, ...] = ()) -> CriterionResult:
    return CriterionResult(
        criterion=criterion,
        threshold=config.criteria[criterion].threshold,
        greater_is_better=True,
        overall=case_outcome(cells),
        per_invocation=cells,
        votes=votes,
    )


def case(eval_id: str, *results: CriterionResult) -> CaseResult:
    conversation = next(found.conversation for found in rooms().eval_cases if found.eval_id == eval_id) or ()
    return case_result(eval_id=eval_id, run_index=0, actual=tuple(map(recorded, conversation)), expected=conversation, results=results)


def report(*, lost: bool = True, usage: JudgeUsage | None = USAGE) -> Report:
    """Return a report of two cases; where `lost`, the judge was down during the second one."""
    config = parse_config(CONFIG, "config")
    fine = Scored(1.0, "as expected")
    kept = tuple(replace(found, eval_id="heat", invocation_index=0) for found in MATCH_VOTES[3:])
    kept_rubrics = tuple(replace(found, eval_id="heat") for found in RUBRIC_VOTES)
    light = case(
        "light",
        result(config, TRAJECTORY, (fine, fine)),
        result(config, MATCH, (SPLIT, UNANIMOUS), MATCH_VOTES),
        result(config, RUBRICS, (HALF, TRIVIAL), RUBRIC_VOTES),
    )
    heat = case(
        "heat",
        result(config, TRAJECTORY, (fine,)),
        result(config, MATCH, (LOST,), LOST_VOTES) if lost else result(config, MATCH, (UNANIMOUS,), kept),
        result(config, RUBRICS, (LOST_RUBRIC,), LOST_RUBRIC_VOTES) if lost else result(config, RUBRICS, (HALF,), kept_rubrics),
    )
    return Report(eval_set=rooms(), config=config, cases=(light, heat), judging=usage)


def logged(store: str, found: Report, experiment: str) -> Bundle:
    """Log a report in a store as `evaluate` does, and return what was logged."""
    from mlflow_adk_eval.tracking.logged_run import LoggedRun, RunTarget, finish_run

    target = RunTarget(experiment=experiment, tracking_uri=store, run_name="judged")
    logged_run = LoggedRun(target, found.eval_set, found.config, agent_name="agent", digest=eval_set_digest(found.eval_set))
    logged_run.start()
    bundle = bundle_of(found, logged_run.run, traces=True, secrets={})
    finish_run(logged_run.client, bundle)
    return bundle
