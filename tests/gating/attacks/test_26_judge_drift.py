"""A judge behind HTTP becomes more lenient at run 6: what gate, compare and viewer say, and what helps who would hide it.

One store for all tests. Each decision reads it as it is then, so that tests that spoil it put it back.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.gating.drift import JudgeDrift, drift_of_listed, listed_runs
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.registry import store_at
from mlflow_adk_eval.gating.rules.comparable import Baseline
from mlflow_adk_eval.gating.rules.decide import decide
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.runs.anchors import Anchors, JudgeAnchors
from mlflow_adk_eval.runs.examined import ReadableRun, examine
from mlflow_adk_eval.tracking.client import open_store
from mlflow_adk_eval.viewer import store as viewed
from tests.judge.providers.gemini_kit import with_key
from tests.judge.servers import Call, judging, serving
from tests.mlflow_kit import copied
from tests.tracking.small import eval_set, turn
from tests.viewer.conftest import serving as viewing
from tests.viewer.test_browser import CHROMIUM, FLAGS, SIZE, check_with_axe, cut_off

MATCH = "final_response_match_v2"
CONFIG = {"criteria": {MATCH: {"threshold": 0.5, "judge_model_options": {"num_samples": 1}}}, "anchors": 0.8}
SET = eval_set({f"case_{number:02}": [turn(f"question {number}", "good")] for number in range(24)})
RULES: dict[str, Any] = {"rules": {MATCH: {"min": 0.1, "max_drop": 0.3}}}


class Lenience:
    """What the judge passes: half of all answers, and later all of them."""

    whole = False

    def __call__(self, call: Call) -> str:
        answer = re.findall(r"question \d+, as the \w+ \w+ says", call.text)[-1]
        return "valid" if self.whole or sha256(answer.encode()).digest()[0] % 2 == 0 else "invalid"


def first(text: str) -> str:
    return f"{text}, as the first version says"


def second(text: str) -> str:
    return f"{text}, as the second one says"


@dataclass(frozen=True)
class History:
    """The runs of a judge."""

    uri: str
    runs: tuple[str, ...]
    judge: str

    def gate(self, run: int, demands: dict[str, Any] | None = None, **options: Any) -> Decision:
        policy = RULES | {"baseline": {"run": self.runs[2]}} | (demands or {})
        return adk_eval.gate(self.runs[run], policy, tracking_uri=self.uri, raise_on_failure=False, **options)


@pytest.fixture(scope="module")
def history(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    folder, lenience, runs = tmp_path_factory.mktemp("drift"), Lenience(), list[str]()
    uri = copied(template, folder)
    open_store(folder, experiment="drift")
    with serving(judging(lenience)) as server, pytest.MonkeyPatch.context() as patch:
        with_key(patch, server.url)
        for number in range(7):
            lenience.whole = number > 4
            agent = second if number > 3 else first
            options: dict[str, Any] = {"experiment": "drift", "tracking_uri": uri, "ledger": False, "traces": False}
            runs.append(adk_eval.evaluate(SET, agent, CONFIG, run_name=f"run {number + 1}", **options).run_id or "")
        yield History(uri, tuple(runs), f"gemini-test-001 at {server.url.removeprefix('http://')}")


def test_without_a_demand_the_change_is_a_note(history: History) -> None:
    (told,) = (note for note in history.gate(6).notes if "became" in note)
    assert told.startswith(f"the judge {history.judge} became more lenient by 0.")
    assert told.endswith(f"with run {history.runs[5]}")
    assert history.gate(3, {"judge": {"max_drift": 0.05}}).reasons == history.gate(3).reasons, "both runs are from before the change"


def test_a_comparison_across_the_change_says_so(history: History) -> None:
    found = {one.about: one for one in adk_eval.compare(history.runs[2], history.runs[6], tracking_uri=history.uri).differences}
    told = found[f"Verdicts of {MATCH}"]
    assert told.before.startswith(f"before this change: the judge {history.judge} became more lenient by 0.")
    assert told.after.startswith("after this change: ")
    same = adk_eval.compare(history.runs[1], history.runs[2], tracking_uri=history.uri)
    assert not any(one.about.startswith("Verdicts") for one in same.differences)


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; on Debian: apt-get install chromium")
def test_the_viewer_marks_the_runs_before_and_after_the_change(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    from playwright.sync_api import sync_playwright

    became = re.compile(rf"The judge {re.escape(history.judge)} became more lenient by about 0\.\d+ since run 6\. Scores before")
    names = {f"run {number}": run_id for number, run_id in enumerate(history.runs, 1)}
    with viewing(history.uri, names) as view, sync_playwright() as playwright:
        page: Any = (
            playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS).new_context(viewport=SIZE, base_url=view.url).new_page()
        )
        monkeypatch.setattr(viewed, "_READ_ANCHORS_S", -1.0)
        page.goto("/")
        assert page.get_by_text("It is not known yet whether a judge changed").is_visible()
        monkeypatch.undo()
        page.reload()
        marked = page.locator("tr[data-row]").filter(has_text="judge more lenient by about 0.")
        assert marked.locator("a.whole").all_text_contents() == ["run 6"]
        for run, side in ((3, "before"), (6, "after")):
            page.goto(f"/runs/{history.runs[run - 1]}")
            told = page.locator("header .judge-changed").text_content()
            assert became.match(told), told
            assert told.endswith(f"As far as can be estimated, this run came {side} the change.")
        page.goto(f"/compare?run={history.runs[2]}&run={history.runs[6]}")
        assert page.get_by_text(f"before this change: the judge {history.judge} became").first.is_visible()
        page.goto("/trend")
        assert became.match(page.locator(".judge-changed").text_content())
        charts = page.locator("svg.trend")
        for place in range(charts.count()):  # the cases passed and the criterion, both of the judge
            line, points = charts.nth(place).locator("line.changed"), charts.nth(place).locator("circle")
            at, xs = float(line.get_attribute("x1")), [float(points.nth(number).get_attribute("cx")) for number in range(7)]
            assert xs[4] < at < xs[5]
            assert "judge more lenient by about 0." in charts.nth(place).text_content()
        assert charts.count() == 2
        assert cut_off(page) == check_with_axe(page, SIZE["width"]) == []


def test_with_a_demand_nothing_is_compared_across_the_change(history: History) -> None:
    decision = history.gate(6, {"judge": {"max_drift": 0.05}})
    assert decision.verdict == "undecided"
    assert f"has verdicts of final_response_match_v2 from the other side of a change: the judge {history.judge}" in decision.reasons[0]
    assert any("--reevaluate" in reason for reason in decision.reasons)
    again = adk_eval.make_reevaluator(eval_set=SET, config=CONFIG, ledger=False, tracking_uri=history.uri)
    fair = history.gate(6, {"judge": {"max_drift": 0.05}}, reevaluate=again)
    assert fair.passed, fair.reasons
    assert "evaluated again" in "; ".join(fair.reasons)


@contextmanager
def begun_earlier(history: History, run: int, hours: int) -> Iterator[None]:
    """Let a run have begun some hours earlier for a while."""

    def move(by: int) -> None:
        with closing(sqlite3.connect(history.uri.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute("UPDATE runs SET start_time = start_time + ? WHERE run_uuid = ?", (by * 3_600_000, history.runs[run]))

    move(-hours)
    yield
    move(hours)


def test_votes_that_were_asked_for_too_far_apart_are_not_compared(history: History) -> None:
    demand = {"judge": {"max_apart": "1h"}}
    assert history.gate(3, demand).reasons == history.gate(3).reasons
    again = adk_eval.make_reevaluator(eval_set=SET, config=CONFIG, ledger=False, tracking_uri=history.uri)
    with begun_earlier(history, 2, hours=3):
        far, fair = history.gate(6, demand), history.gate(6, demand, reevaluate=again)
        of_rule = history.gate(6, {"rules": {MATCH: {"max_drop": 0.3, "judge": {"max_apart": "2h"}}}})
    said = f"run {history.runs[2]} and the candidate have verdicts of {MATCH} that were asked for 3.0 h apart; the policy allows"
    assert (far.verdict, of_rule.verdict) == ("undecided", "undecided")
    assert f"{said} 1h: judge both again, with --ledger off" in far.reasons[0]
    assert f"{said} 2h" in of_rule.reasons[0]
    assert fair.passed, fair.reasons
    with begun_earlier(history, 6, hours=-9):  # the baseline would be judged long before the candidate
        assert "9.0 h apart" in history.gate(6, demand).reasons[0]


def test_nobody_passes_where_nobody_looked_when_the_judge_was_asked(history: History) -> None:
    with store_at(history.uri) as store:
        run, baseline = (examine(store.evidence(history.runs[number])) for number in (3, 2))
        now = store.clock()
    policy = load_policy(RULES | {"baseline": {"run": history.runs[2]}, "judge": {"max_apart": "1h"}})
    decision = decide(run, policy, now=now, baseline=Baseline(name="the baseline", run=baseline))
    assert f"{MATCH}: the judge {history.judge}: nobody looked when it was asked" in decision.reasons


def test_a_run_until_decided_goes_on_although_its_judge_is_looked_at_later(history: History) -> None:
    rule = {"min": 0.3, "use": "ci_low", "judge": {"max_drift": 0.05, "max_apart": "1h"}}
    options: dict[str, Any] = {"experiment": "until", "tracking_uri": history.uri, "ledger": False, "traces": False}
    report = adk_eval.evaluate(SET, second, CONFIG, policy={"rules": {MATCH: rule}}, until_decided=True, **options)
    assert report.until_decided is not None
    assert report.until_decided.stopped == "decided: every demand is met"


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
        (lambda _own: None, "leaves out the anchors of the judge {judge}, which its config asks for"),
        (
            lambda own: own.model_copy(update={"anchors": own.anchors[:3], "missing": ("overloaded",)}),
            "has only 3 of 19 anchors: overloaded",
        ),
        (each(asked_in="another"), "has 19 anchors for which another evaluation asked (another)"),
        (each(turn=7), "has other anchors of the judge {judge} than the hash of its id chooses"),
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
    assert any(problem.format(judge=history.judge) in one for one in found) if problem else not found, found


def test_a_file_that_was_edited_is_not_believed(history: History) -> None:
    with store_at(history.uri) as store:
        path = Path(store.client.get_run(history.runs[5]).info.artifact_uri.removeprefix("file://")) / "adk_eval" / "anchors.json"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"now": 1.0', b'"now": 0.0'))
    decision = history.gate(6, {"judge": {"max_drift": 0.05}})
    path.write_bytes(whole)
    assert decision.verdict == "undecided"
    assert f"run {history.runs[5]}: its anchors.json was changed after the run" in "; ".join(decision.reasons)
