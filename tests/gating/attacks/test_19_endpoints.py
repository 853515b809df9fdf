"""Attack 19: a config that sends the judge's requests, with the caller's API key, to a host of its author's, which then judges under the pinned name."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from google.genai.types import GenerateContentConfig, HttpOptions

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.agents.adk.modules import import_agent
from mlflow_adk_eval.cli.main import cli
from mlflow_adk_eval.errors import ConfigError, JudgeError, UsageError
from mlflow_adk_eval.judge.hosts import endpoint_named_by
from mlflow_adk_eval.judge.protocol import NoAnswer
from mlflow_adk_eval.judge.providers.gemini import GeminiJudge
from mlflow_adk_eval.judge.setup import allowed_hosts
from mlflow_adk_eval.results.report import Report
from tests.attackers_host import AttackersHost
from tests.gating.gate_kit import Lab
from tests.judge.providers.gemini_kit import KEY, MODEL, request, with_key
from tests.judge.servers import Call, Reply, Server, judging, serving
from tests.tracking.small import eval_set, turn

JSON = dict[str, Any]
MATCH = "final_response_match_v2"
SET = eval_set({"one": [turn("question", "good")]})
HARMLESS = {
    *("temperature", "top_p", "top_k", "candidate_count", "max_output_tokens", "stop_sequences", "response_logprobs", "logprobs"),
    *(
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "safety_settings",
        "thinking_config",
        "response_modalities",
        "media_resolution",
        "labels",
    ),
}
GENERATION = sorted(name for name in GenerateContentConfig.model_fields if name not in {*HARMLESS, "http_options"})
HTTP = sorted(name for name in HttpOptions.model_fields if name not in {"timeout", "retry_options"})


def config(settings: JSON, model: str = MODEL, **more: Any) -> JSON:
    options = {"judge_model": model, "num_samples": 1, "judge_model_config": settings}
    return {"criteria": {MATCH: {"threshold": 0.5, "judge_model_options": options}}, **more}


def of_a_judge(settings: JSON) -> JSON:
    return config(settings)


def of_one_case(settings: JSON) -> JSON:
    return {"criteria": {"response_match_score": 0.5}, "case_criteria": {"one": config(settings)["criteria"]}}


def of_a_user(settings: JSON) -> JSON:
    return {"criteria": {"response_match_score": 0.5}, "user_simulator_config": {"model": MODEL, "model_configuration": settings}}


PLACES = (of_a_judge, of_one_case, of_a_user)
Place = Callable[[JSON], JSON]


def never(_text: str) -> str:
    raise AssertionError("the agent was asked")


def refused(given: JSON, **options: Any) -> str:
    with pytest.raises(ConfigError) as error:
        adk_eval.score(SET, SET, given, ledger=False, **options)
    return str(error.value)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the caller have a key for Google's own host, and allow nothing."""
    with_key(monkeypatch, "")
    monkeypatch.delenv("GOOGLE_GEMINI_BASE_URL")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("MLFLOW_ADK_EVAL_JUDGE_HOSTS", raising=False)


@pytest.fixture
def server() -> Any:
    with serving(judging(lambda call: "valid" if "good" in call.text else "invalid")) as found:
        yield found


def host_of(server: Server) -> str:
    return server.url.removeprefix("http://")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("spelling", ["base_url", "baseUrl"])
def test_a_host_that_nobody_allowed_is_refused_before_anybody_is_asked(
    place: Place, spelling: str, attackers_host: AttackersHost, tmp_path: Path
) -> None:
    file = tmp_path / "evil.json"
    file.write_text(json.dumps(place({"http_options": {spelling: attackers_host.url}})))
    with pytest.raises(ConfigError) as error:
        adk_eval.evaluate(SET, never, file, ledger=False, judge_hosts=["localhost"])
    said = str(error.value)
    assert said.startswith(f"{file}: 1 problem in this eval config\n  $.")
    assert f".http_options.{spelling}: found the host {attackers_host.host}; wanted a host that you allow." in said
    assert f"MLFLOW_ADK_EVAL_JUDGE_HOSTS={attackers_host.host}, --judge-host {attackers_host.host}" in said


@pytest.mark.parametrize("name", HTTP)
@pytest.mark.parametrize("place", PLACES)
def test_whatever_google_genai_takes_for_its_requests_is_refused(place: Place, name: str, attackers_host: AttackersHost) -> None:
    for value in (attackers_host.url, {"x": attackers_host.url}, {"proxy": attackers_host.url, "verify": False}):
        assert f"http_options.{name}" in refused(place({"http_options": {name: value}}))


@pytest.mark.parametrize("name", GENERATION)
def test_whatever_google_genai_takes_besides_a_model_s_generation_is_refused(name: str, attackers_host: AttackersHost) -> None:
    for value in (attackers_host.url, [{"retrieval": {"external_api": {"endpoint": attackers_host.url}}}], {"x": 1}):
        assert f"judge_model_config.{name}" in refused(config({name: value}))


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_what_shapes_a_generation_is_no_endpoint(name: str) -> None:
    from mlflow_adk_eval.config.eval_config import endpoints_in, load_config

    assert not endpoints_in(load_config(config({name: 1, "http_options": {"timeout": 1000}})))


@pytest.mark.slow
def test_whatever_litellm_takes_for_its_requests_is_refused(attackers_host: AttackersHost) -> None:
    import litellm

    ours = {*HARMLESS, "model", "max_tokens", "stop", "timeout", "kwargs"}
    names = sorted(name for name in inspect.signature(litellm.acompletion).parameters if name not in ours)
    assert {"base_url", "api_key", "extra_headers"} <= {*names}
    for name in [*names, "api_base", "custom_llm_provider", "headers", "client", "ssl_verify", "proxy", "success_callback"]:
        assert f"judge_model_config.{name}" in refused(config({name: attackers_host.url}, "openai/gpt-5"))


@pytest.mark.parametrize("name", ["huggingface/{url}/x", "openai/{url}", "gemini-{url}", "projects/{url}", "openai/x?api_base={url}"])
def test_a_model_that_is_an_address_is_refused_wherever_a_model_is_named(name: str, attackers_host: AttackersHost) -> None:
    model = name.format(url=attackers_host.url)
    assert "judge_model:" in refused(config({}, model))
    panel = {"threshold": 0.5, "judge_panel": [MODEL, model]}
    assert "judge_panel[1]" in refused({"criteria": {MATCH: panel}})
    assert "$.user_simulator_config.model" in refused(
        {"criteria": {"response_match_score": 0.5}, "user_simulator_config": {"model": model}}
    )


def test_every_way_in_refuses(attackers_host: AttackersHost, tmp_path: Path) -> None:
    evil = {"http_options": {"base_url": attackers_host.url}}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(of_a_user(evil)))
    expected = tmp_path / "set.evalset.json"
    expected.write_text(SET.model_dump_json(exclude_none=True))
    with pytest.raises(ConfigError, match="base_url: found the host"):
        adk_eval.record(SET, never, file, ledger=False)
    options = {"judge_model": MODEL, "judge_model_config": evil}
    for module in (adk_eval.metrics, adk_eval.scorers):
        with pytest.raises(ConfigError, match="base_url: found the host"):
            module.final_response_match_v2(threshold=0.5, judge_model_options=options)
        with pytest.raises(ConfigError, match="base_url: found the host"):
            module.from_config(of_a_judge(evil))
    said = CliRunner().invoke(cli, ["score", str(expected), "--actual", str(expected), "--config", str(file)])
    assert isinstance(said.exception, ConfigError)


def test_a_stored_scorer_cannot_allow_its_own_endpoint(attackers_host: AttackersHost) -> None:
    from mlflow_adk_eval.integrations.genai_scorers import Shared, stored

    given = {"config": of_a_judge({"http_options": {"base_url": attackers_host.url}}), "judge_hosts": [attackers_host.host]}
    with pytest.raises(ConfigError, match="base_url: found the host"):
        stored(MATCH, json.dumps(given))
    from mlflow_adk_eval.config.eval_config import load_config

    kept = Shared(load_config(of_a_judge({})), {"judge_hosts": ["gateway"]}).to_json()
    assert "judge_hosts" not in kept


@pytest.mark.parametrize("host", ["http://gateway", "gateway/v1", "a@b", "", "*"])
def test_an_allowed_host_is_a_host(host: str) -> None:
    with pytest.raises(UsageError, match=r"judge_hosts: found .* wanted a host or host:port"):
        allowed_hosts([host])
    with pytest.raises(UsageError, match="wanted a list of hosts"):
        allowed_hosts("gateway")


@pytest.mark.parametrize("way", ["variable", "option", "keyword"])
def test_an_allowed_host_judges_and_is_told(way: str, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = of_a_judge({"http_options": {"base_url": server.url}})
    if way == "option":
        file, expected = tmp_path / "config.json", tmp_path / "set.evalset.json"
        file.write_text(json.dumps(given))
        expected.write_text(SET.model_dump_json(exclude_none=True))
        options = ["--config", str(file), "--judge-host", host_of(server), "--ledger", "off"]
        said = CliRunner().invoke(cli, ["score", str(expected), "--actual", str(expected), *options]).output
        assert f"Judged by {MODEL} at {host_of(server)}: 1 call" in " ".join(said.split())
        return
    if way == "variable":
        monkeypatch.setenv("MLFLOW_ADK_EVAL_JUDGE_HOSTS", "gateway.example.org, 127.0.0.1")
    report = adk_eval.score(SET, SET, given, ledger=False, judge_hosts=[host_of(server)] if way == "keyword" else [])
    assert report.judging is not None
    assert report.judging.models == (f"{MODEL} at {host_of(server)}",)
    assert list(report.to_frame("votes")["host"]) == [host_of(server)]
    assert len(server.calls) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_takes_neither_the_key_nor_the_verdict_elsewhere(
    status: int, attackers_host: AttackersHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(_call: Call) -> Reply:
        return Reply(status=status, headers={"Location": f"{attackers_host.url}/v1beta/models/{MODEL}:generateContent"})

    with serving(elsewhere) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)

        async def ask() -> None:
            judge = GeminiJudge(MODEL)
            try:
                with pytest.raises(NoAnswer):
                    await judge.ask(request())
            finally:
                await judge.aclose()

        asyncio.run(ask())
        assert len(server.calls) == 1


def evaluated(lab: Lab, judge: Any = None) -> Report:
    experiment = lab.client.get_experiment(lab.experiment_id).name
    agent = lambda _text: "good"  # noqa: E731
    return adk_eval.evaluate(SET, agent, config({}), judge=judge, experiment=experiment, tracking_uri=lab.uri, ledger=False, traces=False)


def decided(lab: Lab, run: Report, *models: Any) -> tuple[str, str]:
    policy = {"rules": {MATCH: {"min": 0.5}}, "judge": {"models": list(models)}}
    found = adk_eval.gate(run, policy, tracking_uri=lab.uri, raise_on_failure=False)
    return found.verdict, "; ".join(found.reasons)


def test_a_pinned_model_is_that_of_its_provider_s_own_host(lab: Lab, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
    run, host = evaluated(lab), host_of(server)
    verdict, said = decided(lab, run, MODEL)
    assert verdict == "undecided"
    assert f"{MODEL} at {host} judged, but the policy allows only {MODEL}" in said
    assert f"votes of {MATCH} came from {host}" in said
    assert decided(lab, run, {"model": MODEL, "host": "gateway:1"})[0] == "undecided"
    assert decided(lab, run, {"model": "gemini-2.5-pro", "host": host})[0] == "undecided"
    assert decided(lab, run, {"model": MODEL, "host": host})[0] == "passed"
    assert decided(lab, run, "gemini-2.5-pro", {"model": MODEL, "host": "127.0.0.1"})[0] == "passed"
    params = lab.client.get_run(run.run_id).data.params
    assert params["adk_eval.judge_model"] == f"{MODEL} at {host}"
    assert params[f"adk_eval.judge.{MATCH}"] == f"gemini-test-001 at {host}", "by which runs are compared"


def test_a_function_of_that_name_is_not_that_model(lab: Lab) -> None:
    def judge(_request: Any) -> JSON:
        return {"rationale": "all is well", "verdict": "valid"}

    judge.model = MODEL  # type: ignore[attr-defined]
    verdict, said = decided(lab, evaluated(lab, judge), MODEL)
    assert verdict == "undecided"
    assert f"{MODEL} at this process judged" in said


@pytest.mark.parametrize(
    "variable", ["GOOGLE_GEMINI_BASE_URL", "OPENAI_API_BASE", "HTTPS_PROXY", "SSL_CERT_FILE", "MLFLOW_ADK_EVAL_JUDGE_HOSTS"]
)
@pytest.mark.needs("litellm")
def test_the_env_file_of_an_agent_has_no_say_in_where_judges_are_asked(
    variable: str, attackers_host: AttackersHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes with the agent, also with one that is written in YAML, and its code may be nobody's concern."""
    monkeypatch.setenv(variable, "")  # so that it is taken out of the environment afterwards, whoever sets it
    monkeypatch.delenv(variable)
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-caller")
    folder = tmp_path / f"agent_{variable.lower()}"
    folder.mkdir()
    (folder / "agent.py").write_text("")
    (folder / ".env").write_text(f"{variable}={attackers_host.url}\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_agent(folder)
    model = "openai/gpt-5" if variable == "OPENAI_API_BASE" else MODEL
    if variable.endswith(("_URL", "_BASE")):
        assert os.environ[variable] == attackers_host.url, "the agent may need it"
        with pytest.raises(JudgeError, match=rf"\.env sets {variable}, but an agent must not choose"):
            adk_eval.score(SET, SET, config({}, model), ledger=False)
        monkeypatch.setenv(variable, "http://gateway.example.org")
        assert endpoint_named_by(variable) == "http://gateway.example.org", "what the caller sets counts"
    else:
        assert variable not in os.environ
