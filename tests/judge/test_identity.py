"""Own servers through the whole package: kept answers belong to the weights that gave them, and one slot is enough."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from tests.judge.servers import Call, Handler, Reply, judging, serving

MODEL = "openai/local"


def model_server(weights: Callable[[], str], after_s: float = 0.0) -> Handler:
    """A server of one model, whose weights may change under its name."""
    good = judging(lambda call: "valid", after_s=after_s)

    def handler(call: Call) -> Reply:
        if call.method == "GET":
            return Reply(body={"data": [{"id": "local", "created": call.number, "meta": {"size": weights()}}]})
        return good(call)

    return handler


def turns(text: str, cases: int) -> dict[str, Any]:
    def said(role: str, words: str) -> dict[str, Any]:
        return {"role": role, "parts": [{"text": words}]}

    listed = [
        {
            "eval_id": f"case_{number}",
            "conversation": [{"user_content": said("user", "How much?"), "final_response": said("model", f"{number} {text}")}],
        }
        for number in range(cases)
    ]
    return {"eval_set_id": "s", "eval_cases": listed}


@pytest.fixture
def scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., adk_eval.Report]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def score(url: str, cases: int = 2, **settings: Any) -> adk_eval.Report:
        monkeypatch.setenv("OPENAI_API_BASE", f"{url}/v1")
        options = {"judge_model": MODEL, "num_samples": 1, "judge_model_config": settings}
        config = {"criteria": {"final_response_match_v2": {"threshold": 0.5, "judge_model_options": options}}}
        expected, actual = tmp_path / "expected.json", tmp_path / "actual.json"
        expected.write_text(json.dumps(turns("euros", cases)))
        actual.write_text(json.dumps(turns("EUR", cases)))
        return adk_eval.score(
            expected, actual, config, ledger=tmp_path / "ledger.sqlite", judge_options=adk_eval.JudgeOptions(timeout_s=60)
        )

    return score


def sent(report: adk_eval.Report) -> int:
    assert report.judging is not None
    return report.judging.calls


@pytest.mark.needs("litellm")
def test_other_weights_under_the_same_name_are_asked_anew_and_that_is_said(scored: Callable[..., adk_eval.Report]) -> None:
    weights = "first"
    with serving(model_server(lambda: weights)) as server:
        assert sent(scored(server.url)) == 2
        again = scored(server.url)
        assert (sent(again), again.notes) == (0, ())
        weights = "second"
        changed = scored(server.url)
        assert sent(changed) == 2
        (note,) = changed.notes
        assert note.startswith(f"{MODEL} at {server.url}/v1 serves a different model than when its answers were stored (fingerprint ")
        assert (sent(scored(server.url)), scored(server.url).notes) == (0, ())


@pytest.mark.needs("litellm")
def test_a_revision_takes_the_place_of_what_the_server_says(scored: Callable[..., adk_eval.Report]) -> None:
    with serving(model_server(lambda: "any")) as server:
        assert [sent(scored(server.url, revision=revision)) for revision in ("a", "a", "b")] == [2, 0, 2]
        assert all(call.method == "POST" for call in server.calls)


@pytest.mark.needs("litellm")
def test_a_server_with_one_slot_is_asked_for_one_answer_first(scored: Callable[..., adk_eval.Report]) -> None:
    with serving(model_server(lambda: "any", after_s=0.3)) as server:
        report = scored(server.url, cases=4)
        first, second, *_ = (call.at for call in server.calls if call.method == "POST")
    assert second - first >= 0.3
    assert report.judging is not None
    assert report.judging.failed_calls == 0
    assert report.scores["final_response_match_v2"] == 1
