"""Anchors: what a run has its judge judge again, what that costs, and what can go wrong, on a real SQLite store."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow import MlflowClient

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.errors import InputError
from mlflow_adk_eval.gating.attestation import EVALUATION_PATH, attestation_problems
from mlflow_adk_eval.gating.drift import JudgedRun, history_of, listed_runs
from mlflow_adk_eval.gating.policy.model import AttestationPin
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.judge.setup import JudgeOptions
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.anchors import ANCHORS, Anchors, EarlierCell, JudgeAnchors, KnownJudge, cells_of, chosen, judges_of, read_anchors
from mlflow_adk_eval.runs.manifest import Evidence, integrity_problems
from mlflow_adk_eval.signing.keys import make_key
from mlflow_adk_eval.testing import answer_for
from tests.gating import gate_kit
from tests.mlflow_kit import opened
from tests.tracking import judged
from tests.tracking.small import eval_set, turn

MATCH, RUBRICS = judged.MATCH, judged.RUBRICS
SET = eval_set({f"case_{number:02}": [turn(f"question {number:02}", "good")] for number in range(50)})
CONFIG: dict[str, Any] = {"criteria": {MATCH: {"threshold": 0.5, "judge_model_options": {"num_samples": 3}}}}
CALLS = 100
"""Two votes on each of 50 answers agree, and the third is saved."""


@dataclass
class Script:
    """A judge with an address, so that the ledger keeps its answers."""

    name: str = "gemini-2.5-flash"
    lenient: bool = False
    healthy: int = 10_000
    """After so many calls it answers no more."""
    asked: list[str] = field(default_factory=list[str])

    @property
    def model(self) -> str:
        return self.name

    @property
    def address(self) -> str:
        return f"{self.name} at Google"

    async def ask(self, request: Any) -> Answer:
        self.asked.append(request.text)
        # Answers are told apart by how long they took.
        await anyio.sleep(60 if len(self.asked) > self.healthy else len(self.asked) / 1e5)
        good = self.lenient or "question 0" in request.text
        labels = [label for label in ("valid", "yes") if label in str(request.schema)] if good else []
        return answer_for(request, labels[0] if labels else "invalid" if "invalid" in str(request.schema) else "no")

    async def aclose(self) -> None:
        """Have nothing to give back."""


@dataclass(frozen=True)
class Lab:
    """A store with a ledger, in which each run of the agent has other answers."""

    uri: str
    folder: Path
    experiment: str = "drift"

    def run(self, judge: Any, answer: str = "good", config: Any = None, **options: Any) -> Report:
        where = {"tracking_uri": self.uri, "experiment": self.experiment, "ledger": self.folder / "ledger.sqlite", "traces": False}
        return adk_eval.evaluate(SET, lambda text: f"{answer}: {text}", config or CONFIG, judge=judge, **{**where, **options})

    def evidence(self, report: Report) -> Evidence:
        return MlflowStore(self.uri).evidence(str(report.run_id))

    def anchors(self, report: Report) -> JudgeAnchors:
        text = MlflowStore(self.uri).artifact(str(report.run_id), f"adk_eval/{ANCHORS}")
        (one,) = read_anchors(text or b"").judges
        return one


@dataclass(frozen=True)
class History:
    """Six runs, after the first of which people have labelled two answers. In the last one, the judge is more lenient."""

    lab: Lab
    public: Path
    judges: list[Script]
    runs: list[Report]


@pytest.fixture(scope="module")
def history(template: Path, tmp_path_factory: pytest.TempPathFactory) -> History:
    folder = tmp_path_factory.mktemp("anchors")
    lab, public = Lab(opened(template, folder, "drift"), folder), make_key(folder / "key.pem")
    judges, runs = [Script(lenient=number == 5) for number in range(6)], list[Report]()
    for number, judge in enumerate(judges):
        runs.append(lab.run(judge, f"answer {number}", signing_key=folder / "key.pem"))
        if number == 0:
            rows = [{"eval_id": eval_id, "run_index": "0", "criterion": MATCH, "label": "pass"} for eval_id in ("case_03", "case_33")]
            adk_eval.calibrate(runs[0], rows, log=True, tracking_uri=lab.uri)
    return History(lab, public, judges, runs)


@pytest.fixture
def lab(history: History) -> Lab:
    return history.lab


def test_six_runs_judge_earlier_answers_again_whatever_the_ledger_has_for_at_most_one_call_in_twenty(history: History) -> None:
    lab, judges, runs = history.lab, history.judges, history.runs
    found, evidence = [lab.anchors(run) for run in runs], [lab.evidence(run) for run in runs]
    first = found[0]
    assert (first.criteria, first.previous, first.planned, first.missing, first.anchors) == ((MATCH,), None, 0, (), ())
    assert [len(judge.asked) for judge in judges] == [CALLS, *[CALLS + CALLS // 20] * 5]
    assert [run.judging and run.judging.calls for run in runs] == [len(judge.asked) for judge in judges]
    for run, judge, own in zip(runs[1:], judges[1:], found[1:], strict=True):
        assert sum("answer 0" in text for text in judge.asked) == own.planned == len(own.anchors) == CALLS // 20  # which the ledger has
        assert run.judging is not None
        assert run.judging.reused == 0
    # The earliest run comes first, in it what people labelled, and nothing twice.
    cells = [anchor.cell for own in found for anchor in own.anchors]
    assert len(set(cells)) == len(cells) == 25
    assert {run_id for run_id, *_ in cells} == {runs[0].run_id}
    assert [(one.eval_id, one.labelled) for own in found[1:] for one in own.anchors][:2] == [
        (one.eval_id, True) for one in found[1].anchors[:2]
    ]
    assert {one.eval_id for own in found for one in own.anchors if one.labelled} == {"case_03", "case_33"}
    # What the judge says.
    assert {(one.votes_before, one.difference) for own in found[:5] for one in own.anchors} == {(2, 0.0)}
    assert {one.now for one in found[5].anchors} == {1.0}
    assert all(one.before == float(one.eval_id < "case_10") for own in found for one in own.anchors)
    # The evidence.
    for own, before, after in zip(found[1:], evidence, evidence[1:], strict=False):
        assert own.previous is not None
        assert (own.previous.run_id, own.previous.evidence_sha256) == (before.run_id, before.sha256)
        assert {one.asked_in for one in own.anchors} == {after.params["adk_eval.evaluation"]}
    pin = AttestationPin(keys=(history.public.read_text().strip(),), source="optional")
    last = evidence[5]
    assert attestation_problems(pin, last) == integrity_problems(last) == []
    forged = replace(last, artifacts={**last.artifacts, ANCHORS: Anchors(judges=(first,)).dumps()})
    assert integrity_problems(forged) == [f"the artifact adk_eval/{ANCHORS} was changed after the run"]
    # No result is another for it.
    assert [run.scores[MATCH] for run in runs] == [0.2] * 5 + [1.0]


@pytest.mark.parametrize(("number", "counting"), [(0, 0), (2, 20)], ids=["its answers", "its anchors"])
def test_a_run_without_the_attestation_that_a_policy_pins_is_named_and_does_not_count(number: int, counting: int, history: History) -> None:
    lab, judge, store = history.lab, "gemini-2.5-flash", MlflowStore(history.lab.uri)
    run_id, last, public = str(history.runs[number].run_id), lab.evidence(history.runs[5]), history.public.read_text().strip()
    pin, until = AttestationPin(keys=(public,)), datetime.fromtimestamp((last.start_time or 0) / 1000 + 0.001, UTC)

    def listed(demanded: AttestationPin | None) -> list[JudgedRun]:
        return listed_runs(store, store.experiment_of(last.run_id), until, demanded)

    assert [one.trouble for one in listed(pin)] == [""] * 6
    assert history_of(listed(pin), judge, pin) == history_of(listed(None), judge)
    signed = Path(str(MlflowClient(lab.uri).get_run(run_id).info.artifact_uri).removeprefix("file://")) / EVALUATION_PATH
    aside, found = signed.rename(signed.with_suffix(".aside")), listed(pin)
    policy = {"rules": {MATCH: {"min": 0.1}}, "judge": {"max_drift": 0.05}, "attestation": {"keys": [public]}}
    decision = adk_eval.gate(last.run_id, policy, tracking_uri=lab.uri, raise_on_failure=False)
    aside.rename(signed)
    assert [one.run_id for one in found if one.trouble] == [run_id]
    assert history_of(found, judge, pin).anchors == counting
    assert decision.verdict == "undecided"
    assert f"run {run_id} does not count: the run has no attestation" in "; ".join(decision.reasons)


def test_a_run_whose_answers_the_ledger_has_asks_nothing(lab: Lab) -> None:
    judge = Script()
    run = lab.run(judge, "answer 4")
    assert (judge.asked, lab.anchors(run).planned) == ([], 0)


def test_another_prompt_model_or_setting_is_another_judge(lab: Lab) -> None:
    options = CONFIG["criteria"][MATCH] | {"judge_model_options": {"num_samples": 3, "judge_model_config": {"temperature": 0.5}}}
    other = lab.anchors(lab.run(Script(), "other", {"criteria": {MATCH: options}}))
    assert other.judge.startswith("gemini-2.5-flash with settings ")
    assert (other.previous, other.planned) == (None, 0)
    asked_otherwise = lab.anchors(lab.run(Script(), "again", {"criteria": {MATCH: CONFIG["criteria"][MATCH] | {"prompt": "repeated"}}}))
    assert asked_otherwise.planned == 0
    assert asked_otherwise.previous is not None  # the same judge, which was asked nothing that could be compared
    config = CONFIG | {"anchors": 0}
    assert ANCHORS not in lab.evidence(lab.run(Script("another"), "none", config)).artifacts


def test_a_judge_that_fails_in_the_end_costs_nothing_but_the_anchors(lab: Lab) -> None:
    run = lab.run(Script(healthy=CALLS + 2), "late", judge_options=JudgeOptions(timeout_s=0.3))
    own = lab.anchors(run)
    assert run.scores[MATCH] == 0.2
    assert (own.planned, len(own.anchors)) == (5, 2)
    assert [reason.startswith("no answer within ") for reason in own.missing] == [True] * 3
    spent = lab.anchors(lab.run(Script(), "spent", budget={"max_calls": CALLS + 1}))
    assert len(spent.anchors) == 1
    assert all("the budget of 101 judge calls is used up" in reason for reason in spent.missing)


def test_a_resumed_run_asks_for_no_anchor_twice(lab: Lab) -> None:
    class Killed(Script):
        async def ask(self, request: Any) -> Answer:
            if len(self.asked) == CALLS + 3:
                await anyio.sleep(0.2)  # once the others are answered
                raise KeyboardInterrupt
            return await super().ask(request)

    with pytest.raises(KeyboardInterrupt):
        lab.run(Killed(), "resumed")
    judge = Script()
    run = lab.run(judge, "resumed", resume="latest")
    own = lab.anchors(run)
    assert len(own.anchors) == own.planned == 5
    assert len(judge.asked) <= 2
    assert {one.asked_in for one in own.anchors} == {lab.evidence(run).params["adk_eval.evaluation"]}


def test_a_run_that_was_changed_since_is_no_source_and_the_run_says_so(lab: Lab) -> None:
    lab = replace(lab, experiment="forged")
    run = lab.run(Script(), "before")
    votes = lab.evidence(run).artifacts["votes/part-00000.parquet"]
    client = MlflowClient(lab.uri)
    folder = Path(str(client.get_run(str(run.run_id)).info.artifact_uri).removeprefix("file://")) / "adk_eval"
    (folder / "votes/part-00000.parquet").write_bytes(votes + b" ")
    own = lab.anchors(lab.run(Script(), "after"))
    assert (own.planned, own.anchors) == (0, ())
    assert own.missing == (f"run {run.run_id}: the artifact adk_eval/votes/part-00000.parquet was changed after the run",)


def test_labels_of_a_sample_that_prefers_split_votes_have_no_part_in_the_choice(lab: Lab) -> None:
    lab = replace(lab, experiment="sampled")
    run = lab.run(Script(), "sampled")
    sheet = [{**row, "label": "pass"} for row in adk_eval.label_sheet(run, 20, tracking_uri=lab.uri)]
    adk_eval.calibrate(run, sheet, log=True, tracking_uri=lab.uri)
    assert [one.labelled for one in lab.anchors(lab.run(Script(), "after the sample")).anchors] == [False] * 5


def test_an_invented_run_cannot_spoil_another_one(lab: Lab) -> None:
    lab = replace(lab, experiment="invented")
    genuine = lab.evidence(lab.run(Script(), "genuine"))
    client = MlflowClient(lab.uri)
    home = client.get_experiment_by_name("invented").experiment_id
    client.delete_run(genuine.run_id)
    writer = gate_kit.Lab(client, lab.uri, home, lab.folder)
    ghosts = gate_kit.with_votes(
        genuine, lambda votes: [replace(vote, eval_id="ghost", invocation_index=at) for at, vote in enumerate(votes)]
    )
    writer.log(
        gate_kit.with_votes(ghosts, lambda votes: [replace(vote, value=math.nan) if at % 2 else vote for at, vote in enumerate(votes)])
    )
    run = lab.run(Script(), "after the invented one")
    own = lab.anchors(run)
    assert (run.scores[MATCH], own.anchors) == (0.2, ())
    assert len(own.missing) == own.planned > 0
    assert "cannot be read" in own.missing[0]


def test_a_panel_is_asked_who_voted_first_and_a_rubric_by_rubric(lab: Lab) -> None:
    lab = replace(lab, experiment="panel")
    rubrics = {"threshold": 0.5, "judge_model_options": {"num_samples": 1}, "rubrics": [judged.rubric("short"), judged.rubric("polite")]}
    config = {"criteria": {RUBRICS: rubrics}, "anchors": 0.5}
    panel = [Script("strict"), Script("lenient", lenient=True)]
    lab.run(panel, "panel", config)
    own = lab.anchors(lab.run(panel, "panel again", config, ledger=False))
    assert own.judge == "lenient | strict"
    assert {one.difference for one in own.anchors} == {0.0}
    assert {one.now for one in own.anchors} == {0.0, 1.0}
    assert {one.votes_before for one in own.anchors} == {1}


CELLS = st.lists(
    st.builds(
        EarlierCell,
        id=st.tuples(st.just("run"), st.sampled_from("abcdef"), st.integers(0, 2), st.integers(0, 1), st.sampled_from(["x", "y"])),
        before=st.fixed_dictionaries({}, optional={"r": st.just([0.0]) | st.just([1.0])}),
        calls=st.integers(1, 2),
        labelled=st.booleans(),
    ),
    unique_by=lambda cell: cell.id,
)


@given(CELLS, st.integers(0, 6), st.randoms())
def test_neither_verdicts_nor_the_order_of_a_file_have_a_part_in_the_choice(cells: list[EarlierCell], calls: int, chance: Any) -> None:
    taken = chosen([cells], "new", calls, ())
    assert sum(cell.calls for cell in taken) <= calls
    others = [replace(cell, before={"r": [chance.random()]}) for cell in cells]
    chance.shuffle(others)
    assert [cell.id for cell in chosen([others], "new", calls, ())] == [cell.id for cell in taken]
    assert not {cell.id for cell in chosen([cells], "new", calls, {cell.id for cell in taken})} & {cell.id for cell in taken}
    if cells and min(cell.calls for cell in cells) <= calls:
        assert taken


def test_the_choice_follows_from_the_new_runs_id_and_no_source_is_read_that_is_not_needed() -> None:
    cells = [EarlierCell(id=("old", f"case {number}", 0, 0, "x"), before={None: [1.0]}) for number in range(50)]
    assert chosen([cells], "one", 5, ()) != chosen([cells], "two", 5, ())
    read: list[int] = []

    def sources() -> Any:
        for number in range(9):
            read.append(number)
            yield cells[number : number + 1]

    assert chosen(sources(), "one", 2, ()) == cells[:2]
    assert read == [0, 1]
    assert len(chosen(sources(), "one", 9, ())) == 5


def test_votes_that_depend_on_others_and_answers_that_were_had_before_do_not_count() -> None:
    config = parse_config({"criteria": {MATCH: {"threshold": 0.5, "judge_model_options": {"num_samples": 3}}}}, "config")
    who = judges_of(config, {f"adk_eval.judge.{MATCH}": "m at h"})
    assert {name: known.judge for name, known in who.items()} == {MATCH: "m at h"}
    values = (1.0, 0.0, 0.0)
    votes = [judged.vote("light", 0, MATCH, number, "valid", value=value, latency_s=number) for number, value in enumerate(values)]
    (cell,) = cells_of("run", votes, config, who)
    assert cell.before == {None: [1.0, 0.0]}  # the third was asked for because the first two differ
    twin = [replace(vote, eval_id="heat", reused=True) for vote in votes]
    assert cells_of("run", [*twin, *votes], config, who) == [cell]  # the same answer of the judge
    assert cells_of("run", [replace(vote, asked_in="before") for vote in votes], config, who) == []
    assert cells_of("run", votes, config, {MATCH: KnownJudge("a | b", "q")})[0].before == {None: [1.0]}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"[]", "$: found"),
        (b'{"version": 2}', "$.version: found 2"),
        (b'{"version": 1, "judge": []}', "$.judge: found an unknown key"),
        (b'{"version": 1, "judges": [{"judge": "m", "criteria": [], "planned": -1}]}', "$.judges[0].planned: found -1"),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_place(text: bytes, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        read_anchors(text, "run 1, anchors.json")
    assert problem in str(caught.value)
    assert "run 1, anchors.json" in str(caught.value)
