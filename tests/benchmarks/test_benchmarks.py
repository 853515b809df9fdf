"""The benchmarks on tiny data: that they run, and that they would notice a wrong score."""

from __future__ import annotations

import http.client
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.agents.recordings import load_recording
from mlflow_adk_eval.criteria.text import sentences

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CASES, TURNS = 60, 5

Import = Callable[[str], ModuleType]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Return a function that imports a module of the benchmarks, which forgets it after the test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(BENCHMARKS)):
            del sys.modules[name]


@pytest.fixture
def folder(module: Import, tmp_path: Path) -> Path:
    made = tmp_path / f"n{CASES}x{TURNS}"
    made.mkdir()
    module("data").generate(made, CASES, TURNS)
    return made


def measure(folder: Path, *args: str, cases: int = CASES) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run the benchmarks on the data set in `folder`; return how that ended and the file of results."""
    command = [sys.executable, BENCHMARKS / "run.py", *args, "--rounds", "1", "--cases", str(cases), "--out", folder.parent / "results.md"]
    environment = {**os.environ, "BENCH_DATA": str(folder.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    return done, (folder.parent / "results.md").read_text("utf-8")


def row(markdown: str, start: str) -> list[str]:
    """Return the cells of the last row whose first cell begins with `start`."""
    return next(line for line in reversed(markdown.splitlines()) if line.startswith(f"| {start}")).strip("| ").split(" | ")


def test_what_a_vote_and_a_later_turn_read_was_read_before(module: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tiktoken", reason="the tokenizer comes with the extra litellm")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    found = module("tokens").measured()
    assert len(found) == 11
    assert {votes for _, votes, _ in found.values()} == {1.0}
    assert min(questions for _, _, questions in found.values()) > 0.6
    assert found["rubric_based_final_response_quality_v1"][0] < 1_100


@pytest.mark.slow
def test_our_scores_are_the_floors_and_the_truth(folder: Path) -> None:
    pytest.importorskip("msgspec", reason="the floor needs msgspec: uv sync --group bench")
    done, results = measure(folder, "w1", "--contenders", "ours,floor")
    assert done.returncode == 0, done.stderr
    assert row(results, "**mlflow_adk_eval**")[-2:] == ["all 600", "all 300"]
    assert row(results, "floor")[-2:] == ["reference", "all 300"]


@pytest.mark.slow
def test_a_score_that_is_not_the_truth_fails_the_command(folder: Path) -> None:
    truth = json.loads((folder / "truth.json").read_text())
    truth["case_00007"][3]["EXACT"] = 1 - truth["case_00007"][3]["EXACT"]
    (folder / "truth.json").write_text(json.dumps(truth))
    done, results = measure(folder, "w1", "--contenders", "ours")
    assert done.returncode == 1
    assert "WRONG: w1: **mlflow_adk_eval**: 1 differ of 300" in done.stderr
    assert row(results, "**mlflow_adk_eval**")[-1] == "1 differ of 300"


@pytest.mark.slow
def test_sections_that_were_not_measured_anew_are_kept(folder: Path) -> None:
    _, results = measure(folder, "import", "--contenders", "ours")
    again, both = measure(folder, "w1", "--contenders", "ours")
    assert again.returncode == 0, again.stderr
    assert results.partition("<!-- import -->")[2] == both.partition("<!-- import -->")[2]
    assert both.index("<!-- w1 -->") < both.index("<!-- import -->")


@pytest.mark.parametrize("match_type", ["EXACT", "IN_ORDER", "ANY_ORDER"])
def test_the_generator_knows_the_truth_for_each_way_of_matching(folder: Path, match_type: str) -> None:
    truth = json.loads((folder / "truth.json").read_text())
    assert {turn["kind"] for case in truth.values() for turn in case} == {"equal", "extra", "swap", "extra_swap", "missing", "args", "name"}
    recorded = {eval_id: played[0].actual for eval_id, played in load_recording(folder / "actual.json").runs.items()}
    config = {"criteria": {"tool_trajectory_avg_score": {"threshold": 0.5, "match_type": match_type}}}
    cells = adk_eval.score(folder / "set.evalset.json", recorded, config).to_frame("invocations")
    cells = cells[cells.criterion == "tool_trajectory_avg_score"]
    assert list(cells.score) == [turn[match_type] for case in truth.values() for turn in case]


def test_data_are_the_same_each_time(module: Import, folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    module("data").generate(again, CASES, TURNS)
    for name in ("set.evalset.json", "actual.json", "truth.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_scores_are_compared_to_the_last_bit(module: Import) -> None:
    agreement = module("agreement")
    found = agreement.compare({"a": {"x": 0.1 + 0.2, "y": None}}, {"a": {"x": 0.3, "y": 1.0, "z": 0.0}})
    assert found == agreement.Agreement(cells=3, missing=2, different=1)
    assert str(found) == "1 differ, 2 missing of 3"


@pytest.mark.parametrize(("logs", "stored", "lost"), [("traces", {"assessments": 19}, 1), ("table", {"table_rows": 7}, 3)])
def test_what_mlflow_lost_is_counted(module: Import, logs: str, stored: dict[str, int], lost: int) -> None:
    assert module("workloads").Job("", "ours", cases=2, logs=logs).lost(stored) == lost


@pytest.mark.slow
def test_votes_are_neither_lost_nor_wrong_whatever_the_judge_does(folder: Path) -> None:
    pytest.importorskip("msgspec", reason="the floor needs msgspec: uv sync --group bench")
    pytest.importorskip("aiohttp", reason="the floor needs aiohttp: uv sync --group bench")
    done, results = measure(folder, "w5", "--contenders", "ours,floor", cases=4)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in results.splitlines() if line.startswith(("| **mlflow_adk_eval**", "| floor"))]
    assert [cells[-2:] for cells in rows] == [["0 of 4", "0 of 4"]] * 6 + [["0 of 8", "0 of 8"]] * 2


@pytest.mark.slow
def test_live_conversations_are_all_had_and_scored(folder: Path) -> None:
    pytest.importorskip("google.adk.workflow", reason="the agent runs on google-adk 2")
    pytest.importorskip("msgspec", reason="the floor needs msgspec: uv sync --group bench")
    done, results = measure(folder, "w8", "--contenders", "ours,floor", cases=2)
    assert done.returncode == 0, done.stderr
    lines = [line for line in results.splitlines() if line.startswith(("| **mlflow_adk_eval**", "| google-adk's"))]
    rows = [line.strip("| ").split(" | ") for line in lines]
    assert [cells[-4] for cells in rows[:6]] == ["12"] * 4 + ["24"] * 2, "two calls a turn"
    assert [cells[-2:] for cells in rows] == [["0 of 6", "0 of 6"]] * 4 + [["0 of 12", "0 of 12"]] * 6


@pytest.mark.parametrize(("side", "problems"), [("ours", ["x (y): 2 differ, 1 missing of 9"]), ("adk", [])])
def test_a_verdict_of_ours_that_is_lost_or_wrong_fails_the_command(module: Import, side: str, problems: list[str]) -> None:
    asked = module("judging").Judging(criterion="final_response_match_v2", in_flight=1)
    job = module("job").Job("x", side, group="y", judging=asked)
    assert module("run")._problems(job, [{"truth": module("agreement").Agreement(cells=9, missing=1, different=2)}]) == problems


@pytest.fixture
def judged(module: Import, tmp_path: Path) -> Path:
    made = tmp_path / "judged8x5"
    made.mkdir()
    module("data").generate(made, 8, TURNS, "judged")
    return made


def test_the_sentences_of_generated_answers_are_those_that_we_find(module: Import, judged: Path) -> None:
    answers = [
        turn["final_response"]["parts"][0]["text"]
        for case in json.loads((judged / "actual.json").read_text())
        for turn in case["invocations"]
    ]
    assert len(answers) == 40
    for answer in answers:
        assert sentences(answer) == module("truth").sentences(answer)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the imports of ADK's evaluation warn of many things that are not ours
@pytest.mark.parametrize("criterion", ["final_response_match_v2", "rubric_based_final_response_quality_v1", "hallucinations_v1"])
@pytest.mark.parametrize("side", [pytest.param("adk", marks=pytest.mark.slow), "ours"])
def test_google_adk_and_we_meet_the_same_truth(
    module: Import, judged: Path, criterion: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = 0.2 if criterion == "final_response_match_v2" else 0.0
    conditions = module("conditions").Conditions(latency_ms=0, noise=noise)
    asked = module("judging").Judging(criterion=criterion, in_flight=8, cases_at_once=8, conditions=conditions)
    contender = module(f"contenders.judged.{side}")
    with module("judge_process").judge_process() as judge:
        monkeypatch.setenv("GOOGLE_API_KEY", "none")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", judge.url)
        judge.configure(conditions)
        scores = module("measure_work").by_criterion(contender.judge(contender.load(judged), asked))
    found = module("agreement").compare(scores, module("agreement").judged_truth(judged, asked))
    assert (found.cells, found.missing, found.different) == (40, 0, 0)


QUESTION = json.dumps({"contents": [{"parts": [{"text": 'Ref ID: 0123abcd. "is_the_agent_response_valid": [valid or invalid]'}]}]})


@pytest.fixture
def judge(module: Import) -> Iterator[Callable[..., Any]]:
    """Return a function that starts to count anew under some conditions and returns the judge."""
    with module("judge_process").judge_process() as process:

        def under(**conditions: float) -> Any:
            process.configure(module("conditions").Conditions(latency_ms=1, **conditions))
            return process

        yield under


def ask(judge: Any, timeout_s: float = 10) -> tuple[int, dict[str, str], Any]:
    """Return status, headers and body of an answer."""
    connection = http.client.HTTPConnection(judge.url.removeprefix("http://"), timeout=timeout_s)
    try:
        connection.request("POST", "/v1beta/models/gemini-2.5-flash:generateContent", QUESTION)
        response = connection.getresponse()
        return response.status, dict(response.headers), json.loads(response.read())
    finally:
        connection.close()


def test_a_quota_says_when_to_come_back(judge: Callable[..., Any]) -> None:
    slow = judge(rpm=1, burst=1)
    assert ask(slow)[0] == 200
    status, headers, body = ask(slow)
    assert status == 429
    assert body["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert 55 < float(body["error"]["details"][0]["retryDelay"].removesuffix("s")) <= int(headers["Retry-After"]) <= 60
    stats = slow.stats()
    assert (stats["requests"], stats["ends"]) == (2, {"200": 1, "429": 1})


@pytest.mark.parametrize(("fault", "status"), [("internal", 500), ("unavailable", 503)])
def test_a_judge_can_be_unwell(judge: Callable[..., Any], fault: str, status: int) -> None:
    assert ask(judge(**{fault: 1.0}))[0] == status


@pytest.mark.parametrize("fault", ["reset", "cut"])
def test_a_connection_can_break(judge: Callable[..., Any], fault: str) -> None:
    broken = judge(**{fault: 1.0})
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        ask(broken)
    assert broken.stats()["ends"] == {fault: 1}


def test_who_does_not_wait_for_ever_is_no_longer_in_flight(judge: Callable[..., Any]) -> None:
    hanging = judge(hang=1.0)
    with pytest.raises(TimeoutError):
        ask(hanging, timeout_s=0.2)
    stats = hanging.stats()
    assert (stats["in_flight"], stats["peak_in_flight"], stats["ends"]) == (0, 1, {"left": 1})


def test_malformed_answers_do_not_say_the_truth(judge: Callable[..., Any]) -> None:
    def said(body: Any) -> str:
        return body["candidates"][0]["content"]["parts"][0]["text"]

    truth = said(ask(judge())[2])
    assert '"is_the_agent_response_valid": "' in truth
    careless = judge(malformed=1.0)
    answers = {said(ask(careless)[2]) for _ in range(20)}
    assert len(answers) > 1
    assert not any('"is_the_agent_response_valid": "valid"' in text or '_valid": "invalid"' in text for text in answers)


def test_a_question_that_the_judge_does_not_know_is_refused(judge: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "QUESTION", json.dumps({"contents": [{"parts": [{"text": "What is the time?"}]}]}))
    status, _, body = ask(judge())
    assert status == 400
    assert "What is the time?" in body["error"]["message"]


def test_luck_is_the_same_for_all_and_as_frequent_as_said(module: Import) -> None:
    conditions = module("conditions").Conditions(internal=0.1, hang=0.05, noise=0.2)
    ends = [conditions.fault(f"subject {number}", 0) for number in range(4000)]
    assert ends == [conditions.fault(f"subject {number}", 0) for number in range(4000)]
    assert 0.08 < ends.count("internal") / 4000 < 0.12
    assert 0.03 < ends.count("hang") / 4000 < 0.07
    assert set(ends) == {"", "internal", "hang"}
    wrong = sum(conditions.dissent.hits("subject", number) for number in range(4000))
    assert 0.17 < wrong / 4000 < 0.23


def test_a_cost_that_grew_by_more_than_a_tenth_is_named(module: Import) -> None:
    committed = {"load": {"calls": 10.0, "bytes": 1000}, "score": {"calls": 400.0, "bytes": 50}}
    found = {"load": {"calls": 11.0, "bytes": 1101}, "score": {"calls": 12.0, "bytes": 50}}
    assert module("cost").grown(found, committed) == ["load: 1,101 bytes a turn, more than a tenth above the committed 1,000"]


@pytest.mark.slow
def test_costs_are_the_same_each_time_and_a_lower_ceiling_fails(tmp_path: Path) -> None:
    def counted(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, BENCHMARKS / "cost.py", *args]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env={**os.environ, "COST_FILE": str(file)})

    file = tmp_path / "cost.json"
    assert counted("--renew").returncode == 0
    ((versions, costs),) = json.loads(file.read_text()).items()
    costs["score"]["calls"] *= 0.8
    file.write_text(json.dumps({versions: costs}))
    grown = counted()
    assert grown.returncode == 1
    assert [line.partition(": ")[2][:6] for line in grown.stderr.splitlines() if line.startswith("GROWN")] == ["score:"], grown.stderr
    assert "python benchmarks/cost.py --renew" in grown.stderr
    file.write_text(json.dumps({"Python 2.7": costs}))
    assert "costs are not compared: cost.json has those of Python 2.7" in counted().stdout


RESULTS = """<!-- {name} -->

|  | s (min–max) | CPU s | peak MB |
| :-- | --: | --: | --: |
| **mlflow_adk_eval** | 0.724 (0.722–0.746) | 0.724 | 398 |
| google-adk | not done after 120 s | – | 1,204 |

<sub>`python benchmarks/run.py {name}` {stamp}; rounds: 3.</sub>
"""


def test_the_page_quotes_the_results_and_names_their_commit(module: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = module("speed_table")
    rows = [
        speeds.Row("load", "w1", 0, "**mlflow_adk_eval**", "google-adk", ""),
        speeds.Row("peak", "w1", 0, "google-adk", "", "", "peak MB"),
    ]
    monkeypatch.setattr(speeds, "ROWS", rows)
    assert list(speeds.table(RESULTS.format(name="w1", stamp="at commit 1234abc, hot path 0123456789ab")))[2:] == [
        "| load | 0.72 s | not done after 120 s | – |",
        "| peak | 1.2 GB | – | – |",
        "",
        "Measured at commit 1234abc, medians of 3 rounds (w1).",
    ]


def test_the_page_says_in_how_many_rounds_its_numbers_were_measured(module: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = module("speed_table")
    monkeypatch.setattr(speeds, "ROWS", [speeds.Row("load", name, 0, "**mlflow_adk_eval**", "", "") for name in ("w1", "w5")])
    once = RESULTS.format(name="w1", stamp="at commit 1234abc, hot path 0123456789ab").replace("rounds: 3", "rounds: 1")
    peers = RESULTS.format(name="w5", stamp="").replace("|  |", "What takes them minutes is measured once.\n\n|  |", 1)
    assert " ".join(speeds.table(f"{once}\n{peers}")).endswith(
        "Measured at commit 1234abc, one round (w1); before results named their commit, medians of 3 rounds with one of the peers (w5)."
    )


def package(root: Path, **texts: str) -> Path:
    """Make a package of modules below `root`: its name with two underscores for each folder, and its text."""
    for name, text in texts.items():
        file = root / "mlflow_adk_eval" / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_results_are_stale_once_code_that_the_work_imports_differs(module: Import, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    speeds = module("speed_table")
    start = "from mlflow_adk_eval.criteria.words import count\nfrom mlflow_adk_eval.cli.run import main"
    package(tmp_path, runner__score=start, criteria__words="count = 1", criteria__other="", cli__run="main = 1")
    monkeypatch.setattr(speeds, "ROOT", tmp_path)
    monkeypatch.setattr(speeds, "_HOT", {"w1": ("runner.score",)})
    results = RESULTS.format(name="w1", stamp=speeds.stamp("w1"))
    package(tmp_path, criteria__other="count = 2", cli__run="main = 2", criteria__words='"""Words."""\n\n# in a text\ncount = 1  # each')
    assert speeds.stale(results) == [], "neither a comment nor a module that the work does not import makes a measurement stale"
    package(tmp_path, criteria__words="count = 2")
    assert speeds.stale(results) == ["w1"]


def test_a_package_that_outgrows_its_budget_is_refused(module: Import, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    house = module("house")
    (tmp_path / "house.json").write_text('{"lines of code": 3, "files": 2}')
    monkeypatch.setattr(house, "BUDGET", tmp_path / "house.json")
    most = module("journeys").BUDGETS["gate"]["functions"]
    monkeypatch.setattr(house, "figures_of_journeys", lambda root: {"gate": {"functions": most + 1, "files": 30}})
    package(tmp_path, a="x = 1\ny = 2\nz = 3\n", b="")
    assert house.outgrown(tmp_path) == [f"gate goes through {most + 1} functions; its budget in benchmarks/journeys.py is {most}"]
    monkeypatch.setattr(house, "figures_of_journeys", lambda root: {})
    package(
        tmp_path,
        b="class Cases:\n    total: int\n\ndef f(x):\n    return getattr(x, 'total', 0)\n",
        c="from mlflow_adk_eval import d",
        d="import mlflow_adk_eval.c",
    )
    assert house.outgrown(tmp_path) == [
        "lines of code: 9, but benchmarks/house.json allows 3",
        "files: 4, but benchmarks/house.json allows 2",
        "modules import one another in a circle of 2",
        "b.py:5 total is probed with getattr: declare it in a protocol",
    ]


def test_the_table_of_sizes_takes_new_rows_and_is_quoted(module: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale = module("scale")
    measured = scale.RESULTS.read_text("utf-8").partition("\n\n")[2].strip().splitlines()
    assert "\n".join(map(scale.narrow, measured)) in scale.QUOTED.read_text("utf-8")
    quoted = tmp_path / "docs.md"
    quoted.write_text("\n".join(("before", "", *map(scale.narrow, scale.HEAD), "", "after", "")), "utf-8")
    monkeypatch.setattr(scale, "RESULTS", tmp_path / "scale.md")
    monkeypatch.setattr(scale, "QUOTED", quoted)
    large = "| 10,000 | gate | 0.2 | 2.1 | 3 | 280 |  | b |"
    small = "| 1,000 | gate | 0.1 | 1.1 | 2 | 270 |  | a |"
    again = "| 10,000 | gate | 0.3 | 3.1 | 4 | 290 |  | c |"
    for line in (large, small, again):
        scale.write([line])
    table = "\n".join((*scale.HEAD, small, again))
    assert scale.RESULTS.read_text("utf-8").endswith(f"\n\n{table}\n")
    page = "| turns | what | CPU s | peak MB |\n|---|---|---|---|\n| 1,000 | gate | 1.1 | 270 |\n| 10,000 | gate | 3.1 | 290 |"
    assert quoted.read_text("utf-8") == f"before\n\n{page}\n\nafter\n"


def test_what_the_first_use_costs_is_told_step_by_step(module: Import) -> None:
    first_use = module("first_use")
    took = first_use.one_round()
    assert len(took) == len(first_use.STEPS)
    assert 0 < took[0] < took[1] < took[2]
