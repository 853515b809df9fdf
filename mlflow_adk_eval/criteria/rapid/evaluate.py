"""Evaluating instances: one request of the Rapid Eval API, or many, computed and judged here or by Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol

from mlflow_adk_eval.config.criteria import JudgedSettings, JudgeModelOptions
from mlflow_adk_eval.criteria.rapid.computed import computed_score, load
from mlflow_adk_eval.criteria.rapid.messages import (
    RapidRequest,
    Rated,
    answer,
    error_body,
    read_request,
)
from mlflow_adk_eval.criteria.rapid.ratings import Judgement, compare, rate
from mlflow_adk_eval.criteria.rapid.vertex import VertexBackend
from mlflow_adk_eval.errors import JudgeError, UsageError, did_you_mean, shown
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge import CellKey, JudgeOptions
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.judge.setup import BudgetSource, JudgeSetup, JudgeSource, LedgerSource, judge_setup
from mlflow_adk_eval.ledger import opened
from mlflow_adk_eval.runtime import BACKGROUND, each, gathered

Backend = Literal["local", "vertex"]
BACKENDS = ("local", "vertex")
_AT_ONCE = 256
"""Requests under way at the same time; how many calls there are at a time is decided by each judge's own limiter."""


class RapidBackend(Protocol):
    """Who evaluates requests. It lives inside one event loop."""

    async def answer(self, asked: RapidRequest, /) -> Json:
        """Return the answer to a request.

        Raises:
            JudgeError: if there is none.
        """
        ...

    async def aclose(self) -> None:
        """Give back connections."""
        ...


async def answers_of(bench: RapidBackend, asked: Sequence[RapidRequest]) -> list[Json | JudgeError]:
    """Return the answer to each request, or why there is none."""
    found: dict[int, Json | JudgeError] = {}

    async def work(index: int) -> None:
        try:
            found[index] = await bench.answer(asked[index])
        except JudgeError as error:
            found[index] = error

    await each(work, range(len(asked)), limit=_AT_ONCE)
    return [found[index] for index in range(len(asked))]


@dataclass(frozen=True, slots=True)
class Voting:
    """How local judges vote."""

    num_samples: int = 5
    early_stop: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no number of votes."""
        if not isinstance(self.num_samples, int) or isinstance(self.num_samples, bool) or self.num_samples < 1:
            raise UsageError(f"num_samples={shown(self.num_samples)}: wanted a whole number of at least 1")

    def settings(self) -> JudgedSettings:
        """Return it as the settings of a criterion."""
        options = JudgeModelOptions(num_samples=self.num_samples)
        return JudgedSettings(threshold=0.0, judge_model_options=options, early_stop=self.early_stop)


def backend_of(setup: JudgeSetup, backend: Backend, voting: Voting, asked: Sequence[RapidRequest] = ()) -> RapidBackend:
    """Return who evaluates.

    Raises:
        JudgeError: if the service, or the judge that `asked` needs, cannot be had.
        UsageError: if the package of a metric in `asked` is not installed.
    """
    judging = JudgeSession(setup)
    if backend == "vertex":
        return VertexBackend(judging)
    settings = voting.settings()
    for one in asked:
        if one.metric.kind == "computed":
            load(one.metric.name)
        else:
            judging.vote_collector(settings)
    return LocalBackend(judging=judging, settings=settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBackend:
    """Computes scores, and has a model of the caller's choice judge."""

    judging: JudgeSession
    settings: JudgedSettings
    """Which model judges where nobody else does, and with how many votes."""

    async def aclose(self) -> None:
        """Give back connections."""
        await self.judging.aclose()

    async def answer(self, asked: RapidRequest, /) -> Json:
        """Return the answer to a request.

        Raises:
            JudgeError: if an instance has no verdict.
        """
        if asked.metric.kind == "computed":
            return answer(asked, [Rated(score=computed_score(asked.metric.name, asked.spec, one)) for one in asked.instances])
        found = await gathered(partial(self._judged, asked, index) for index in range(len(asked.instances)))
        errors = [f"instance {index}: {one.error}" for index, one in enumerate(found, 1) if one.rated is None]
        if errors:
            raise JudgeError(f"{asked.metric.name}: {'; '.join(errors)}")
        return answer(asked, [one.rated for one in found if one.rated is not None])

    async def _judged(self, asked: RapidRequest, index: int) -> Judgement:
        decide = compare if asked.metric.kind == "pairwise" else rate
        place = CellKey(eval_id=f"instance {index + 1}", run_index=0, invocation_index=0, criterion=asked.metric.criterion)
        return await decide(asked.metric, _material(asked, index), self.judging.vote_collector(self.settings), place)


def _material(asked: RapidRequest, index: int) -> Mapping[str, str]:
    """Return what is shown of an instance; the reference only if the request says so, as the service does."""
    instance = asked.instances[index]
    if asked.spec.get("use_reference"):
        return instance
    return {field: text for field, text in instance.items() if field != "reference"}


async def aevaluate_instances(  # noqa: PLR0913 - as evaluate_instances
    request: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    backend: Backend = "local",
    judge: JudgeSource = None,
    *,
    num_samples: int = 5,
    early_stop: bool = False,
    judge_options: JudgeOptions | None = None,
    budget: BudgetSource = None,
    ledger: LedgerSource = None,
    rejudge_failed: bool = False,
) -> Json | list[Json]:
    """Do what `evaluate_instances` does, from asynchronous code."""
    if backend not in BACKENDS:
        raise UsageError(f"backend={shown(backend)}: wanted {' or '.join(BACKENDS)}. {did_you_mean(str(backend), BACKENDS)}".rstrip())
    if not isinstance(request, Mapping | list | tuple):
        raise UsageError(f"request={shown(request)}: wanted the decoded body of a request, or a list of them")
    bodies = [request] if isinstance(request, Mapping) else list(request)
    many = not isinstance(request, Mapping)
    asked = [read_request(body, f"request {number}" if many else "request") for number, body in enumerate(bodies, 1)]
    setup = judge_setup(judge=judge, judge_options=judge_options, budget=budget, ledger=ledger, rejudge_failed=rejudge_failed)
    paid_for = backend == "vertex" or any(one.metric.kind != "computed" for one in asked)
    with opened(ledger if paid_for else False) as kept:
        bench = backend_of(replace(setup, answers=kept), backend, Voting(num_samples, early_stop), asked)
        try:
            answers = await answers_of(bench, asked)
        finally:
            await bench.aclose()
    if many:
        return [found if not isinstance(found, JudgeError) else error_body(found) for found in answers]
    if isinstance(answers[0], JudgeError):
        raise answers[0]
    return answers[0]


def evaluate_instances(  # noqa: PLR0913 - one function is the whole of it
    request: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    backend: Backend = "local",
    judge: JudgeSource = None,
    *,
    num_samples: int = 5,
    early_stop: bool = False,
    judge_options: JudgeOptions | None = None,
    budget: BudgetSource = None,
    ledger: LedgerSource = None,
    rejudge_failed: bool = False,
) -> Json | list[Json]:
    """Return the answer to a request of the Rapid Eval API, in the documented shape; to a list of requests, a list of answers.

    Everything that is wrong with any request is found before a judge is asked. In a list, what has no verdict is an object with
    ``error`` in Google's shape, so that one failure does not cost the other answers.

    Args:
        request: the decoded JSON body of a request, or several.
        backend: ``local``: computed and judged here; ``vertex``: asked of Vertex AI's evaluation service.
        judge: who judges locally: a model's name or a callable; ``None``: Gemini.
        num_samples: how many votes a judge's rating is the median of.
        early_stop: whether voting ends as soon as the missing votes cannot change the verdict. That saves calls, but the confidence is
            then the share of the votes that were cast.
        judge_options: how judges, or the service, are asked.
        budget: how much may be spent on them: a `Budget`, or a dict with ``max_calls``, ``max_tokens`` and ``name``.
        ledger: the file or ``postgresql://`` URL that keeps what was answered, so that nothing is paid for twice; ``None``: as ``ADK_EVAL_LEDGER`` says, else
            ``.adk_eval/ledger.sqlite``; ``False``: none.
        rejudge_failed: whether to ask again where a kept answer cannot be read.

    Raises:
        RequestError: with every problem of a request.
        JudgeError: if a judge or the service cannot be had, or, for a single request, if an instance has no verdict.
        UsageError: for arguments that make no sense.
    """
    return BACKGROUND.call(
        lambda: aevaluate_instances(
            request,
            backend,
            judge,
            num_samples=num_samples,
            early_stop=early_stop,
            judge_options=judge_options,
            budget=budget,
            ledger=ledger,
            rejudge_failed=rejudge_failed,
        )
    )
