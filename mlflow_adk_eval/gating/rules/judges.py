"""How far the judges behind a decision are known: whether people's labels were ever held against them, when, and what came of it.

`judge_notes` says it in one line for each judged criterion, whatever the policy demands. `judge_problems` are the demands that are not met
(`judge: {calibrated: true, …}`, of all judges or of those behind a rule): then nothing that these judges said decides anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from mlflow_adk_eval.analysis.calibration.calibration import Labelled, calibration_problems
from mlflow_adk_eval.config.eval_config import judged_criteria
from mlflow_adk_eval.gating.calibration import CheckedCalibration, judge_keys
from mlflow_adk_eval.gating.drift import JudgeDrift
from mlflow_adk_eval.gating.policy.model import HostedModel, JudgeDemand, Policy, format_age
from mlflow_adk_eval.gating.rules.checks import format_exact, format_percent
from mlflow_adk_eval.gating.rules.measures import criteria_behind
from mlflow_adk_eval.judge.family import self_preference
from mlflow_adk_eval.judge.hosts import is_among, is_own_host
from mlflow_adk_eval.runs.examined import ReadableRun
from mlflow_adk_eval.runs.manifest import AGENT_MODELS, key_of_criterion
from mlflow_adk_eval.text import few

SKEW = timedelta(minutes=5)
"""How far the clock of a tracking server may be ahead."""
_NEVER = "was never calibrated against people's labels"
_OF_NO_VERDICT = ("cost", "judge_tokens", "judge_calls", "judge_flip_rate")
_MEASURES = {"min_kappa": "kappa", "min_sensitivity": "sensitivity", "min_specificity": "specificity"}
_WORDS = {"kappa": "κ"}
_ALIKE_FROM = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeTrust:
    """What a policy's calibration says of the judges of a run."""

    run: ReadableRun
    measured: CheckedCalibration | None
    now: datetime
    confidence: float
    drift: JudgeDrift | None = None
    """``None``: nobody looked."""
    ended: bool = True
    """Whether the run has ended: its judges judge earlier answers again at the end."""

    def judge_of(self, criterion: str) -> str:
        """Return how sentences call the judge of a criterion."""
        named = self.run.evidence.params.get(f"adk_eval.judge.{key_of_criterion(criterion)}", "")
        return f"{criterion}: the judge {named}" if named else f"{criterion}: its judge"

    def reused(self, criterion: str) -> tuple[int, int, str]:
        """Return how many votes a criterion has, how many of them another evaluation asked for, and a sentence on these."""
        found = Counter[str]()
        for (name, _, asked_in), count in self.run.vote_sources.items():
            if name == criterion:
                found[asked_in] += count
        votes, reused = found.total(), found.total() - found[""]
        others = ", ".join(few(filter(None, found), limit=3))
        return votes, reused, f"{reused:,} of {votes:,} votes of {criterion} were reused from evaluation {others}"

    def obstacle(self, criterion: str) -> str:
        """Return why nothing is known of the judge of a criterion; empty where something is."""
        measured = self.measured
        if measured is None:
            return "the policy names no calibration"
        if measured.problems:
            return measured.problems[0]
        params, config = self.run.evidence.params, self.run.report.config
        if problems := calibration_problems(measured.calibration, params, criterion, config, judge_keys(params, criterion)):
            return problems[0]
        return "" if self.found(criterion).labelled else f"the calibration has no labels for {criterion} as a whole"

    def found(self, criterion: str) -> Labelled:
        """Return what was measured, where there is no obstacle."""
        if self.measured is None:
            raise KeyError(criterion)
        return self.measured.calibration.criteria[criterion]

    def since_labels(self, criterion: str, least: float = 0.0) -> list[str]:
        """Return the changes of a judge after people labelled what it said, which may be as large as `least`, as sentences."""
        measured = self.measured
        if self.drift is None or measured is None or criterion not in measured.calibration.criteria:
            return []
        ended = [one.ended_at for one in measured.calibration.runs] + ([measured.since] if measured.since else [])
        labelled = [int(one.timestamp() * 1000) for one in ended]
        return self.drift.between(criterion, least, [*labelled, *self.drift.moments(self.run, criterion)])

    def line(self, criterion: str) -> str:
        """Return in one line whether, when and on how many labels the judge of a criterion was measured."""
        if obstacle := self.obstacle(criterion):
            return f"{self.judge_of(criterion)} {_NEVER}: {obstacle}"
        found, since = self.found(criterion), self.measured and self.measured.since
        numbers: list[str] = []
        for name in _MEASURES.values():
            value, interval = found.measure(name, self.confidence)
            bounds = f" [{interval[0]:z.2f}–{interval[1]:z.2f}]" if interval else ""
            numbers.append(f"{_WORDS.get(name, name)} {'unknown' if value is None else f'{value:.2f}{bounds}'}")
        when = f", given by {since:%Y-%m-%d}" if since else ""
        alike = f"; people agree with every verdict, even the {found.split} with split votes: were the labels copied from the judge?"
        copied = alike if found.split >= _ALIKE_FROM and found.agreement == 1 else ""
        changed = "".join(f"; since then, {change}" for change in self.since_labels(criterion))
        judge = self.judge_of(criterion)
        return f"{judge} was calibrated on {found.labelled} labelled verdicts{when}: {', '.join(numbers)}{copied}{changed}"

    def problems(self, demand: JudgeDemand | None, criterion: str) -> Iterator[str]:
        """Yield what is not met of what is demanded of the judge of a criterion, and of where its votes are from."""
        if demand is None:
            return
        votes, reused, reused_votes = self.reused(criterion)
        if demand.most_reused is not None and reused > demand.most_reused * votes:
            allowed = f"{format_percent(demand.most_reused)} of them" if demand.most_reused else "none"
            yield f"{reused_votes}, but the policy allows {allowed}: evaluate again with --ledger off"
        if demand.max_drift is not None and self.ended:
            yield from self._drifted(criterion, demand.max_drift)
        if demand.max_apart is not None and self.ended and self.drift is None:
            yield f"{self.judge_of(criterion)}: nobody looked when it was asked"
        if not demand.demands:
            return
        if obstacle := self.obstacle(criterion):
            yield f"{self.judge_of(criterion)} {_NEVER}: {obstacle}"
            return
        found, since = self.found(criterion), self.measured.since if self.measured else None
        if since is None:
            yield f"{self.judge_of(criterion)} {_NEVER}, as far as is known: the calibration's runs were not looked up"
            return
        if demand.labels is not None and found.labelled < demand.labels:
            yield f"{self.judge_of(criterion)} was calibrated on {found.labelled} labelled verdicts, but the policy requires {demand.labels}"
        if demand.max_age is not None:
            what = f"{self.judge_of(criterion)} was calibrated on verdicts of {since:%Y-%m-%d %H:%M} UTC"
            if since > self.now + SKEW:
                yield f"{what}, but it is only {self.now:%Y-%m-%d %H:%M} UTC now"
            elif self.now - since > demand.max_age:
                yield f"{what}, more than {format_age(demand.max_age)} before {self.now:%Y-%m-%d %H:%M} UTC"
            # Labels of a judge that changed are out of date at any age.
            yield from (f"{what}, and since then, {change}: calibrate it again" for change in self.since_labels(criterion))
        for bound, name in _MEASURES.items():
            if (least := getattr(demand, bound)) is not None:
                yield from self._too_low(criterion, name, least, bounds=demand.use == "ci_low")

    def _drifted(self, criterion: str, allowed: float) -> Iterator[str]:
        """Yield why a judge may not be the same for all votes of the run, and for the labels of the calibration."""
        history = self.drift.histories.get(criterion) if self.drift else None
        if self.drift is None or history is None:
            why = "its answers cannot be judged again" if self.drift else "nobody looked at its earlier runs"
            yield f"{self.judge_of(criterion)} may have changed: {why}"
            return
        yield from (f"{self.judge_of(criterion)} may have changed: {problem}" for problem in history.problems)
        moments = self.drift.moments(self.run, criterion)
        for change in self.drift.between(criterion, allowed, moments):
            yield f"{criterion}: {change}, and votes of the run are from before and after: evaluate again with --ledger off"
        for change in self.since_labels(criterion, allowed):
            yield f"{criterion}: {change}, and people labelled what it said before: calibrate on a run since then"

    def _too_low(self, criterion: str, name: str, least: float, *, bounds: bool) -> Iterator[str]:
        word, (value, interval) = _WORDS.get(name, name), self.found(criterion).measure(name, self.confidence)
        found = interval[0] if bounds and interval else value
        what = f"the lower bound of its {word} at {format_percent(self.confidence)}" if bounds else f"its {word}"
        if found is None:
            yield f"{self.judge_of(criterion)} has no {word}, because people labelled all verdicts passed or all failed; the policy requires at least {format_exact(least)}"
        elif found < least:
            yield f"{self.judge_of(criterion)} is not reliable enough: {what} is {found:.2f}, but the policy requires at least {format_exact(least)}"


def judge_notes(trust: JudgeTrust) -> list[str]:
    """Return in a line for each judged criterion how far its judge is known, and how many of its votes are from other evaluations; and whether it changed."""
    judged = judged_criteria(trust.run.report.config)
    found = [trust.reused(name) for name in judged]
    asked, agents = (trust.run.evidence.params.get(key, "").split(" | ") for key in ("adk_eval.judge_model", AGENT_MODELS))
    alike = self_preference(asked, agents) if judged else ""
    histories = dict.fromkeys(trust.drift.histories.values()) if trust.drift else ()
    drift = [line for one in histories if one.changes or one.anchors for line in (*one.lines(), *one.problems)]
    others = (told for _, reused, told in found if reused)
    return [*map(trust.line, judged), *others, *([alike] if alike else []), *drift]


def model_problems(models: Sequence[str | HostedModel], run: ReadableRun) -> Iterator[str]:
    """Yield who judged, or at which host, although a policy does not allow it."""
    judged, named = judged_criteria(run.report.config), run.evidence.params.get("adk_eval.judge_model")
    if not judged:
        return
    wanted = f"the policy allows only {', '.join(map(str, models))}"
    if named is None:
        yield f"the run has no parameter adk_eval.judge_model, so the judge of {', '.join(judged)} is unknown"
        return

    def names(one: str | HostedModel, name: str) -> bool:
        model, at, host = name.rpartition(" at ")
        if isinstance(one, str) or not at:  # a model without a host was reached at its provider's own; at which one, the votes say
            return name == one if isinstance(one, str) else name == one.model and is_own_host(name, one.host)
        return one.model == model and is_among(host, [one.host])

    def allows(one: str | HostedModel, host: str) -> bool:
        return is_own_host(one, host) if isinstance(one, str) else is_among(host, [one.host])

    for name in named.split(" | "):
        if not any(names(one, name) for one in models):
            yield f"{name} judged, but {wanted}"
    for host in dict.fromkeys(host for _, host, _ in run.vote_sources):
        if not any(allows(one, host) for one in models):
            criteria = dict.fromkeys(name for name, found, _ in run.vote_sources if found == host)
            yield f"votes of {', '.join(criteria)} came from {host or 'an unknown host'}, but {wanted}; a model without a host must use its provider's own"


def judged_behind(policy: Policy, trust: JudgeTrust) -> list[str]:
    """Return the judged criteria that a decision by a policy rests on."""
    judged, report = judged_criteria(trust.run.report.config), trust.run.report
    if not judged:
        return []
    measures = [measure for _, measure, _ in policy.all_rules() if measure not in _OF_NO_VERDICT and not measure.endswith("/flip_rate")]
    if policy.thresholds or policy.must_pass:
        measures.append("case_pass_rate")
    behind = {name for measure in measures for name in criteria_behind(measure, report)}
    return [name for name in judged if name in behind]


def judge_problems(policy: Policy, trust: JudgeTrust) -> list[str]:
    """Return what is not met of what a policy demands of every judge that its decision rests on."""
    return [problem for name in judged_behind(policy, trust) for problem in trust.problems(policy.judge, name)]


def judges_met(policy: Policy, trust: JudgeTrust) -> list[str]:
    """Return what a policy demands of judges, for the reasons of a pass; nothing where no judge took part."""
    if policy.judge is None or not judged_criteria(trust.run.report.config):
        return []
    reasons = [f"only {', '.join(map(str, policy.judge.models))} judged"] if policy.judge.models else []
    if judged_behind(policy, trust):
        reasons += ["every vote was asked for in this evaluation"] if policy.judge.most_reused == 0 else []
        reasons += ["the judges are calibrated on people's labels, as the policy demands"] if policy.judge.demands else []
    return reasons


def rule_problems(demand: JudgeDemand | None, measure: str, trust: JudgeTrust) -> Sequence[str]:
    """Return what is not met of what a rule demands of the judges behind its measure."""
    if demand is None or not (demand.demands or demand.most_reused is not None or demand.minds_time):
        return ()
    judged = judged_criteria(trust.run.report.config)
    behind = [name for name in criteria_behind(measure, trust.run.report) if name in judged]
    if not behind:
        return ["no judge decides it, so there is nothing to calibrate"]
    return [problem.removeprefix(f"{measure}: ") for name in behind for problem in trust.problems(demand, name)]
