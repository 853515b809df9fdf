"""Cases that are read while they are evaluated: the same results as from memory, in order, and nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.agents.recordings import load_recording, recording_beside
from mlflow_adk_eval.errors import EvalSetError, UsageError
from mlflow_adk_eval.evalset.conversation import RecordedRun
from mlflow_adk_eval.evalset.conversion import write_cases
from mlflow_adk_eval.evalset.files import open_inputs
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, eval_set_digest
from mlflow_adk_eval.evalset.row_cases import CaseRow
from mlflow_adk_eval.evalset.rows import CasesInMemory, StreamedCases, open_cases, streamed
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.runner import evaluation as evaluation_module
from mlflow_adk_eval.runner.evaluation import CaseExecutor, Evaluation, InOrder, Options, wait
from mlflow_adk_eval.runs.stored_run import StoredRun
from mlflow_adk_eval.tracking.storable import StoreCleaner
from tests.kit import case_result
from tests.tracking.small import rooms, turn

CONFIG = {"criteria": {"tool_trajectory_avg_score": 1.0, "response_match_score": 0.6}}


def many(cases: int, num_runs: int = 1) -> CasesInMemory:
    """Return so many cases; every third is answered wrongly, in each run by other words."""
    written = [{"eval_id": f"case {number}", "conversation": [turn(f"question {number}", f"answer {number}")]} for number in range(cases)]
    eval_set = EvalSet.model_validate({"eval_set_id": "many", "eval_cases": written})
    runs = {
        case.eval_id: [
            RecordedRun.model_validate({
                "invocations": [turn(f"question {number}", f"nonsense in run {run}" if number % 3 == 0 else f"answer {number}")]
            })
            for run in range(num_runs)
        ]
        for number, case in enumerate(eval_set.eval_cases)
    }  # fmt: skip
    return CasesInMemory(eval_set, runs)


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
@pytest.mark.parametrize(("cases", "num_runs"), [(1, 1), (7, 2), (250, 1)])
def test_the_same_as_from_memory(tmp_path: Path, ending: str, cases: int, num_runs: int) -> None:
    source = many(cases, num_runs)
    file = tmp_path / f"many{ending}"
    write_cases(source, file)
    read = adk_eval.score(file, config=CONFIG)
    known = adk_eval.score(source.eval_set, load_recording(file), CONFIG)
    assert read.verdicts == known.verdicts
    assert "failed" in read.verdicts
    assert tuple(read.cases) == tuple(known.cases)
    assert (read.scores, read.reasons, read.num_runs) == (known.scores, known.reasons, num_runs)
    assert eval_set_digest(read.eval_set) == eval_set_digest(source.eval_set)


@pytest.mark.parametrize("recorded", ["object", "list"])
def test_cases_are_stored_as_they_were_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: str) -> None:
    monkeypatch.setattr(evaluation_module, "SMALL_TURNS", 0)  # so that two turns are many
    said = {
        "userContent": {"parts": [{"text": "hello"}], "role": None},
        "finalResponse": {"parts": [{"text": "my key is s3cret-42"}]},
        "intermediateData": {"toolUses": [{"name": "f", "args": {"b": [2**70, 1.0, None], "a": {}}}], "ours": 1},
    }
    case = {"evalId": "a", "conversation": [said], "note": "é\u2028"}
    short = {"eval_id": "b", "conversation": [said, said]}
    file = tmp_path / "two.jsonl"
    runs = {"invocations": [said], "sessionState": {"x": None}} if recorded == "object" else [said]
    file.write_text("\n".join(json.dumps({"eval_id": name, "case": one, "recorded": runs}) for name, one in (("a", case), ("b", short))))
    eval_set = streamed(open_cases(file))
    recording = recording_beside(eval_set, open_inputs(eval_set))
    assert recording
    evaluation = Evaluation(eval_set, adk_eval.load_config(CONFIG), CaseExecutor(recording, Options()))
    parts = evaluation.collector(StoreCleaner({"s3cret-42": "[KEY]"}))
    assert parts
    report = wait(lambda: evaluation.execute(collector=parts))
    (part,) = StoredRun(parts.files, parts.parts, "run")
    assert [json.loads(text) for text in part.documents] == [case, short]
    kept = {"invocations": [{**said, "finalResponse": {"parts": [{"text": "my key is [KEY]"}]}}]}
    kept |= {"sessionState": {"x": None}} if recorded == "object" else {}
    assert json.loads(part.recorded[0]) == kept
    assert "1 turn took place" in json.loads(part.recorded[1])["error"]  # so it is not as it was read
    first, second = report.cases
    assert first.actual[0].final_text == "my key is [KEY]"
    assert (first.actual[0].user_text, first.actual[0].tool_calls) == (second.actual[0].user_text, second.actual[0].tool_calls)
    assert first.session_state == ({"x": None} if recorded == "object" else None)
    assert not eval_set.eval_cases._texts  # type: ignore[attr-defined]


class Counted:
    """A source that counts how often it is gone through, and how many rows are read ahead of what was evaluated."""

    def __init__(self, inner: CasesInMemory) -> None:
        self.inner, self.passes, self.read = inner, 0, 0
        self.head = inner.eval_set.model_copy(update={"eval_cases": ()})

    def batches(self, size: int = 1) -> Iterator[Sequence[CaseRow]]:
        self.passes += 1
        for batch in self.inner.batches(min(size, 2)):
            self.read += len(batch)
            yield batch


async def collected(evaluation: Evaluation) -> Any:
    return await evaluation.execute(collector=evaluation.collector())


def test_the_source_is_gone_through_twice_and_nothing_stays() -> None:
    source: Any = Counted(many(30))
    eval_set = streamed(source)
    recording = recording_beside(eval_set, open_inputs(eval_set))
    assert recording
    before = source.passes
    assert before == 1  # a look at the first rows
    evaluation = Evaluation(eval_set, adk_eval.load_config(CONFIG), CaseExecutor(recording, Options()))
    report = anyio.run(collected, evaluation)
    assert source.passes == before + 2
    assert len(report.cases) == 30
    cases: Any = eval_set.eval_cases
    assert isinstance(cases, StreamedCases)
    assert not cases._waiting
    assert eval_set_digest(eval_set) == eval_set_digest(source.inner.eval_set)
    assert source.passes == before + 2  # the digest was taken on the way


def test_a_fault_at_the_end_is_found_before_anything_is_evaluated(tmp_path: Path) -> None:
    file = tmp_path / "many.jsonl"
    write_cases(many(20), file)
    lines = file.read_text("utf-8").splitlines()
    spoilt = json.loads(lines[-1])
    del spoilt["case"]["conversation"][0]["user_content"]
    file.write_text("\n".join((*lines[:-1], json.dumps(spoilt))), "utf-8")
    called: list[str] = []

    def agent(message: str) -> str:
        called.append(message)
        return message

    with pytest.raises(EvalSetError, match=r"(?s)many\.jsonl.*user_content") as error:
        adk_eval.evaluate(file, agent=agent, config=CONFIG, tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    assert "line 21" in str(error.value)
    assert not called


def test_where_nothing_is_recorded_an_agent_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "rooms.jsonl"
    write_cases(CasesInMemory(rooms()), file)
    with pytest.raises(UsageError, match="the rows contain no conversations"):
        adk_eval.score(file, config=CONFIG)
    assert adk_eval.score(file, rooms(), CONFIG).verdict == "passed"


def test_a_run_that_is_missing_is_an_error_of_its_case(tmp_path: Path) -> None:
    source = many(4, 2)
    runs = dict(source.runs or {})
    runs["case 1"] = runs["case 1"][:1]
    file = tmp_path / "many.parquet"
    write_cases(replace(source, runs=runs), file)
    report = adk_eval.score(file, config=CONFIG)
    assert [case.error for case in report.cases if case.error] == ["the recording does not contain run 2 of case 'case 1'"]


def test_cases_can_be_read_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "rooms.jsonl"
    write_cases(CasesInMemory(rooms()), file)
    eval_set = streamed(open_cases(file))
    assert [case.eval_id for case in eval_set.eval_cases] == ["light", "heat", "both"]
    assert eval_set.eval_cases[1].eval_id == "heat"
    assert eval_set.eval_cases[-1].eval_id == "both"
    assert [case.eval_id for case in eval_set.eval_cases[::2]] == ["light", "both"]
    with pytest.raises(IndexError):
        eval_set.eval_cases[3]
    assert eval_set.model_dump_json() == EvalSet.model_construct(eval_set_id="rooms", eval_cases=rooms().eval_cases).model_dump_json()


class Line:
    """A collector that notes the order."""

    def __init__(self) -> None:
        self.order: list[tuple[str, list[int]]] = []

    def add(self, case: EvalCase, runs: Sequence[CaseResult], /) -> None:
        self.order.append((case.eval_id, [run.run_index for run in runs]))

    def results(self, eval_set: EvalSet, /) -> tuple[EvalSet, Sequence[CaseResult]]:
        return eval_set, ()


def test_results_are_handed_on_in_order_and_a_slow_case_holds_back_those_far_ahead() -> None:
    cases = many(6).eval_set.eval_cases
    line = Line()
    order = InOrder(line, 2, ahead=3)

    def ended(number: int, run: int) -> None:
        result = case_result(eval_id=cases[number].eval_id, run_index=run, actual=(), expected=None, results=())
        order.ended(number, cases[number], result)

    async def main() -> None:
        for number, run in ((1, 1), (2, 0), (1, 0), (0, 1), (2, 1)):
            ended(number, run)
        assert line.order == []
        begun = anyio.Event()

        async def begin() -> None:
            await order.turn_of(3)
            begun.set()

        async with anyio.create_task_group() as group:
            group.start_soon(begin)
            await anyio.lowlevel.checkpoint()
            assert not begun.is_set()  # three cases ahead of the first
            ended(0, 0)
        assert begun.is_set()

    anyio.run(main)
    assert line.order == [("case 0", [0, 1]), ("case 1", [0, 1]), ("case 2", [0, 1])]
