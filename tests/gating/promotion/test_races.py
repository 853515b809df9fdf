"""Processes that promote versions of one model at the same time, while another one edits the registry and the evidence.

`MLFLOW_ADK_EVAL_RACES` says how many races there are on each store, `MLFLOW_ADK_EVAL_RACES_SEED` which ones.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.gating.policy.model import DEFAULT_POLICY
from mlflow_adk_eval.gating.promotion.aliases import audit_in
from mlflow_adk_eval.gating.promotion.promote import promote_in
from mlflow_adk_eval.gating.promotion.record import Target
from mlflow_adk_eval.gating.registry import MlflowStore
from tests.gating.gate_kit import Lab, evidence_of, report_of
from tests.gating.promotion.claim_kit import claim_log_of

pytestmark = pytest.mark.slow
WORKER = Path(__file__).parent / "race_worker.py"
RACES = {"sqlite": 20, "server": 8}
PROMOTERS = 4
MODEL_RACES = 10
"""After so many races another model is raced for."""
ALIAS_EDITS = ("alias moved", "alias deleted", "version deleted")
RUN_EDITS = ("run tag edited", "artifact overwritten", "metric edited")
GOOD, BAD = report_of(), report_of(wrong=["heating"])
Result = dict[str, Any]


class Team:
    """Processes that have imported MLflow and wait for tasks."""

    def __init__(self, uri: str) -> None:
        command = [sys.executable, str(WORKER), uri]
        quiet = {**os.environ, "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}
        self.workers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=quiet)
            for _ in range(PROMOTERS + 1)
        ]
        for worker in self.workers:
            self._answer(worker, "ready")

    @staticmethod
    def _answer(worker: subprocess.Popen[str], expected: str = "") -> str:
        assert worker.stdout is not None
        line = worker.stdout.readline().strip()
        assert line, "the worker died"
        assert not expected or line == expected
        return line

    def do(self, tasks: Sequence[Result]) -> list[Result]:
        """Give each task to a process, to begin at the same moment, and return what came of them."""
        at = time.monotonic() + 0.01
        for worker, task in zip(self.workers, tasks, strict=False):
            assert worker.stdin is not None
            worker.stdin.write(json.dumps(task | {"at": at + task.get("after", 0.0)}) + "\n")
            worker.stdin.flush()
        return [json.loads(self._answer(worker)) for worker, _ in zip(self.workers, tasks, strict=False)]

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.communicate()


@dataclass
class Course:
    """A registered model that is raced for, with candidates and what they have been through."""

    lab: Lab
    name: str
    runs: dict[str, str] = field(default_factory=dict)
    """The run of each version."""
    bad: set[str] = field(default_factory=set)
    spoilt: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    done: int = 0
    """How many claims there were before the race."""

    @staticmethod
    def build(lab: Lab, name: str) -> Course:
        course = Course(lab, name)
        for _ in range(5):
            course.enter(good=True)
        course.enter(good=False)
        store = MlflowStore(lab.uri, lab.uri)
        assert promote_in(store, Target(name=name, version="1", alias="champion"), course.runs["1"], DEFAULT_POLICY).passed
        course.done = 1
        return course

    def enter(self, *, good: bool) -> None:
        agent = self.lab.agent()
        version = self.lab.register(self.name, f"models:/{agent}")
        self.runs[version] = self.lab.log(evidence_of(GOOD if good else BAD, model_id=agent))
        if not good:
            self.bad.add(version)

    def refresh(self) -> None:
        """Replace what was deleted or spoilt."""
        for version in (self.gone | self.spoilt) & set(self.runs):
            del self.runs[version]
            self.enter(good=True)
        self.bad &= set(self.runs)


@dataclass
class Race:
    """Who promotes what, and what is edited meanwhile."""

    course: Course
    promoted: list[str]
    edit: tuple[str, str] | None

    @staticmethod
    def drawn(course: Course, luck: random.Random) -> Race:
        versions = sorted(course.runs, key=int)
        promoted = luck.choices(versions, k=1) if luck.random() < 0.15 else luck.sample(versions, luck.randint(2, PROMOTERS))
        promoted = promoted * 2 if len(promoted) == 1 else promoted
        kind = luck.choice((None, None, *ALIAS_EDITS, *RUN_EDITS))
        return Race(course, promoted, (kind, luck.choice(versions if kind == "alias moved" else promoted)) if kind else None)

    def tasks(self, luck: random.Random) -> list[Result]:
        task = {"name": self.course.name, "do": "promote"}
        found = [
            task | {"version": version, "run_id": self.course.runs[version], "seed": luck.random(), "after": luck.random() ** 2 * 0.2}
            for version in self.promoted
        ]
        if self.edit:
            kind, version = self.edit
            edit = {"do": "edit", "kind": kind, "version": version, "run_id": self.course.runs[version], "after": luck.random() * 0.5}
            found.append(task | edit)
        return found


WHY = {
    "claimed in the meantime": "overtaken",
    "is being set": "under way",
    "while the evidence was being read": "alias or version moved",
    "changed during the decision": "evidence changed",
    "but immediately moved": "moved at once",
    "does not exist": "version gone",
    "below the threshold": "bad agent",
    "was changed after the run": "spoilt before",
    "the logged metric": "spoilt before",
    "the run's tag": "spoilt before",
}


def why(result: Result) -> str:
    """Return in two words why a promotion was refused."""
    return next((short for long, short in WHY.items() if long in result["reasons"][0]), result["reasons"][0])


def number_claimed(result: Result) -> str | None:
    """Return the number that a promoter tried to claim: it had decided to promote, by a claim log in which that was free."""
    return next((step.split()[2] for step, _ in result["times"] if step.startswith("before claim ") and step.count(".") == 0), None)


def moment(result: Result, step: str, *, last_before: float | None = None) -> float:
    """Return when a step was taken first, or for the last time before a moment."""
    times = [at for name, at in result["times"] if name == step and (last_before is None or at < last_before)]
    return times[0] if last_before is None else times[-1]


def check(race: Race, results: Sequence[Result], store: MlflowStore) -> None:
    """Check that nothing was promoted wrongly."""
    course, promoters = race.course, results[: len(race.promoted)]
    edited = results[len(race.promoted)] if race.edit and "began" in results[-1] else None
    for version, result in zip(race.promoted, promoters, strict=True):
        assert result["verdict"] in ("passed", "failed", "undecided", "busy"), result["reasons"]
        assert result["reasons"], "a verdict without a reason"
        if result["verdict"] == "passed":
            assert version not in course.bad | course.spoilt | course.gone
            if edited is not None and race.edit is not None:
                check_edit_was_late(result, edited, race.edit, version, previous(store, course.name, version))
    check_claim_log(race, promoters, store, by_hand=edited is not None and race.edit is not None and race.edit[0] in ALIAS_EDITS)
    check_holder(race, store, edited is not None)


def previous(store: MlflowStore, name: str, version: str) -> str | None:
    """Return the champion against which a version was promoted last."""
    return next(
        entry.claim.previous and entry.claim.previous.number
        for entry in reversed(claim_log_of(store, name).entries)
        if entry.claim.version.number == version and entry.state == "done"
    )


def check_edit_was_late(result: Result, edited: Result, edit: tuple[str, str], version: str, champion: str | None) -> None:
    """Check that what passed was not edited before it was looked at for the last time."""
    kind, edited_version = edit
    confirmed = next(at for step, at in result["times"] if step.startswith("before claim ") and step.endswith(".go"))
    if kind in RUN_EDITS and edited_version == version:
        assert edited["ended"] > moment(result, "before evidence", last_before=confirmed), f"passed, though {kind} before"
    if kind == "version deleted" and edited_version == version:
        assert edited["ended"] > moment(result, "before set_alias")
    if (kind == "alias moved" and edited_version != champion) or (kind == "alias deleted" and champion is not None):
        read, looked = moment(result, "after model"), moment(result, "before model", last_before=confirmed)
        assert not read < edited["began"] < edited["ended"] < looked, f"passed, though {kind} meanwhile"


def check_claim_log(race: Race, promoters: Sequence[Result], store: MlflowStore, *, by_hand: bool) -> None:
    """Check that each pass has one claim, and that no two were against one champion."""
    course = race.course
    claims = claim_log_of(store, course.name)
    assert not claims.skipped
    assert [entry.number for entry in claims.entries] == list(range(1, len(claims.entries) + 1))
    assert not any(entry.pending for entry in claims.entries), "a claim was not ended"
    moves = [entry.claim for entry in claims.entries if entry.state == "done"]
    new = moves[course.done :]
    passed = [version for version, result in zip(race.promoted, promoters, strict=True) if result["verdict"] == "passed"]
    assert sorted(claim.version.number for claim in new) == sorted(passed), "a pass without a claim, or a claim without a pass"
    if not by_hand:
        champions = [claim.previous for claim in new]
        assert champions[1:] == [claim.version for claim in new[:-1]], "two passes against one champion"
    course.done = len(moves)


def check_holder(race: Race, store: MlflowStore, edited: bool) -> None:
    """Check that the champion verifies, or that the audit says who it is and why it does not."""
    course = race.course
    (found,) = audit_in(store, course.name, "champion")
    holder = course.lab.alias(course.name)
    assert found.version == holder
    kind, version = race.edit or ("", "")
    if edited and kind in RUN_EDITS:
        course.spoilt.add(version)
    if edited and kind == "version deleted":
        course.gone.add(version)
    if found.valid:
        assert holder not in course.bad
        return
    assert found.reasons
    moves = [entry.claim.version.number for entry in claim_log_of(store, course.name).entries if entry.state == "done"]
    if holder is None:
        assert "no version holds it" in found.reasons[0]
    elif moves[-1] != holder:
        assert "moved by hand" in found.reasons[0], "a move by hand that the audit does not name"
    elif holder in course.gone:  # deleted in the moment that the alias was set, which MLflow does not prevent
        assert "was deleted" in found.reasons[0]
    else:
        assert holder in course.spoilt, f"a champion that does not verify: {found.reasons}"


@pytest.fixture(params=RACES)
def raced(request: pytest.FixtureRequest) -> tuple[str, Lab]:
    return request.param, request.getfixturevalue("served_lab" if request.param == "server" else "lab")


def test_concurrent_promotions_and_edits_never_promote_wrongly(raced: tuple[str, Lab]) -> None:
    way, lab = raced
    count, seed = int(os.environ.get("MLFLOW_ADK_EVAL_RACES", RACES[way])), int(os.environ.get("MLFLOW_ADK_EVAL_RACES_SEED", "7"))
    luck, store, team = random.Random(seed), MlflowStore(lab.uri, lab.uri), Team(lab.uri)
    concurrent, verdicts, edits = 0, Counter[str](), Counter[str]()
    try:
        for number in range(count):
            if number % MODEL_RACES == 0:
                course = Course.build(lab, f"raced_{number}")
            course.refresh()
            race = Race.drawn(course, luck)
            results = team.do(race.tasks(luck))
            check(race, results, store)
            promoters = results[: len(race.promoted)]
            claims = Counter(claimed for result in promoters if (claimed := number_claimed(result)))
            overtaken = any(result["verdict"] != "passed" and why(result) == "overtaken" for result in promoters)
            concurrent += overtaken or max(claims.values(), default=0) > 1
            verdicts.update("passed" if result["verdict"] == "passed" else why(result) for result in promoters)
            edits.update([race.edit[0]] if race.edit else [])
    finally:
        team.close()
    print(  # noqa: T201 - how much of it was a race
        f"\n{way}: {count} races, {concurrent} of them with two or more who had decided to promote before one could; {dict(verdicts)}; {dict(edits)}"
    )
    assert concurrent > count / 4
