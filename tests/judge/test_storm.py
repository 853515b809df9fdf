"""Judges that fail in every way at once: nothing is lost, nothing is wrong, and it ends."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter
from pathlib import Path

import pytest

import mlflow_adk_eval as adk_eval
from tests.cli.test_cli import invoke
from tests.judge.servers import HANG, RESET, Call, Handler, Reply, gemini_answer, gemini_error, judging, serving
from tests.kit import case_json, eval_set_json, turn_json

CASES, TURNS = 40, 5
CONFIG = {"criteria": {"final_response_match_v2": {"threshold": 1.0, "judge_model_options": {"num_samples": 5}}}}
MARK = re.compile(r"mark (\d+)")


def is_valid(mark: int) -> bool:
    return hashlib.sha256(f"truth {mark}".encode()).digest()[0] % 10 < 7


def conversations(count: int, turns: int, answer: str = "the answer with mark {}") -> adk_eval.EvalSet:
    def turn(mark: int) -> dict[str, object]:
        return turn_json(f"question {mark}", answer.format(mark))

    listed = (case_json(f"c{case}", *(turn(case * turns + n) for n in range(turns))) for case in range(count))
    return adk_eval.EvalSet.model_validate(eval_set_json(*listed, eval_set_id="storm"))


def truthfully(call: Call) -> str:
    return "valid" if is_valid(int(MARK.findall(call.text)[-1])) else "invalid"


class Storm:
    """A tenth of the calls ends in a 5xx or a reset, a twentieth in nonsense, a fiftieth hangs; beyond the quota there is a 429."""

    def __init__(self, per_second: float, burst: float) -> None:
        self.per_second, self.burst = per_second, burst
        self.tokens, self.at = burst, time.monotonic()
        self.sent: Counter[str] = Counter()
        self.answer = judging(truthfully, after_s=0.02)

    def __call__(self, call: Call) -> Reply:
        self.tokens = min(self.burst, self.tokens + (call.at - self.at) * self.per_second)
        self.at = call.at
        if self.tokens < 1:
            self.sent["429"] += 1
            wait = (1 - self.tokens) / self.per_second
            return gemini_error(429, "quota", retry_delay=f"{wait:.3f}s", retry_after="1")
        self.tokens -= 1
        luck = hashlib.sha256(f"luck {call.number}".encode()).digest()[0] / 256
        for share, name, reply in self.faults():
            if luck < share:
                self.sent[name] += 1
                return reply
            luck -= share
        self.sent["answer"] += 1
        return self.answer(call)

    @staticmethod
    def faults() -> list[tuple[float, str, Reply]]:
        return [
            (0.04, "500", gemini_error(500)),
            (0.03, "503", gemini_error(503)),
            (0.03, "reset", RESET),
            (0.05, "nonsense", gemini_answer('{"rationale": "cut o')),
            (0.02, "hang", HANG),
        ]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "a-key-for-tests")
    for name in ("GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
def test_in_a_storm_no_cell_is_lost_and_none_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    eval_set, storm = conversations(CASES, TURNS), Storm(per_second=150, burst=20)
    with serving(storm) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        options = adk_eval.JudgeOptions(max_concurrency=32, timeout_s=1.0)
        report = adk_eval.score(eval_set, eval_set, CONFIG, judge_options=options)
    found = report.to_frame("invocations")
    found = found[found.criterion == "final_response_match_v2"]
    assert list(found.status) == ["scored"] * CASES * TURNS
    assert list(found.score) == [float(is_valid(mark)) for mark in range(CASES * TURNS)]
    assert min(storm.sent[name] for name in ("429", "500", "503", "reset", "nonsense", "hang")) > 0
    assert report.judging is not None
    assert report.judging.calls == len(server.calls)
    assert report.judging.outage == ""
    votes = report.to_frame("votes")
    # Nonsense is retried within a vote, so hardly any vote failed; each that did says what was wrong.
    assert set(votes[votes.verdict.isna()].error) <= {""} | {error for error in votes.error if error}
    assert (votes.error == "").sum() >= 3 * CASES * TURNS


@pytest.mark.slow
@pytest.mark.parametrize(
    "handler", [lambda _call: gemini_error(503, "down"), lambda _call: RESET, lambda _call: HANG], ids=["503", "reset", "hang"]
)
def test_with_the_judge_down_the_run_ends_undecided_in_bounded_time(handler: Handler, monkeypatch: pytest.MonkeyPatch) -> None:
    eval_set, started = conversations(20, 5), time.monotonic()
    with serving(handler) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        options = adk_eval.JudgeOptions(timeout_s=0.5, outage_s=1.5)
        report = adk_eval.score(eval_set, eval_set, CONFIG, judge_options=options)
    assert time.monotonic() - started < 60
    assert report.verdict == "undecided"
    assert {reason.partition(": ")[2].partition(":")[0] for reason in report.reasons} == {"final_response_match_v2 was not evaluated"}
    assert report.judging is not None
    assert report.judging.outage


def test_a_judge_that_nobody_listens_for_is_an_outage_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:9")
    eval_set = conversations(2, 2)
    report = adk_eval.score(eval_set, eval_set, CONFIG, judge_options=adk_eval.JudgeOptions(outage_s=1.0))
    assert report.verdict == "undecided"
    assert report.judging is not None
    assert report.judging.outage


def test_without_permission_nobody_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    eval_set = conversations(10, 5)
    with serving(lambda _call: gemini_error(403, "API key not valid")) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        report = adk_eval.score(eval_set, eval_set, CONFIG)
    assert report.verdict == "undecided"
    assert "API key not valid" in report.reasons[0]
    assert len(server.calls) <= 64


def test_the_command_exits_with_3_when_the_judge_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eval_set = tmp_path / "set.evalset.json"
    eval_set.write_text(conversations(2, 2).model_dump_json(exclude_none=True), encoding="utf-8")
    (tmp_path / "test_config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    with serving(lambda _call: gemini_error(503, "down")) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        result = invoke("score", eval_set, "--actual", eval_set, "--judge-outage", 1)
    assert result.exit_code == 3
    assert "? a judge stopped responding: the judge returned only failures for" in " ".join(result.stdout.split())


def test_a_budget_ends_in_undecided_and_is_never_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    eval_set = conversations(10, 5)
    with serving(judging(lambda _call: "valid")) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        report = adk_eval.score(eval_set, eval_set, CONFIG, budget={"max_calls": 60})
    assert len(server.calls) == 60
    assert report.verdict == "undecided"
    assert report.judging is not None
    assert report.judging.outage == ""
    assert any("60" in reason for reason in report.reasons)
    found = report.to_frame("invocations")
    assert (found[found.criterion == "final_response_match_v2"].status == "scored").any()
