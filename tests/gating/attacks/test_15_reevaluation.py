"""Attack 15: have the champion evaluated again by a config that the candidate's own run holds, which names a host or code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.config.eval_config import load_config
from mlflow_adk_eval.evalset.files import dumps
from mlflow_adk_eval.evalset.models import EvalSet, eval_set_digest
from mlflow_adk_eval.gating.api import decided, gate
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.promotion.baseline_search import BaselineSearch
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.gating.rules.comparable import ReevaluationRequest
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.examined import examine
from mlflow_adk_eval.runs.manifest import Evidence
from mlflow_adk_eval.signing.keys import make_key
from tests.attackers_host import AttackersHost
from tests.cli.test_cli import invoke, written
from tests.gating.entrant import Entrant
from tests.gating.gate_kit import CONVERSATIONS, RESPONSE, TRAJECTORY, Lab, eval_set_of, evidence_of, turn
from tests.judge.servers import judging, serving
from tests.viewer.conftest import serving as viewing

pytestmark = pytest.mark.slow

MATCH, METRIC = "final_response_match_v2", "friendliness"
POLICY: dict[str, Any] = {"rules": {TRAJECTORY: {"max_drop": 0.1, "use": "mean"}}, "baseline": {"alias": "champion"}}
REWORDED: EvalSet = eval_set_of({**CONVERSATIONS, "heating": [("Make it warmer.", "It is one degree warmer.", "set_heating")]})
"""What the champion was asked, with another expectation: so that what it did can only be judged again."""
CRITERIA = {TRAJECTORY: 1.0, RESPONSE: 0.3}


def friendly(invocation: Any, expected: Any, metric: Any, scenario: Any) -> Any:
    return {"overall_score": 1.0}


def pinned(*, eval_set: EvalSet = REWORDED, config: Any) -> dict[str, Any]:
    return POLICY | {"eval_set": {"digest": eval_set_digest(eval_set)}, "config": {"digest": load_config(config).digest()}}


def with_host(url: str) -> dict[str, Any]:
    options = {"num_samples": 1, "judge_model_config": {"http_options": {"base_url": url}}}
    return {"criteria": {**CRITERIA, MATCH: {"threshold": 0.5, "judge_model_options": options}}}


def with_code(name: str) -> dict[str, Any]:
    return {"criteria": {**CRITERIA, METRIC: 0.5}, "custom_metrics": {METRIC: {"code_config": {"name": name}}}}


def evaluated(config: Any, *, wrong: str = "") -> Report:
    """Return a report by a harmless config that says that it was another one, as whoever may write to MLflow can."""
    played = {
        case.eval_id: [done.model_copy(update={"app_details": None}) for done in case.conversation or ()] for case in REWORDED.eval_cases
    }
    if wrong:
        played[wrong] = [turn(done.user_text, done.final_text, "other_tool") for done in played[wrong]]
    criteria: dict[str, Any] = {**CRITERIA}
    customs = {}
    for name in load_config(config).criteria:
        if name == MATCH:
            criteria[name] = {"threshold": 0.5, "judge_model_options": {"num_samples": 1}}
        elif name == METRIC:
            criteria[name], customs = 0.5, {METRIC: {"code_config": {"name": f"{__name__}.friendly"}}}
    harmless = {"criteria": criteria} | ({"custom_metrics": customs} if customs else {})
    report = adk_eval.score(REWORDED, played, harmless, lambda request: {"rationale": "fine", "verdict": "valid"}, ledger=False)
    return replace(report, config=load_config(config))


@dataclass
class Scene:
    """A champion, and a candidate on reworded cases that only a new evaluation makes comparable."""

    lab: Lab
    champion: Entrant
    candidate: Entrant

    def log(self, config: Any, change: Callable[[Evidence], Evidence] = lambda evidence: evidence, *, wrong: str = "") -> str:
        evidence = evidence_of(evaluated(config, wrong=wrong), model_id=self.candidate.model_id)
        self.candidate.run_id = self.lab.log(change(evidence))
        return self.candidate.run_id

    def gate(self, policy: Any = POLICY, again: Any = None, **options: Any) -> Decision:
        again = again or adk_eval.make_reevaluator(tracking_uri=self.lab.uri, ledger=False)
        how = {"model": self.champion.name, "tracking_uri": self.lab.uri, "raise_on_failure": False}
        return gate(self.candidate.run_id, policy, reevaluate=again, **how, **options)

    def promote(self, policy: Any = POLICY, again: Any = None) -> Decision:
        again = again or adk_eval.make_reevaluator(tracking_uri=self.lab.uri, ledger=False)
        return self.candidate.promote(policy=policy, reevaluate=again, raise_on_failure=False)


@pytest.fixture
def scene(lab: Lab, model: str) -> Iterator[Scene]:
    champion, candidate = (Entrant(lab, model) for _ in range(2))
    assert champion.promote().passed
    yield Scene(lab, champion, candidate)
    assert lab.alias(model) == champion.version


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("GOOGLE_GENAI_USE_VERTEXAI", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "AIza-of-who-promotes")
    return "AIza-of-who-promotes"


def told(decision: Decision) -> str:
    return "\n".join(decision.reasons)


@pytest.mark.parametrize("pins", [False, True], ids=["unpinned", "pinned"])
def test_no_request_goes_where_the_candidates_run_says(scene: Scene, attackers_host: AttackersHost, key: str, *, pins: bool) -> None:
    hostile = with_host(attackers_host.url)
    scene.log(hostile)
    policy = pinned(config=hostile) if pins else POLICY
    before = len(attackers_host.requests)
    for decision in (scene.gate(policy), scene.promote(policy)):
        assert len(attackers_host.requests) == before
        assert decision.verdict == "undecided"
        place = f"$.criteria.{MATCH}.judge_model_options.judge_model_config.http_options.base_url ({attackers_host.host})"
        assert (place if pins else "the eval set is known only from the candidate's run") in told(decision)


def test_a_model_whose_name_is_an_address_is_an_endpoint(scene: Scene, attackers_host: AttackersHost) -> None:
    named = {
        "criteria": {**CRITERIA, MATCH: {"threshold": 0.5, "judge_model_options": {"judge_model": f"huggingface/{attackers_host.url}"}}}
    }
    scene.log(named)
    assert f"judge_model ({attackers_host.host})" in told(scene.gate(pinned(config=named)))


@pytest.mark.parametrize("module", ["numpy.f2py.__main__", "this"])
def test_no_module_is_imported_because_the_candidates_run_names_it(scene: Scene, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setattr(sys, "argv", ["mlflow-adk-eval"])
    monkeypatch.delitem(sys.modules, module, raising=False)
    scene.log(with_code(f"{module}.main"))
    for decision in (scene.gate(), scene.promote()):
        assert decision.verdict == "undecided"
    assert module not in sys.modules


def test_code_that_the_policy_pins_may_end_itself_but_not_the_gate(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaves_at_import.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "leaves_later.py").write_text("def main(invocation, expected, metric, scenario):\n    raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("leaves_at_import", "leaves_later"):
        config = with_code(f"{module}.main")
        run_id = scene.log(config)
        rules = POLICY["rules"] | {METRIC: {"min": 0.2, "max_drop": 0.1, "range": [0, 1]}}
        policy = written(tmp_path / "gate.json", pinned(config=config) | {"rules": rules})
        options = ("--policy", policy, "--model", scene.champion.name, "--reevaluate", "--ledger", "off", "--tracking-uri", scene.lab.uri)
        result = invoke("gate", run_id, *options, "--json")
        assert result.exit_code == 2, (module, result.output)
        assert '"verdict": "undecided"' in result.stdout
        assert scene.promote(pinned(config=config) | {"rules": rules}).verdict == "undecided"


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit(None), BaseExceptionGroup("", [SystemExit(0)])])
def test_what_ends_a_process_ends_no_decision(scene: Scene, error: BaseException) -> None:
    def leave(request: ReevaluationRequest) -> str:
        raise error

    scene.log({"criteria": CRITERIA})
    for decision in (scene.gate(again=leave), scene.promote(again=leave)):
        assert decision.verdict == "undecided"
        assert f"it could not be evaluated again: {type(error).__name__}" in told(decision)


class Asked:
    """Counts how often the champion was to be evaluated again."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, request: ReevaluationRequest) -> str:
        self.times += 1
        raise AssertionError("a request of a candidate that cannot pass")


def untagged(evidence: Evidence) -> Evidence:
    return replace(evidence, tags={key: value for key, value in evidence.tags.items() if key != "adk_eval.verdict"})


DEMANDS: dict[str, dict[str, Any]] = {
    "another eval set": {"eval_set": {"digest": f"sha256:{'0' * 64}"}},
    "one of another name": {"eval_set": {"id": "another"}},
    "another config": {"config": {"digest": f"sha256:{'0' * 64}"}},
    "other thresholds": {"config": {"criteria": {TRAJECTORY: 0.9}}},
    "a younger run": {"max_age": "1m"},
    "more cases": {"min_cases": 20},
    "another judge": {"judge": {"models": ["gemini-2.5-pro"]}},
    "more cases of a rule": {"rules": {**POLICY["rules"], RESPONSE: {"min": 0.5, "min_cases": 20}}},
    "more cases to compare": {"rules": {TRAJECTORY: {"max_drop": 0.1, "use": "mean", "min_cases": 20}}},
    "other scores": {"rules": {**POLICY["rules"], RESPONSE: {"max": 0.5}}},
    "another case": {"must_pass": ["heating", "no_such_case"]},
}


def test_nothing_is_evaluated_again_for_a_candidate_that_cannot_pass(scene: Scene, tmp_path: Path) -> None:
    scene.log(with_host("https://judge.example.org"))
    scene.lab.execute("UPDATE runs SET end_time = end_time - 3600000 WHERE run_uuid = ?", scene.candidate.run_id)
    keys = {"attestation": {"keys": [make_key(tmp_path / "gate.pem").read_text()]}}
    asked = Asked()
    for name, demand in {**DEMANDS, "an attestation": keys}.items():
        for decide in (scene.gate, scene.promote):
            decision = decide(POLICY | demand, asked)
            assert not decision.passed
            assert "it was not evaluated again, because the run cannot pass anyway" in told(decision), name
    assert asked.times == 0


def test_nothing_is_evaluated_again_for_the_run_of_another_version_or_one_that_contradicts_itself(scene: Scene) -> None:
    scene.log({"criteria": CRITERIA})
    asked = Asked()
    assert "it was not evaluated again" in told(scene.gate(again=asked, agent_version=scene.champion.model_id))
    own, scene.candidate = scene.candidate, replace_version(scene)
    assert "it was not evaluated again" in told(scene.promote(again=asked))
    scene.candidate = own
    scene.log({"criteria": CRITERIA}, untagged)
    for decide in (scene.gate, scene.promote):
        assert "it was not evaluated again" in told(decide(again=asked))
    assert asked.times == 0


def replace_version(scene: Scene) -> Entrant:
    """Return another version with the run of the candidate."""
    other = Entrant(scene.lab, scene.champion.name)
    other.run_id = scene.candidate.run_id
    return other


def test_other_cases_or_settings_than_the_callers_are_named_by_their_digests(scene: Scene) -> None:
    scene.log({"criteria": CRITERIA})
    mine = eval_set_of()
    other_set = adk_eval.make_reevaluator(eval_set=mine, config={"criteria": CRITERIA}, tracking_uri=scene.lab.uri, ledger=False)
    expected = f"the digest of your eval set is {eval_set_digest(mine)}, but the candidate's run has {eval_set_digest(REWORDED)}"
    assert expected in told(scene.gate(again=other_set))
    other_config = adk_eval.make_reevaluator(eval_set=REWORDED, tracking_uri=scene.lab.uri, ledger=False)
    assert "the digest of your config is sha256:" in told(scene.gate(again=other_config))


def test_what_the_caller_gives_is_what_the_champion_is_evaluated_by(scene: Scene, tmp_path: Path) -> None:
    scene.log({"criteria": CRITERIA})
    cases, config = tmp_path / "home.evalset.json", {"criteria": CRITERIA}
    cases.write_text(dumps(REWORDED))
    policy = written(tmp_path / "gate.json", POLICY)
    options = ("--policy", policy, "--model", scene.champion.name, "--reevaluate", "--ledger", "off", "--tracking-uri", scene.lab.uri)
    without = invoke("gate", scene.candidate.run_id, *options)
    assert without.exit_code == 2
    assert "give it with --eval-set FILE" in " ".join(without.stdout.split())
    assert invoke("gate", scene.candidate.run_id, *options, "--eval-set", tmp_path / "misspelt.json").exit_code == 64
    assert invoke("gate", scene.candidate.run_id, "--eval-set", cases, "--tracking-uri", scene.lab.uri).exit_code == 64
    named = written(tmp_path / "my_config.json", config)
    assert invoke("gate", scene.candidate.run_id, *options, "--eval-set", cases, "--config-file-path", named).exit_code == 0
    named.rename(tmp_path / "test_config.json")
    assert invoke("gate", scene.candidate.run_id, *options, "--eval-set", cases).exit_code == 0
    assert scene.gate(pinned(config=config)).passed  # which is enough for data
    assert scene.gate(POLICY | {"eval_set": pinned(config=config)["eval_set"]}).verdict == "undecided"


@pytest.fixture
def hostile_run(scene: Scene, attackers_host: AttackersHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A run whose config names a host for every model, and a module; whoever reads it must follow neither."""
    (tmp_path / "module_of_the_run.py").write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    user = {"model": f"huggingface/{attackers_host.url}", "model_configuration": {"http_options": {"base_url": attackers_host.url}}}
    config = with_code("module_of_the_run.main") | {"user_simulator_config": user}
    config["criteria"] |= with_host(attackers_host.url)["criteria"]
    before = len(attackers_host.requests)
    yield scene.log(config, wrong="heating")
    assert "module_of_the_run" not in sys.modules
    assert len(attackers_host.requests) == before


def test_nothing_that_reads_a_run_follows_its_config(
    scene: Scene, hostile_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way on which a run of MLflow comes in, with judges by name, which ask our own server."""
    monkeypatch.delenv("GOOGLE_GENAI_USE_VERTEXAI", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "AIza-of-who-reads")
    uri, store = scene.lab.uri, ("--tracking-uri", scene.lab.uri)
    (tmp_path / "labels.csv").write_text(f"eval_id,criterion,label,labeller\nheating,{MATCH},pass,anna\nlights,{MATCH},pass,anna\n")
    cases, config = (
        written(tmp_path / "cases.json", json.loads(dumps(REWORDED))),
        written(tmp_path / "mine.json", {"criteria": {MATCH: 0.5}}),
    )
    other = scene.lab.log(evidence_of(evaluated({"criteria": CRITERIA}), model_id=scene.champion.model_id))
    with serving(judging(lambda call: "valid")) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        evaluation = ("run", f"runs:/{hostile_run}", cases, "--config-file-path", config, "--ledger", "off", *store)
        commands = {
            "judged again": evaluation,
            "compared with by pairs": (*evaluation, "--baseline", f"runs:/{hostile_run}"),
            "its failed cases": ("run", f"runs:/{other}", cases, "--failed", hostile_run, *evaluation[3:]),
            "report": ("report", hostile_run, "-o", tmp_path / "report.html", *store),
            "compare": ("compare", hostile_run, other, "-o", tmp_path / "comparison.html", *store),
            "power": ("power", hostile_run, "--detect", "0.05", *store),
            "gate": ("gate", hostile_run, *store),
            "calibrate": ("calibrate", hostile_run, "--labels", tmp_path / "labels.csv", *store),
            "label sheet": ("calibrate", hostile_run, "--sample", "2", "-o", tmp_path / "sheet.csv", *store),
            "judge bench": (
                "judge-bench", "gemini-2.5-flash", "--run", hostile_run, "--labels", tmp_path / "labels.csv", "--no-log", "--ledger", "off", *store,
            ),
            **{what: ("export", hostile_run, what, "-o", tmp_path / f"{what}.json", *store) for what in ("eval-set", "result")},
            "rows": ("export", hostile_run, "rows", "-o", tmp_path / "rows.jsonl", *store),
        }  # fmt: skip
        codes = {name: invoke(*command).exit_code for name, command in commands.items()}
        assert server.calls
    assert {name: code for name, code in codes.items() if code} == {"gate": 1, "report": 64}
    with viewing(uri, {}) as viewer:
        criterion = f"threshold.{MATCH}=0.9"
        for page in (f"runs/{hostile_run}", f"runs/{hostile_run}?{criterion}", f"compare?run={other}&run={hostile_run}", ""):
            assert viewer.get(f"/{page}").status_code == 200, page


def test_the_clock_of_the_store_says_whether_a_candidate_is_too_old_for_that(scene: Scene) -> None:
    scene.log({"criteria": CRITERIA})
    store, asked = MlflowStore(scene.lab.uri), Asked()
    there = datetime.now(UTC) + timedelta(days=30)
    store.clock = lambda: there
    search = BaselineSearch(store=store, policy=load_policy(POLICY | {"max_age": "7d"}), model=scene.champion.name, reevaluate=asked)
    assert decided(examine(store.evidence(scene.candidate.run_id)), search).verdict == "undecided"
    assert asked.times == 0
