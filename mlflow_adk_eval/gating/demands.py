"""What a policy demands besides rules: the thresholds of the run's own config, cases that must pass, a number of cases."""

from __future__ import annotations

from collections.abc import Iterator

from mlflow_adk_eval.errors import did_you_mean
from mlflow_adk_eval.evalset import EvalSet
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.rules.checks import cases_told
from mlflow_adk_eval.gating.rules.reasons import deciding, missed, reached
from mlflow_adk_eval.results.report import CaseResult, Check, Report, Verdict


def check_thresholds(report: Report) -> Iterator[Check]:
    """Yield whether each case that was evaluated reached the thresholds of the run's own config, by criterion."""
    thresholds = report.config.thresholds()
    for summary in deciding(report):
        results = [result for case in report.cases for result in case.results if result.criterion == summary.criterion]
        below, whole = missed(report, summary), all(result.passed is not None for result in results)
        verdict: Verdict = "failed" if below else ("passed" if whole else "undecided")
        yield Check(
            measure=summary.criterion,
            demand=f"threshold {thresholds[summary.criterion]}",
            verdict=verdict,
            reason=below or (reached(report, summary) if whole else f"{summary.criterion}: not every case was evaluated"),
            cases=len(summary.case_scores),
            value=summary.mean,
        )


def check_must_pass(policy: Policy, report: Report, eval_set: EvalSet) -> Iterator[Check]:
    """Yield whether each run of the cases that must pass has done so."""
    runs: dict[str, list[CaseResult]] = {}
    for case in report.cases:
        runs.setdefault(case.eval_id, []).append(case)
    for eval_id in policy.must_pass:
        verdict, said = _must_pass(eval_id, runs.get(eval_id, []), report, eval_set)
        yield Check(measure="must_pass", demand=eval_id, verdict=verdict, reason=f"must_pass {eval_id}: {said}", cases=int(eval_id in runs))


def _must_pass(eval_id: str, runs: list[CaseResult], report: Report, eval_set: EvalSet) -> tuple[Verdict, str]:
    if eval_id not in eval_set.eval_ids:
        hint = did_you_mean(eval_id, eval_set.eval_ids)
        return "undecided", f"there is no such case in eval set {eval_set.eval_set_id!r}" + (f". {hint}" if hint else "")
    if not runs:
        return "passed", "waived, so it was not asked for"
    open_runs = [case for case in runs if case.verdict != "passed"]
    if not open_runs:
        return "passed", "passed" if len(runs) == 1 else f"passed in all of its {len(runs)} runs"
    verdict: Verdict = "failed" if any(case.verdict == "failed" for case in open_runs) else "undecided"
    said = "; ".join(f"{report.label(case)} {case.verdict}: {', '.join(case.reasons())}" for case in open_runs)
    return verdict, said


def check_min_cases(policy: Policy, report: Report) -> Iterator[Check]:
    """Yield whether there are enough cases, where the policy wants more than one."""
    cases = len({case.eval_id for case in report.cases})
    if not cases:
        yield Check(measure="cases", demand=f"min_cases {policy.min_cases}", verdict="undecided", reason="every case is waived", cases=0)
    elif policy.min_cases > 1:
        enough = cases >= policy.min_cases
        only = "" if enough else "only "
        said = (
            f"{only}{cases_told(cases)} that {'is' if cases == 1 else 'are'} not waived, and the policy wants at least {policy.min_cases}"
        )
        verdict: Verdict = "passed" if enough else "undecided"
        yield Check(measure="cases", demand=f"min_cases {policy.min_cases}", verdict=verdict, reason=said, cases=cases, value=float(cases))
