"""One of the two runs that are compared: what was to be evaluated, what came of it, and what was done and said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlflow_adk_eval.config.criteria import CriterionSettings
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.evalset import EvalSet, eval_set_digest
from mlflow_adk_eval.results.outcomes import CaseResult, Verdict, Vote
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.table import table_of

Row = Mapping[str, Any]
"""One turn, by the columns of the run's table."""
Rows = Mapping[tuple[str, int], Sequence[Row]]
"""The turns of each case run, by eval id and run index, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A run, as a comparison reads it."""

    name: str
    run_id: str = ""
    """The MLflow run; empty for a report that was not logged."""
    eval_set: EvalSet
    digest: str
    """Of the eval set."""
    config: EvalConfig
    num_runs: int
    cases: Mapping[str, Mapping[int, CaseResult]]
    """The results by eval id and run index, in the order of the eval set."""
    rows: Rows
    votes: Mapping[tuple[str, int], Sequence[Vote]] = field(default_factory=dict[tuple[str, int], Sequence[Vote]])
    """By eval id and run index."""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the run says of its agent, its judges and its surroundings, by what it is called."""
    warnings: tuple[str, ...] = ()
    """Why the run is not one whose evaluation ended well."""

    def verdicts(self, eval_id: str) -> tuple[Verdict, ...]:
        """Return what a case came to, by run; a run without a result is undecided."""
        found = self.cases.get(eval_id, {})
        return tuple(
            found[index].verdict if index in found else "undecided" for index in range(max([self.num_runs, *(i + 1 for i in found)]))
        )

    def settings(self, eval_id: str, criterion: str) -> CriterionSettings | None:
        """Return the settings of a criterion that decides a case; ``None`` where it does not."""
        return self.config.criteria_of(eval_id).get(criterion)

    @property
    def criteria(self) -> tuple[str, ...]:
        """The names of all criteria that have results: in the order of the config, then those that are information."""
        results = (result for runs in self.cases.values() for case in runs.values() for result in case.results)
        found = dict.fromkeys(result.criterion for result in results)
        configured = dict.fromkeys(name for criteria in (self.config.criteria, *self.config.case_criteria.values()) for name in criteria)
        return (*(name for name in configured if name in found), *(name for name in found if name not in configured))


def by_case(cases: Iterable[CaseResult]) -> dict[str, dict[int, CaseResult]]:
    """Return results by eval id and run index."""
    found: dict[str, dict[int, CaseResult]] = {}
    for case in cases:
        found.setdefault(case.eval_id, {})[case.run_index] = case
    return found


def votes_by_run(votes: Iterable[Vote]) -> dict[tuple[str, int], list[Vote]]:
    """Return votes by eval id and run index."""
    found: dict[tuple[str, int], list[Vote]] = {}
    for vote in votes:
        found.setdefault((vote.eval_id, vote.run_index), []).append(vote)
    return found


def side_of(report: Report, name: str) -> Side:
    """Return a report, logged or not, as one side of a comparison."""
    rows: dict[tuple[str, int], list[Row]] = {}
    for row in table_of(report.cases, report.criteria).records():
        rows.setdefault((row["eval_id"], row["run_index"]), []).append(row)
    return Side(
        name=name,
        run_id=report.run_id or "",
        eval_set=report.eval_set,
        digest=eval_set_digest(report.eval_set),
        config=report.config,
        num_runs=report.num_runs,
        cases=by_case(report.cases),
        rows=rows,
        votes=votes_by_run(vote for case in report.cases for result in case.results for vote in result.votes),
        facts=_facts(report),
    )


def _facts(report: Report) -> dict[str, str]:
    origin = report.origin
    found = {
        "Agent version": origin.agent_version if origin else "",
        "Agent": origin.agent if origin else "",
        "Judges": ", ".join(report.judging.models) if report.judging else "",
        "Simulated users": ", ".join(report.simulating.models) if report.simulating else "",
        "Baseline": report.baseline,
    }
    return {name: text for name, text in found.items() if text}


def eval_set_facts(side: Side) -> dict[str, str]:
    """Return what a side was evaluated on, and how often."""
    return {
        "Eval set": side.eval_set.eval_set_id,
        "Digest of the eval set": side.digest.removeprefix("sha256:")[:12],
        "Runs of each case": str(side.num_runs),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCost:
    """The accounts of a run's judges. Requests that failed leave no vote, so they are not among these."""

    answers: int
    """Those that were paid for in this run."""
    reused: int
    """Votes that were paid for earlier."""
    tokens: int
    """Input and output together, as far as the judges said."""
    votes: int
    """On every rubric and sentence, the reused ones included."""
    models: tuple[str, ...]


def judge_cost(side: Side) -> JudgeCost:
    """Return what the judges of a run took. An answer on several items is one, and its tokens stand with the first."""
    votes = [vote for found in side.votes.values() for vote in found]
    paid = [vote for vote in votes if not vote.reused]
    answers = {(vote.eval_id, vote.run_index, vote.invocation_index, vote.criterion, vote.vote_index) for vote in paid}
    counted = sum(vote.input_tokens is not None for vote in paid)
    return JudgeCost(
        answers=max(len(answers), counted),
        reused=len(votes) - len(paid),
        tokens=sum((vote.input_tokens or 0) + (vote.output_tokens or 0) for vote in paid),
        votes=len(votes),
        models=tuple(sorted({vote.model for vote in votes})),
    )
