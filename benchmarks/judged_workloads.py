"""What is measured where a model judges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from conditions import Conditions
from job import OURS, TURNS, Job, Workload
from judging import Judging
from truth import FINAL_RESPONSE, HALLUCINATIONS, RUBRIC_BASED

_SIZES = (16, 64)
_TIMEOUT_S = 2.0
_ENDLESS_S = 120
"""How long to wait for who has no timeout."""

_FAILING = Conditions(internal=0.04, unavailable=0.04, reset=0.02, rpm=1200)
_BREAKING = Conditions(cut=0.02)
_HANGING = Conditions(hang=0.01)
_STORM = Conditions(internal=0.05, unavailable=0.03, reset=0.02, malformed=0.05, hang=0.02, rpm=9600)
"""16 requests in flight of 50 ms each are 320 a second, twice what this quota allows."""


def _ours(judging: Judging, extra: str = "") -> Job:
    return Job(f"{OURS}: {judging.in_flight} in flight{extra}", "ours", judging=judging)


def _floor(judging: Judging, extra: str = "") -> Job:
    return Job(f"floor: {judging.in_flight} in flight{extra}", "floor", judging=judging)


def _mlflow(judging: Judging) -> Job:
    return Job(f"MLflow: its ADK scorer in {judging.in_flight} threads", "mlflow_scorers", judging=judging)


def _adk(judging: Judging, cases_at_once: int) -> Job:
    setting = f"{cases_at_once} cases × {judging.in_flight // cases_at_once} in flight"
    return Job(f"google-adk: LocalEvalService, {setting}", "adk", judging=replace(judging, cases_at_once=cases_at_once))


def _adk_default(judging: Judging) -> Job:
    job = _adk(replace(judging, in_flight=4), 4)
    return replace(job, label=f"{job.label}, as it comes")


def _limited(jobs: Iterable[Job], *, rounds: int, limit_s: int = 1_800) -> list[Job]:
    return [replace(job, most_rounds=rounds, limit_s=limit_s) for job in jobs]


def _table(group: str, cases: int, *jobs: Job, turns: int = TURNS) -> list[Job]:
    """Return jobs as a table of their own, on so many cases."""
    return [replace(job, group=group, cases=cases, turns=turns) for job in jobs]


def _matching(cases: int) -> list[Job]:
    few, many = (Judging(criterion=FINAL_RESPONSE, in_flight=size) for size in _SIZES)
    peers = [_adk_default(few), _adk(few, 16), _adk(many, 16), _mlflow(few), _mlflow(many)]
    noisy = replace(few, conditions=Conditions(noise=0.1))
    return [
        *_table("A judge that is always right", cases, _ours(few), _ours(many), *peers, _floor(few), _floor(many)),
        *_table("A judge that is wrong in one vote of ten", cases, _ours(noisy), _adk(noisy, 16), _floor(noisy)),
    ]


def _quality(cases: int) -> list[Job]:
    few, many = (Judging(criterion=RUBRIC_BASED, in_flight=size) for size in _SIZES)
    peers = [_adk_default(few), _adk(few, 16), _adk(many, 16)]
    rubrics = _table(f"{RUBRIC_BASED}, five rubrics", cases, _ours(few), _ours(many), *peers, _floor(few), _floor(many))
    few, many, *ballots = (Judging(criterion=HALLUCINATIONS, in_flight=size, votes=votes) for votes in (1, 5) for size in _SIZES)
    ours = [*(_ours(judging, ", one vote") for judging in (few, many)), *(_ours(judging, ", five votes") for judging in ballots)]
    peers = [_adk_default(few), _adk(few, 16), _adk(many, 64), _mlflow(few), _mlflow(many)]
    floors = [*(_floor(judging, ", one vote") for judging in (few, many)), *(_floor(judging, ", five votes") for judging in ballots)]
    return [*rubrics, *_table(HALLUCINATIONS, cases, *ours, *peers, *floors)]


def _failing(cases: int) -> list[Job]:
    failing = Judging(criterion=FINAL_RESPONSE, in_flight=16, conditions=_FAILING)
    breaking = replace(failing, conditions=_BREAKING)
    hanging = replace(failing, conditions=_HANGING, timeout_s=_TIMEOUT_S)
    storm = replace(hanging, conditions=_STORM)
    slow = _limited([_adk_default(failing), _adk(failing, 16), _mlflow(failing)], rounds=1)
    endless = _limited([_adk(hanging, 16), _mlflow(hanging)], rounds=1, limit_s=_ENDLESS_S)
    quota = "1,200 requests a minute; 4 % status 500, 4 % status 503, 2 % broken connections"
    breaks = "2 % of the connections break within the answer"
    hangs = "1 % of the requests never end; this package and the floor send them again after two seconds"
    all_at_once = (
        "Storm: 10 % status 500, status 503 and broken connections, 5 % malformed answers, 2 % without end, "
        "and a quota of half of what is asked"
    )
    return [
        *_table(quota, cases, _ours(failing), *slow, _floor(failing), turns=1),
        *_table(breaks, cases, _ours(breaking), _adk(breaking, 16), _mlflow(breaking), _floor(breaking), turns=1),
        *_table(hangs, cases, _ours(hanging), *endless, _floor(hanging), turns=1),
        *_table(all_at_once, cases * 2, _ours(storm), _floor(storm), turns=1),
    ]


JUDGED = {
    "w3": Workload(
        "Judging {rows:,} invocations by five votes",
        "final_response_match_v2 on {cases:,} conversations of five turns, by a judge that answers within 50 ms.",
        _matching,
        40,
    ),
    "w4": Workload(
        "Judging {rows:,} invocations by rubrics, and their sentences",
        "The same judge. For sentences google-adk asks twice, and takes one vote however many are wanted. MLflow has no scorer for rubrics.",
        _quality,
        40,
    ),
    "w5": Workload(
        "Judging {rows:,} invocations by a judge that fails",
        "final_response_match_v2, five votes, on conversations of one turn. What google-adk could not judge is 0.0 to MLflow's scorers, "
        "which is wrong where the answer is right. What takes them minutes is measured once.",
        _failing,
        100,
        turns=1,
    ),
}
