"""The two runs of a comparison: what each holds, what they differ in besides their scores, and which of their cases can be compared.

A `ComparedRun` is all that a comparison reads of a run: eval set, config, results and votes. `compared_run`
makes one of any report; for a run in MLflow the tracking package adds what its parameters say. `differences_of` lists what is not the same
in both runs, agent first, since scores mean little if the judge or the config changed too. `pairing_of` names the cases to compare.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter

from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.config.spec import CriterionSettings
from mlflow_adk_eval.criteria.alignment import differences
from mlflow_adk_eval.evalset.models import EvalSet, SetDigest, canonical, canonical_json
from mlflow_adk_eval.results.outcomes import CaseResult, Verdict, Vote
from mlflow_adk_eval.results.report import ByCase, Cases, Report, criteria_of

_MOST_PLACES = 20
_ABSENT_MEANS = frozenset({"Judges", "Simulated users", "Baseline", "Recorded world"})
"""Facts that a run without them does not have; any other is unknown where it is missing."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """A run, as a comparison reads it."""

    name: str
    run_id: str = ""
    """The MLflow run; empty for a report that was not logged."""
    eval_set: EvalSet
    digest: str
    """Of the eval set."""
    copies: Mapping[str, str] = field(default_factory=dict[str, str])
    """The cases that are another one over again, by id, each with that one."""
    config: EvalConfig
    num_runs: int
    results: Cases = field(repr=False)
    """In the order of the eval set."""
    cases: Mapping[str, Mapping[int, CaseResult]]
    """The results by eval id and run index."""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the run says of its agent, its judges and its surroundings, by what it is called."""
    warnings: tuple[str, ...] = ()
    """Why the run is not one whose evaluation ended well."""

    def verdicts(self, eval_id: str) -> tuple[Verdict, ...]:
        """Return what a case came to, by run; a run without a result is undecided."""
        runs = self.cases.get(eval_id, {})
        count = max([self.num_runs, *(index + 1 for index in runs)])
        return tuple(runs[index].verdict if index in runs else "undecided" for index in range(count))

    def votes(self, eval_id: str, run_index: int) -> list[Vote]:
        """Return the votes on a run of a case."""
        case = self.cases.get(eval_id, {}).get(run_index)
        return [vote for result in case.results for vote in result.votes] if case else []

    def settings(self, eval_id: str, criterion: str) -> CriterionSettings | None:
        """Return the settings of a criterion that decides a case; ``None`` where it does not."""
        return self.config.criteria_of(eval_id).get(criterion)

    @property
    def criteria(self) -> tuple[str, ...]:
        """The names of all criteria that have results: in the order of the config, then those that are information."""
        return criteria_of(self.config, self.results)

    def judge_cost(self) -> JudgeCost:
        """Return what the judges of the run took. An answer on several items is one, and its tokens stand with the first."""
        answers = counted = reused = tokens = count = 0
        models: set[str] = set()
        for case in self.results:
            votes = [vote for result in case.results for vote in result.votes]
            paid = [vote for vote in votes if not vote.reused]
            answers += len({(vote.invocation_index, vote.criterion, vote.vote_index) for vote in paid})
            counted += sum(vote.input_tokens is not None for vote in paid)
            reused += len(votes) - len(paid)
            tokens += sum((vote.input_tokens or 0) + (vote.output_tokens or 0) for vote in paid)
            count += len(votes)
            models.update(vote.model for vote in votes)
        return JudgeCost(answers=max(answers, counted), reused=reused, tokens=tokens, votes=count, models=tuple(sorted(models)))


Sides = tuple[ComparedRun, ComparedRun]
"""The run before and the run after."""


def compared_run(report: Report, name: str, *, digest: str = "", copies: Mapping[str, str] | None = None) -> ComparedRun:
    """Return a report, logged or not, as one side of a comparison.

    Args:
        report: the report.
        name: what pages call the run.
        digest: that of its eval set, where it is known.
        copies: the cases that are another one over again, where they are known.
    """
    results = report.cases
    if not digest or copies is None:
        seen = SetDigest(report.config.surroundings_of, report.eval_set.eval_cases)
        digest, copies = seen.text, seen.copies
    facts = {
        "Agent version": report.origin.agent_version if report.origin else "",
        "Agent": report.origin.agent if report.origin else "",
        "Judges": ", ".join(report.judging.models) if report.judging else "",
        "Simulated users": ", ".join(report.simulating.models) if report.simulating else "",
        "Baseline": report.baseline,
        "Recorded world": report.world.digest if report.world else "",
    }
    return ComparedRun(
        name=name,
        run_id=report.run_id or "",
        eval_set=report.eval_set,
        digest=digest,
        copies=copies,
        config=report.config,
        num_runs=report.num_runs,
        results=results,
        cases=ByCase(map(itemgetter(0), results.keys()), lambda places: {one.run_index: one for one in map(results.at, places)}),
        facts={name: text for name, text in facts.items() if text},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something that is not the same in both runs."""

    about: str
    before: str
    """Empty: there is none."""
    after: str
    intended: bool = False
    """Whether comparing such runs is what a comparison is for: another agent."""


def differences_of(sides: Sides) -> Iterator[Difference]:
    """Yield what the runs differ in: the agent first, then what makes scores hard to compare."""
    before, after = (
        {
            **side.facts,
            "Eval set": side.eval_set.eval_set_id,
            "Digest of the eval set": side.digest.removeprefix("sha256:")[:12],
            "Runs of each case": str(side.num_runs),
        }
        for side in sides
    )
    for name in dict.fromkeys([*after, *before]):
        known = name in _ABSENT_MEANS or (name in before and name in after)
        if known and before.get(name, "") != after.get(name, ""):
            intended = name in {"Agent version", "Agent"}
            yield Difference(about=name, before=before.get(name, ""), after=after.get(name, ""), intended=intended)
    old, new = (canonical(side.config.to_json()) for side in sides)
    for place in islice(differences(new, old), _MOST_PLACES):
        yield Difference(about=f"Config {place.path}", before=place.expected, after=place.actual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Which cases can be compared."""

    paired: tuple[str, ...]
    """In the order of the second run's eval set."""
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    altered: tuple[str, ...]
    """Cases of both eval sets that are not the same case any more: other user turns or expectations."""


def pairing_of(sides: Sides) -> Pairing:
    """Return which cases both runs have results of, and are the same case in both."""
    before, after = (dict.fromkeys(name for name in side.eval_set.eval_ids if name in side.cases) for side in sides)
    both = [name for name in after if name in before]
    altered = set[str]()
    if sides[0].digest != sides[1].digest:
        common = before.keys() & after.keys()
        shared = ((case for case in side.eval_set.eval_cases if case.eval_id in common) for side in sides)
        old, new = ({case.eval_id: hashlib.sha256(canonical_json(canonical(case))).digest() for case in cases} for cases in shared)
        altered = {eval_id for eval_id in new if old[eval_id] != new[eval_id]}
    return Pairing(
        paired=tuple(name for name in both if name not in altered),
        only_before=tuple(name for name in before if name not in after),
        only_after=tuple(name for name in after if name not in before),
        altered=tuple(name for name in both if name in altered),
    )
