"""Evaluating instances: one request of the Rapid Eval API, or many, computed and judged here or by Vertex AI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from operator import itemgetter
from typing import Any, Literal, ParamSpec, TypeVar

from mlflow_adk_eval.config.spec import JudgedSettings, JudgeModelOptions
from mlflow_adk_eval.criteria.rapid.computed import computed_score, load
from mlflow_adk_eval.criteria.rapid.messages import RapidRequest, Rated, answer, error_body, read_request
from mlflow_adk_eval.criteria.rapid.ratings import Judgement, compare, rate
from mlflow_adk_eval.errors import JudgeError, UsageError, did_you_mean, shown
from mlflow_adk_eval.evalset.material import material_of, unshown_in
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.providers.vertex import Instance, Result
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.judge.setup import BudgetSource, JudgeOptions, JudgeSetup, JudgeSource, LedgerSource, judge_setup
from mlflow_adk_eval.judge.voting import CellKey
from mlflow_adk_eval.ledger import opened
from mlflow_adk_eval.runtime import BACKGROUND, each, gathered

P = ParamSpec("P")
R = TypeVar("R")

Backend = Literal["local", "vertex"]
BACKENDS = ("local", "vertex")
_AT_ONCE = 256
"""Requests under way at the same time; how many calls there are at a time is decided by each judge's own limiter."""


def voting_settings(num_samples: int = 5, *, early_stop: bool = False) -> JudgedSettings:
    """Return how local judges vote, as the settings of a criterion.

    Raises:
        UsageError: if that is no number of votes.
    """
    if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples < 1:
        raise UsageError(f"num_samples={shown(num_samples)}: wanted a whole number of at least 1")
    return JudgedSettings(threshold=0.0, judge_model_options=JudgeModelOptions(num_samples=num_samples), early_stop=early_stop)


def computed_answer(request: RapidRequest) -> Json:
    """Return the answer to a request for a computed metric."""
    return answer(request, [Rated(score=computed_score(request.metric.name, request.spec, one)) for one in request.instances])


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBackend:
    """Computes scores, and has a model of the caller's choice judge."""

    judging: JudgeSession
    settings: JudgedSettings
    """Which model judges where nobody else does, and with how many votes."""

    async def answer(self, request: RapidRequest, /) -> Json:
        """Return the answer to a request.

        Raises:
            JudgeError: if an instance has no verdict.
        """
        if request.metric.kind == "computed":
            return computed_answer(request)
        decide, collector = compare if request.metric.kind == "pairwise" else rate, self.judging.vote_collector(self.settings)
        shown_reference = request.spec.get("use_reference")  # only if the request says so, as with the service

        async def judged(number: int, instance: Mapping[str, str]) -> Judgement:
            place = CellKey(eval_id=f"instance {number}", run_index=0, invocation_index=0, criterion=request.metric.criterion)
            shown = {field: text for field, text in instance.items() if field != "reference" or shown_reference}
            materials = {field: material_of(text) for field, text in shown.items()}
            return await decide(request.metric, materials, collector, place)

        judgements = await gathered(partial(judged, number, instance) for number, instance in enumerate(request.instances, 1))
        if errors := [f"instance {number}: {one.error}" for number, one in enumerate(judgements, 1) if one.error]:
            raise JudgeError(f"{request.metric.name}: {'; '.join(errors)}")
        return answer(request, judgements)


@dataclass(frozen=True, slots=True)
class VertexBackend:
    """The service, with the limits, the budget and the ledger of an evaluation.

    Raises:
        JudgeError: naming what is missing for it.
    """

    judging: JudgeSession

    def __post_init__(self) -> None:
        """Refuse to begin without the service: nothing has been sent yet."""
        self.judging.vertex()

    async def answer(self, request: RapidRequest, /) -> Json:
        """Return what the service answers to a request: a computed metric takes all instances at once, any other one at a time.

        Raises:
            JudgeError: if an instance has no result.
        """
        metric, evaluate = request.metric, self.judging.vertex().evaluate
        spec = {key: value.replace("rougen", "rouge") if key == "rouge_type" else value for key, value in request.spec.items()}

        async def evaluated(instance: Instance) -> Result:
            texts = list(instance.values()) if isinstance(instance, Mapping) else []  # a list is computed, from texts alone
            unshown = unshown_in(map(material_of, texts))
            return await evaluate(metric.name, instance, metric.bounds, spec, unshown=unshown)

        instances: list[Instance] = [dict(one) for one in request.instances]
        if metric.kind == "computed":
            instances = [list(request.instances)]
        results = await gathered(partial(evaluated, instance) for instance in instances)
        many = len(results) > 1
        if errors := [f"instance {index}: {one.error}" if many else one.error for index, one in enumerate(results, 1) if one.error]:
            raise JudgeError(f"{metric.name}: {'; '.join(errors)}")
        found = [(one, score) for one in results for score in one.scores or (None,)]
        rated = (Rated(score=score, choice=one.choice, explanation=one.explanation, confidence=one.confidence) for one, score in found)
        return answer(request, list(rated))


RapidBackend = LocalBackend | VertexBackend
"""Who evaluates requests. It lives inside one event loop."""


def backend_of(setup: JudgeSetup, backend: Backend, settings: JudgedSettings, requests: Sequence[RapidRequest] = ()) -> RapidBackend:
    """Return who evaluates.

    Raises:
        JudgeError: if the service, or the judge that `requests` needs, cannot be had.
        UsageError: if the package of a metric in `requests` is not installed.
    """
    judging = JudgeSession(setup)
    if backend == "vertex":
        return VertexBackend(judging)
    for one in requests:
        if one.metric.kind == "computed":
            load(one.metric.name)
        else:
            judging.vote_collector(settings)
    return LocalBackend(judging=judging, settings=settings)


async def aevaluate_instances(  # noqa: PLR0913 - one function is the whole of it
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
        ledger: the file or ``postgresql://`` URL that keeps what was answered, so that nothing is paid for twice; ``None``: as ``MLFLOW_ADK_EVAL_LEDGER`` says, else
            ``.adk_eval/ledger.sqlite``; ``False``: none.
        rejudge_failed: whether to ask again where a kept answer cannot be read.

    Raises:
        RequestError: with every problem of a request.
        JudgeError: if a judge or the service cannot be had, or, for a single request, if an instance has no verdict.
        UsageError: for arguments that make no sense.
    """
    if backend not in BACKENDS:
        raise UsageError(f"backend={shown(backend)}: wanted {' or '.join(BACKENDS)}. {did_you_mean(str(backend), BACKENDS)}".rstrip())
    if not isinstance(request, Mapping | list | tuple):
        raise UsageError(f"request={shown(request)}: wanted the decoded body of a request, or a list of them")
    bodies = [request] if isinstance(request, Mapping) else list(request)
    many = not isinstance(request, Mapping)
    requests = [read_request(body, f"request {number}" if many else "request") for number, body in enumerate(bodies, 1)]
    setup = judge_setup(judge=judge, judge_options=judge_options, budget=budget, ledger=ledger, rejudge_failed=rejudge_failed)
    paid_for = backend == "vertex" or any(one.metric.kind != "computed" for one in requests)
    settings, answers = voting_settings(num_samples, early_stop=early_stop), dict[int, Json | JudgeError]()
    with opened(ledger if paid_for else False) as cache:
        bench = backend_of(replace(setup, answers=cache), backend, settings, requests)

        async def work(index: int) -> None:
            try:
                answers[index] = await bench.answer(requests[index])
            except JudgeError as error:
                answers[index] = error

        try:
            await each(work, range(len(requests)), limit=_AT_ONCE)
        finally:
            await bench.judging.aclose()
    if many:
        return [error_body(one) if isinstance(one, JudgeError) else one for _, one in sorted(answers.items(), key=itemgetter(0))]
    if isinstance(answers[0], JudgeError):
        raise answers[0]
    return answers[0]


def _blocking(function: Callable[P, Awaitable[R]]) -> Callable[P, R]:
    """Return what does the same from synchronous code."""

    @wraps(function)
    def blocking(*args: P.args, **kwargs: P.kwargs) -> R:
        return BACKGROUND.call(lambda: function(*args, **kwargs))

    blocking.__name__ = blocking.__qualname__ = function.__name__.removeprefix("a")
    return blocking


evaluate_instances = _blocking(aevaluate_instances)
