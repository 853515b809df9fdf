"""Functions and objects of the user's own as judges, and what each name stands for."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.judge.protocol import (
    Answer,
    NoAnswer,
    Refused,
    Request,
    Unavailable,
)
from mlflow_adk_eval.judge.providers.gemini import GeminiJudge
from mlflow_adk_eval.judge.providers.litellm import LiteLlmJudge
from mlflow_adk_eval.judge.providers.resolve import CallableJudge, resolve_judge
from mlflow_adk_eval.judge.setup import JudgeOptions
from mlflow_adk_eval.testing import ScriptedJudge
from tests.judge.providers.gemini_kit import KEY, empty_environment, request

VERDICT = {"rationale": "так", "verdict": "valid"}


def answered(fn: Callable[[Request], Any], **settings: Any) -> Answer:
    async def ask() -> Answer:
        judge = CallableJudge(fn, **settings)
        try:
            return await judge.ask(request())
        finally:
            await judge.aclose()

    return asyncio.run(ask())


class Caller:
    """An object that is called."""

    model = "house-judge-2"
    address = "house-judge-2@7"

    async def __call__(self, request: Request) -> str:
        return json.dumps({**VERDICT, "text": request.text})


def named(request: Request) -> dict[str, str]:
    return VERDICT


class TestAnswers:
    @pytest.mark.parametrize("given", [VERDICT, json.dumps(VERDICT), Answer(text=json.dumps(VERDICT))])
    def test_of_every_kind(self, given: Any) -> None:
        async def awaited(_request: Request) -> Any:
            return given

        for fn in (lambda _request: given, awaited, partial(awaited), lambda request: awaited(request)):  # noqa: PLW0108 - not async itself
            assert json.loads(answered(fn).text) == VERDICT

    def test_the_request_is_passed(self) -> None:
        assert answered(lambda request: f"{request.instructions}: {request.text}").text == "the instructions: the text"
        assert json.loads(answered(Caller()).text)["text"] == "the text"

    def test_an_answer_keeps_what_it_says(self) -> None:
        given = Answer(text="x", model="m", input_tokens=3, output_tokens=4, latency_s=5.0, problem="SAFETY")
        assert answered(lambda _request: given) == given

    def test_latency_is_measured_where_it_is_not_said(self) -> None:
        assert 0.05 <= answered(lambda _request: threading.Event().wait(0.05) or "x").latency_s < 5

    def test_sync_functions_run_in_threads_of_their_own(self) -> None:
        barrier = threading.Barrier(3, timeout=120)

        def meet(_request: Request) -> str:
            barrier.wait()
            return "x"

        async def ask() -> None:
            judge = CallableJudge(meet, threads=3)
            await asyncio.gather(*(judge.ask(request()) for _ in range(3)))

        asyncio.run(ask())

    def test_a_hanging_function_does_not_hold_up_the_end(self) -> None:
        release = threading.Event()

        async def ask() -> None:
            async with asyncio.timeout(0.1):
                await CallableJudge(lambda _request: release.wait(300) and "x").ask(request())

        started = time.perf_counter()
        loop = asyncio.new_event_loop()
        try:
            with pytest.raises(TimeoutError):
                loop.run_until_complete(ask())
            assert time.perf_counter() - started < 100
        finally:
            release.set()
            loop.close()


class TestErrors:
    @pytest.mark.parametrize("given", [Unavailable("later", retry_after_s=3, overloaded=True), Refused("no", every_request=True)])
    def test_ours_pass(self, given: NoAnswer) -> None:
        def fail(_request: Request) -> str:
            raise given

        with pytest.raises(type(given)) as error:
            answered(fail)
        assert error.value is given

    def test_others_are_refusals_without_secrets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOUSE_API_KEY", KEY)

        def fail(_request: Request) -> str:
            raise KeyError(KEY)

        with pytest.raises(Refused, match=r"KeyError: .*HOUSE_API_KEY") as error:
            answered(fail)
        assert not error.value.every_request
        assert KEY not in str(error.value)

    @pytest.mark.parametrize("given", [None, 1, ["x"], True])
    def test_what_is_no_answer(self, given: Any) -> None:
        with pytest.raises(Refused, match="wanted an Answer, JSON text or an object") as error:
            answered(lambda _request: given)
        assert error.value.every_request


class TestNames:
    def test_of_functions(self) -> None:
        assert CallableJudge(named).model == "named"
        assert CallableJudge(partial(named)).model == "named"
        assert CallableJudge(Caller()).model == "house-judge-2"
        assert CallableJudge(partial(Caller())).model == "Caller"

    def test_addresses(self) -> None:
        assert CallableJudge(named).address is None
        assert CallableJudge(Caller()).address == "house-judge-2@7"


class TestResolving:
    @pytest.fixture(autouse=True)
    def _keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        empty_environment(monkeypatch)
        monkeypatch.setenv("GEMINI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("gemini-2.5-flash", GeminiJudge),
            ("models/gemini-2.5-flash", GeminiJudge),
            ("gemma-3-27b-it", GeminiJudge),
            ("projects/p/locations/l/publishers/google/models/gemini-2.5-pro", GeminiJudge),
            ("projects/p/locations/l/models/gemini", GeminiJudge),
            ("openai/gpt-4o", LiteLlmJudge),
            ("gemini/gemini-2.5-flash", LiteLlmJudge),
        ],
    )
    @pytest.mark.needs("litellm")
    def test_names(self, name: str, kind: type) -> None:
        assert isinstance(resolve_judge(name, JudgeOptions()), kind)
        assert resolve_judge(name, JudgeOptions()).model == name

    def test_objects_and_functions(self) -> None:
        judge = ScriptedJudge("valid")
        assert resolve_judge(judge, JudgeOptions()) is judge
        assert resolve_judge(named, JudgeOptions()).model == "named"

    @pytest.mark.parametrize("name", ["", "gpt-4o", "gemini", "gemini-", "openai/", "/x", "claude sonnet", "gemini-2.5-flash\n"])
    def test_names_of_nobody(self, name: str) -> None:
        with pytest.raises(UsageError, match=r"is not a judge model; wanted gemini-\.\.\. .*provider/model.*a callable"):
            resolve_judge(name, JudgeOptions())

    def test_slips_of_the_pen(self) -> None:
        with pytest.raises(UsageError, match=r"Did you mean 'gemini-2\.5-flash'"):
            resolve_judge("gemni-2.5-flash", JudgeOptions())

    @pytest.mark.parametrize("thing", [7, ScriptedJudge, object()])
    def test_what_is_no_judge(self, thing: Any) -> None:
        with pytest.raises(UsageError, match="is not a judge; wanted"):
            resolve_judge(thing, JudgeOptions())

    def test_half_a_judge(self) -> None:
        class Half:
            model = "half"

            async def ask(self, request: Request) -> Answer:
                return Answer(text="")

        half: Any = Half()
        with pytest.raises(UsageError, match="is not a judge: it has no address, aclose;"):
            resolve_judge(half, JudgeOptions())

    def test_settings_are_checked_where_the_judge_can(self) -> None:
        resolve_judge(ScriptedJudge("valid")).check({"temprature": 1})
        with pytest.raises(ValueError, match="Did you mean 'temperature'"):
            resolve_judge("gemini-2.5-flash").check({"temprature": 1})
