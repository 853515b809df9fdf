"""Judges side by side: what is known of them is found again, on items, on labels, in Python and on the command line."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from mlflow_adk_eval.analysis.calibration.bench import BenchError, asked_with, contender_of, judged_names, load_items
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.judge.setup import Budget
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.testing import Request, answer_for
from mlflow_adk_eval.tracking.judge_bench import ANSWERS, RESULTS, JudgeBench, judge_bench
from tests.analysis.calibrated import CASES, CONFIG, EXPERIMENT, MATCH, deserves, evaluated, judge
from tests.cli.test_cli import invoke
from tests.judge.servers import Call, Server, gemini_answer, judging, serving
from tests.mlflow_kit import opened

JSON = dict[str, Any]
KNOWN = {"gemini-lenient": (0.95, 0.6), "gemini-strict": (0.7, 0.98)}
"""Sensitivity and specificity of two models."""
ITEMS: list[JSON] = [
    {
        "id": f"item_{number}",
        "criterion": MATCH,
        "label": "pass" if number % 2 else "fail",
        "kind": "even" if number % 4 < 2 else "odd",
        "question": f"What is number {number}?",
        "reference": f"Number {number} is right.",
        "response": f"Number {number} is {'right' if number % 2 else 'wrong'}.",
    }
    for number in range(240)
]


def decided(call: Call) -> str:
    """Err as often as the model is known to, and twice as the same answer is asked about."""
    number, word = re.findall(r"Number (\d+) is (right|wrong)\.", call.text)[-1]
    sensitivity, specificity = KNOWN[call.model]
    luck = random.Random(f"{call.model} {number}").random()
    passes = luck < sensitivity if word == "right" else luck >= specificity
    return "valid" if passes else "invalid"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(judging(decided)) as running:
        monkeypatch.setenv("GOOGLE_API_KEY", "a-key-for-tests")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", running.url)
        for name in ("GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"):
            monkeypatch.delenv(name, raising=False)
        yield running


@pytest.fixture(scope="module")
def store(template: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return opened(template, tmp_path_factory.mktemp("bench"), EXPERIMENT)


def tried(judges: list[Any], items: Any = None, **options: Any) -> JudgeBench:
    return judge_bench(judges, items, **{"experiment": None, "ledger": False, "votes": 1} | options)


def test_known_error_rates_are_recovered_within_their_intervals(server: Server) -> None:
    found = tried(list(KNOWN), ITEMS, confidence=0.99)
    for one in found.scores:
        sensitivity, specificity = KNOWN[one.judge]
        known = {
            "sensitivity": sensitivity,
            "specificity": specificity,
            "accuracy": (sensitivity + specificity) / 2,
            "kappa": sensitivity + specificity - 1,
        }
        for name, true in known.items():
            value, low, high = one.rates[name] or (0, 0, 0)
            assert low <= true <= high, (one.judge, name, value)
            assert high - low < 0.36
        assert (one.items, one.undecided, one.answers, one.unreadable, one.flip_rate) == (240, 0, 240, 0, None)
        assert (one.input_tokens, one.output_tokens) == (240 * 11, 240 * 7)
        assert sum(right for right, _ in one.by_kind.values()) == pytest.approx((one.rates["accuracy"] or (0,))[0] * 240)
    assert len(server.calls) == 480
    lenient, strict = found.scores
    assert (lenient.rates["specificity"] or (0,))[0] < (strict.rates["specificity"] or (0,))[0]


def test_flips_unreadable_answers_and_a_spent_budget_are_counted_and_nothing_is_guessed(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    def confused(call: Call) -> Any:
        number = int(re.findall(r"Number (\d+)", call.text)[-1])
        if number == 0:
            return gemini_answer("I would say it is fine")
        return judging(lambda _call: "valid" if len(server.calls) % 3 else "invalid")(call)

    server.handler = confused
    found = tried(["gemini-lenient"], ITEMS[:9], votes=3).scores[0]
    assert found.undecided == 1
    assert found.unreadable == found.answers - 8 * 3 > 0
    assert 0 < (found.flip_rate or 0) <= 1 / 3
    spent = tried(["gemini-lenient"], ITEMS[1:9], budget=Budget(max_calls=3)).scores[0]
    assert (spent.items, spent.undecided) == (8, 5)
    nothing = tried(["gemini-lenient"], ITEMS[:1]).scores[0]
    assert nothing.rates == {"accuracy": None, "kappa": None, "sensitivity": None, "specificity": None}


def test_a_panel_is_a_judge_like_any_other(server: Server) -> None:
    def just(request: Request) -> Any:
        return answer_for(request, "valid" if "right" in request.blocks["response"] else "invalid")

    panel, listed = tried(["gemini-lenient,gemini-strict", [*KNOWN, just]], ITEMS[:40], votes=3).scores
    assert (panel.judge, listed.judge) == ("gemini-lenient,gemini-strict", "gemini-lenient,gemini-strict,just")
    assert (panel.answers, listed.answers) == (40 * 4, 40 * 3)
    assert (listed.rates["accuracy"] or (0,))[0] > (panel.rates["accuracy"] or (0,))[0]
    assert len(server.calls) == 40 * 4 + 40 * 2


def test_answers_that_were_paid_for_are_not_paid_for_again(server: Server, tmp_path: Path) -> None:
    for _ in range(2):
        tried(["gemini-strict"], ITEMS[:10], ledger=tmp_path / "ledger.sqlite")
    assert len(server.calls) == 10
    tried(["gemini-strict?temperature=1"], ITEMS[:10], ledger=tmp_path / "ledger.sqlite")
    assert len(server.calls) == 20  # another setting, another judge


def test_the_items_that_ship_show_biases(server: Server) -> None:
    def by_length(request: Request) -> Any:
        """Pass what is long, and of rubrics only the first."""
        if "verdict" in request.schema["properties"]:
            return (
                answer_for(request, "valid" if len(request.blocks["response"]) > 150 else "invalid")
                if request.name == MATCH
                else answer_for(request, "safe")
            )
        names = request.schema["properties"]
        if request.name == "hallucinations_v1":
            return answer_for(request, "supported")
        material = str(request.blocks)
        return answer_for(request, {name: "yes" if name == "item_1" or "A7" in material else "no" for name in names})

    by_length.model = "by length"  # type: ignore[attr-defined]
    found = tried([by_length]).scores[0]
    assert found.items == len(load_items()[1]) >= 60
    assert set(found.by_criterion) <= set(judged_names())
    assert len(found.by_criterion) == 5
    assert found.length.pairs >= 7
    assert found.length.towards_pass == 3  # the longer answers about closing times and postage
    assert found.length.towards_fail == 0
    assert found.position.pairs == 5
    assert found.undecided == 0
    assert not server.calls


def test_the_items_that_ship_are_what_they_are_said_to_be() -> None:
    _, items = load_items()
    assert {"paraphrase", "wrong number", "wrong entity", "refusal", "injection", "negation", "longer", "reordered"} <= {
        one.kind for one in items
    }
    assert len({one.language for one in items}) >= 11
    for name in {one.criterion for one in items}:
        labels = [one.label for one in items if one.criterion == name]
        assert min(labels.count("pass"), labels.count("fail")) >= 3, name
    by_id = {one.id: one for one in items}
    for one in items:
        if one.differs == "length":
            assert len(one.response) > 1.3 * len(by_id[one.like or ""].response), one.id
        if one.differs == "position":
            assert one.rubrics == by_id[one.like or ""].rubrics[::-1], one.id


def test_a_bench_is_kept_as_a_run_with_a_table_of_the_answers(server: Server, store: str, tmp_path: Path) -> None:
    items = tmp_path / "items.jsonl"
    items.write_text("".join(json.dumps(item) + "\n" for item in ITEMS[:20]), encoding="utf-8")
    options = ("--items", items, "--votes", 1, "--tracking-uri", store, "--ledger", "off")
    result = invoke("judge-bench", *KNOWN, *options, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    client = MlflowClient(store)
    run = client.get_run(told["run_id"])
    assert run.data.params == {"items": str(items), "judge.0": "gemini-lenient", "judge.1": "gemini-strict"}
    assert run.data.metrics["judge.1/specificity"] == told["scores"][1]["rates"]["specificity"][0]
    table = json.loads(Path(client.download_artifacts(told["run_id"], ANSWERS, str(tmp_path))).read_text())
    assert len(table["data"]) == 40
    assert {"judge_name", "item", "truth", "judge", "right", "votes", "said"} <= set(table["columns"])
    assert json.loads(Path(client.download_artifacts(told["run_id"], RESULTS, str(tmp_path))).read_text()) == told
    text = invoke("judge-bench", *KNOWN, *options, "--no-log")
    assert text.exit_code == 0
    for shown in ("gemini-lenient", "gemini-strict", "κ", "specificity", "unreadable answers", "0 of 20", "even"):
        assert shown in text.stdout
    assert len(server.calls) == 80


def test_the_labels_of_a_calibration_try_other_judges_on_the_same_answers(store: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as within:
        within.setenv("MLFLOW_ADK_EVAL_LEDGER", "off")
        run: Report = evaluated(store, {"criteria": {MATCH: CONFIG["criteria"][MATCH]}})
    labels = [
        {"eval_id": eval_id, "invocation_index": index, "criterion": MATCH, "label": deserves(answer)}
        for eval_id, answers in CASES.items()
        for index, answer in enumerate(answers)
        if "down" not in answer
    ]

    def perfect(request: Request) -> Any:
        return answer_for(request, "valid" if deserves(request.blocks["response"]) else "invalid")

    found = judge_bench([judge, perfect], run=run.run_id, labels=labels, votes=1, experiment=None, ledger=False, tracking_uri=store)
    same, better = found.scores
    assert same.items == better.items == 19
    assert (same.rates["accuracy"] or (0,))[0] == pytest.approx(17 / 19)
    assert (better.rates["accuracy"] or (0,))[0] == 1
    table = tmp_path / "labels.csv"
    table.write_text(f"eval_id,invocation_index,criterion,label\nblind,1,{MATCH},fail\n", encoding="utf-8")
    result = invoke(
        "judge-bench",
        "tests.analysis.calibrated:judge",
        "--run",
        run.run_id,
        "--labels",
        table,
        "--tracking-uri",
        store,
        "--no-log",
        "--json",
        "--votes",
        1,
        "--ledger",
        "off",
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["scores"][0]["rates"]["accuracy"][0] == 0  # it is blind there


def test_settings_of_a_judge_reach_the_criteria() -> None:
    config = {"criteria": {MATCH: {"threshold": 0.5}}, "case_criteria": {"a": {MATCH: {"threshold": 0.5}}}}
    found = asked_with(config, contender_of("m?num_samples=5&temperature=0&early_stop=true", 3))
    settings = {"threshold": 0.5, "early_stop": True, "judge_model_options": {"num_samples": 5, "judge_model_config": {"temperature": 0}}}
    assert found == {"criteria": {MATCH: settings}, "case_criteria": {"a": {MATCH: settings}}}
    with pytest.raises(BenchError, match=r"found 'temperature'; wanted MODEL\?setting=value&setting=value"):
        contender_of("m?temperature", 3)


def test_a_function_by_name_takes_settings_too_and_variants_of_the_prompt_are_tried_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = "from mlflow_adk_eval.testing import ScriptedJudge\n" + "".join(f"{name} = ScriptedJudge('valid')\n" for name in "abc")
    (tmp_path / "scripted_for_bench.py").write_text(made, "utf-8")
    monkeypatch.chdir(tmp_path)
    given = ["scripted_for_bench:a", "scripted_for_bench:b?prompt=examples", "scripted_for_bench:c?prompt=listed"]
    found = judge_bench(given, votes=1, experiment=None)
    assert [score.judge for score in found.scores] == given
    import scripted_for_bench as asked

    # Of two equal questions the second is asked again, unless the first is still open: totals vary with the load.
    standard, examples = ({len(request.instructions + request.text) for request in judge.requests} for judge in (asked.a, asked.b))
    assert max(examples) > max(standard)
    assert min(examples) > min(standard)
    with pytest.raises(UsageError, match=f"prompt='listed' changes nothing in {MATCH}"):
        tried(["scripted_for_bench:c?prompt=listed"], ITEMS[:2])
    with pytest.raises(UsageError, match="judge=scripted_for_bench:d"):
        judge_bench(["scripted_for_bench:d?prompt=listed"], votes=1, experiment=None)


def test_items_that_cannot_be_used_are_named_all_at_once() -> None:
    spoilt: list[JSON] = [
        {**ITEMS[0], "criterion": "final_response_match_v3"},
        {**ITEMS[1], "label": "yes"},
        {**ITEMS[2], "respons": "x"},
        {**ITEMS[3], "rubrics": ["It is short."]},
        {**ITEMS[4], "like": "item_3", "differs": "length"},
        ITEMS[5],
        ITEMS[5],
    ]
    with pytest.raises(BenchError) as refusal:
        load_items(spoilt)
    said = "\n".join(map(str, refusal.value.problems))
    for part in (
        "$[0] $.criterion",
        "Did you mean 'final_response_match_v2'?",
        "$[1] $.label",
        "$[2] $",
        "$[3] $.rubrics: found rubrics; wanted none",
        "found like 'item_3' with another label",
        "the id 'item_5' twice",
    ):
        assert part in said, part


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"judges": []}, "at least one judge"),
        ({"judges": ["gemini-a", "gemini-a"]}, "gemini-a is repeated"),
        ({"judges": ["gemini-a"], "run": "r"}, "wanted items, or labels together with their run"),
        ({"judges": ["gemini-a"], "votes": 0}, "at least one vote"),
    ],
)
def test_a_wrong_call_is_one_error(arguments: JSON, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        judge_bench(**arguments, experiment=None)
