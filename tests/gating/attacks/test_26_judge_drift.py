"""A judge behind HTTP becomes more lenient at run 6: what gate, compare and viewer say, and what helps who would hide it.

One store for all tests. Each decision reads it as it is then, so that tests that spoil it put it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.gating.drift import JudgeDrift, drift_of_listed, listed_runs
from mlflow_adk_eval.gating.registry import store_at
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.runs.anchors import Anchors, JudgeAnchors
from mlflow_adk_eval.runs.examined import ReadableRun, examine
from mlflow_adk_eval.testing import answer_for
from mlflow_adk_eval.tracking.client import open_store
from tests.mlflow_kit import copied
from tests.tracking.small import eval_set, turn

MATCH = "final_response_match_v2"
CONFIG = {"criteria": {MATCH: {"threshold": 0.5, "judge_model_options": {"num_samples": 1}}}, "anchors": 0.8}
SET = eval_set({f"case_{number:02}": [turn(f"question {number}", "good")] for number in range(24)})
RULES: dict[str, Any] = {"rules": {MATCH: {"min": 0.1, "max_drop": 0.3}}}


class Judge:
    """Passes half of all answers, and later all of them."""

    model, address, lenient = "gemini-2.5-flash", "gemini-2.5-flash at Google", False

    async def ask(self, request: Any) -> Any:
        poor = sha256(request.blocks["response"].encode()).digest()[0] % 2
        return answer_for(request, "invalid" if poor and not self.lenient else "valid")

    async def aclose(self) -> None:
        """Have nothing to give back."""


def first(text: str) -> str:
    return f"{text}, as the first version says"


def second(text: str) -> str:
    return f"{text}, as the second one says"


@dataclass(frozen=True)
class History:
    """The runs of a judge."""

    uri: str
    runs: tuple[str, ...]
    judge: Judge

    def gate(self, run: int, demands: dict[str, Any] | None = None, **options: Any) -> Decision:
        policy = RULES | {"baseline": {"run": self.runs[2]}} | (demands or {})
        return adk_eval.gate(self.runs[run], policy, tracking_uri=self.uri, raise_on_failure=False, **options)


@pytest.fixture(scope="module")
def history(template: Path, tmp_path_factory: pytest.TempPathFactory) -> History:
    folder, judge, runs = tmp_path_factory.mktemp("drift"), Judge(), list[str]()
    uri = copied(template, folder)
    open_store(folder, experiment="drift")
    for number in range(7):
        judge.lenient = number > 4
        agent = second if number > 3 else first
        options: dict[str, Any] = {"experiment": "drift", "tracking_uri": uri, "ledger": False, "traces": False}
        runs.append(adk_eval.evaluate(SET, agent, CONFIG, judge=judge, run_name=f"run {number + 1}", **options).run_id or "")
    return History(uri, tuple(runs), judge)


def test_without_a_demand_the_change_is_a_note(history: History) -> None:
    (told,) = (note for note in history.gate(6).notes if "became" in note)
    assert told.startswith("the judge gemini-2.5-flash became more lenient by 0.")
    assert told.endswith(f"with run {history.runs[5]}")
    assert history.gate(3, {"judge": {"max_drift": 0.05}}).reasons == history.gate(3).reasons, "both runs are from before the change"


def test_a_comparison_across_the_change_says_so(history: History) -> None:
    found = {one.about: one for one in adk_eval.compare(history.runs[2], history.runs[6], tracking_uri=history.uri).differences}
    told = found[f"Verdicts of {MATCH}"]
    assert told.before.startswith("before this change: the judge gemini-2.5-flash became more lenient by 0.")
    assert told.after.startswith("after this change: ")
    same = adk_eval.compare(history.runs[1], history.runs[2], tracking_uri=history.uri)
    assert not any(one.about.startswith("Verdicts") for one in same.differences)


def test_with_a_demand_nothing_is_compared_across_the_change(history: History) -> None:
    decision = history.gate(6, {"judge": {"max_drift": 0.05}})
    assert decision.verdict == "undecided"
    assert "has verdicts of final_response_match_v2 from the other side of a change: the judge gemini-2.5-flash" in decision.reasons[0]
    assert any("--reevaluate" in reason for reason in decision.reasons)
    again = adk_eval.make_reevaluator(eval_set=SET, config=CONFIG, judge=history.judge, ledger=False, tracking_uri=history.uri)
    fair = history.gate(6, {"judge": {"max_drift": 0.05}}, reevaluate=again)
    assert fair.passed, fair.reasons
    assert "evaluated again" in "; ".join(fair.reasons)


@contextmanager
def without(history: History, run: int) -> Iterator[None]:
    """Delete a run for a while."""
    client = MlflowClient(history.uri)
    client.delete_run(history.runs[run])
    yield
    client.restore_run(history.runs[run])


def test_a_run_that_was_deleted_leaves_a_gap(history: History) -> None:
    with without(history, 5):
        decision = history.gate(6, {"judge": {"max_drift": 0.05}})
    assert decision.verdict == "undecided"
    assert f"run {history.runs[6]} follows run {history.runs[5]}, which was deleted" in "; ".join(decision.reasons)


def with_own(history: History, edit: Callable[[JudgeAnchors], JudgeAnchors | None]) -> JudgeDrift:
    """Return what is known of the judge if the last run had written other anchors, with a parameter for them."""
    with store_at(history.uri) as store:
        run = examine(store.evidence(history.runs[6]))
        listed = listed_runs(store, store.experiment_of(history.runs[6]), store.clock())
        assert isinstance(run, ReadableRun)
        place = next(place for place, one in enumerate(listed) if one.run_id == history.runs[6])
        mine = listed[place]
        assert mine.anchors is not None
        judges = tuple(found for found in map(edit, mine.anchors.judges) if found)
        return drift_of_listed(store, run, [*listed[:place], replace(mine, anchors=Anchors(judges=judges))])


def each(**fields: Any) -> Callable[[JudgeAnchors], JudgeAnchors]:
    return lambda own: own.model_copy(update={"anchors": tuple(one.model_copy(update=fields) for one in own.anchors)})


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (each(), ""),
        (lambda _own: None, "leaves out the anchors of the judge gemini-2.5-flash, which its config asks for"),
        (
            lambda own: own.model_copy(update={"anchors": own.anchors[:3], "missing": ("overloaded",)}),
            "has only 3 of 19 anchors: overloaded",
        ),
        (each(asked_in="another"), "has 19 anchors for which another evaluation asked (another)"),
        (each(turn=7), "has other anchors of the judge gemini-2.5-flash than the hash of its id chooses"),
        (lambda own: own.model_copy(update={"previous": None}), "leaves out the anchors of the runs before it"),
        (
            lambda own: own.model_copy(update={"previous": own.previous.model_copy(update={"run_id": "0" * 32})}),
            f"follows run {'0' * 32}, which does not exist",
        ),
        (
            lambda own: own.model_copy(update={"previous": own.previous.model_copy(update={"evidence_sha256": "0" * 64})}),
            "whose evidence is another one now",
        ),
    ],
)
def test_anchors_that_were_arranged_are_named(edit: Any, problem: str, history: History) -> None:
    """Left out, made to fail, answered from the ledger, chosen, cut off."""
    found = with_own(history, edit).histories[MATCH].problems
    assert any(problem in one for one in found) if problem else not found, found


def test_a_file_that_was_edited_is_not_believed(history: History) -> None:
    with store_at(history.uri) as store:
        path = Path(store.client.get_run(history.runs[5]).info.artifact_uri.removeprefix("file://")) / "adk_eval" / "anchors.json"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"now": 1.0', b'"now": 0.0'))
    decision = history.gate(6, {"judge": {"max_drift": 0.05}})
    path.write_bytes(whole)
    assert decision.verdict == "undecided"
    assert f"run {history.runs[5]}: its anchors.json was changed after the run" in "; ".join(decision.reasons)
