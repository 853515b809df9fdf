"""All that judged criteria share in one evaluation: the judges, their limits, the budget, the ledger and the accounts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mlflow_adk_eval.errors import ConfigError, JudgeError
from mlflow_adk_eval.judge.client.client import CallResult, JudgeClient, UsageTracker
from mlflow_adk_eval.judge.options import JudgeOptions
from mlflow_adk_eval.judge.protocol import Answer, Judge
from mlflow_adk_eval.judge.providers.resolve import check_settings, resolve_judge
from mlflow_adk_eval.judge.question import ItemVerdict, Question, errors_of
from mlflow_adk_eval.judge.setup import JudgeSetup
from mlflow_adk_eval.judge.user_model import UserModel
from mlflow_adk_eval.judge.voting import JudgeResponse, Jury
from mlflow_adk_eval.results.usage import JudgeUsage

if TYPE_CHECKING:
    from mlflow_adk_eval.config.criteria import JudgedSettings, UserSimulatorConfig
    from mlflow_adk_eval.judge.providers.vertex import VertexService

_ATTEMPTS = 2
"""An answer that cannot be read is asked for once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Asks one judge, by its settings, for votes."""

    judge: Judge
    calls: JudgeClient
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """``judge_model_config``."""
    scope: str | None = None
    """What the answers of a judge without an address are kept under; ``None``: they are not kept."""
    rejudge_failed: bool = False
    """Whether to ask anew where the ledger's answer cannot be read."""

    async def __call__(self, question: Question, vote: int) -> JudgeResponse:
        """Return the judge's vote, or what went wrong."""
        address = self._address(question)
        readings: tuple[ItemVerdict, ...] = ()
        paid: list[CallResult] = []
        for attempt in range(_ATTEMPTS):
            made = await self._made(question, f"{address}:{vote}:{attempt}" if address else None)
            if made.answer is None:
                # What an earlier attempt left out stays left out; what it said still counts.
                readings = readings or (ItemVerdict(error=made.error),) * len(question.items)
                return replace(self._paper(readings, paid), hopeless=made.hopeless)
            paid.append(made)
            readings = _read(question, made.answer)
            if not errors_of(readings):
                break
        return self._paper(readings, paid)

    def _address(self, question: Question) -> str | None:
        judge = self.judge.address or self.scope
        return question.address(judge, self.settings) if judge else None

    async def _made(self, question: Question, address: str | None) -> CallResult:
        made = await self.calls.make(self._send(question), address)
        unread = self.rejudge_failed and made.reused and made.answer is not None and errors_of(_read(question, made.answer))
        return await self.calls.make(self._send(question), address, anew=True) if unread else made

    def _send(self, question: Question) -> Callable[[], Awaitable[Answer]]:
        """Return what sends the question, each time between new delimiters."""
        return lambda: self.judge.ask(question.request(self.settings))

    def _paper(self, readings: tuple[ItemVerdict, ...], paid: list[CallResult]) -> JudgeResponse:
        answers = [made.answer for made in paid if made.answer]
        last = answers[-1] if answers else Answer(text="")
        return JudgeResponse(
            readings=readings,
            model=last.model or self.judge.model,
            latency_s=sum(answer.latency_s for answer in answers),
            input_tokens=_sum(answer.input_tokens for answer in answers),
            output_tokens=_sum(answer.output_tokens for answer in answers),
            raw=last.text,
            reused=bool(paid) and all(made.reused for made in paid),
        )


def _read(question: Question, answer: Answer) -> tuple[ItemVerdict, ...]:
    """Return what an answer says, and where it says nothing, also what the provider says of that."""
    readings = question.read(answer.text)
    if not answer.problem:
        return readings
    return tuple(replace(reading, error=f"{reading.error} ({answer.problem})") if reading.error else reading for reading in readings)


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the counts that are known; ``None`` if none is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


class JudgeSession:
    """The judges of one evaluation, each made when a criterion first needs it, and who plays its users. It lives inside one event loop."""

    def __init__(self, setup: JudgeSetup | None = None) -> None:
        """Begin with the caller's settings."""
        self._setup = setup or JudgeSetup()
        self._accounts = UsageTracker(self._setup.budget)
        self._judges: dict[str, tuple[Judge, JudgeClient]] = {}
        self._vertex: VertexService | None = None
        self._prompts: dict[str, str] = {}
        self._speakers: list[UserModel] = []
        self._spoken = self._accounts.beside()
        self._owned: list[Judge] = []

    def jury(self, settings: JudgedSettings) -> Jury:
        """Return the jury that decides a criterion with these settings.

        Raises:
            JudgeError: if the judge cannot be had.
            UsageError: if it has no such settings.
        """
        options = settings.judge_model_options
        judge, calls = self._judge(options.judge_model)
        config = options.judge_model_config or {}
        check_settings(judge, config)
        asker = Asker(
            judge=judge,
            calls=calls,
            settings=config,
            scope=self._setup.scope,
            rejudge_failed=self._setup.rejudge_failed,
        )
        return Jury(
            ask=partial(self._noted, asker),
            num_samples=options.num_samples,
            early_stop=settings.early_stop,
            count=self._accounts.count,
        )

    async def _noted(self, asker: Asker, question: Question, vote: int) -> JudgeResponse:
        prompt = question.prompt
        self._prompts.setdefault(f"{prompt.name}@{prompt.version}", prompt.sha256)
        return await asker(question, vote)

    def _judge(self, model: str) -> tuple[Judge, JudgeClient]:
        """Return the judge for what the config calls `model`, which is the caller's own where there is one."""
        chosen = self._setup.judge
        name = model if chosen is None else chosen if isinstance(chosen, str) else ""
        if name not in self._judges:
            judge = resolve_judge(chosen, model, self._setup.options)
            self._judges[name] = judge, self._calls()
        return self._judges[name]

    def _calls(self) -> JudgeClient:
        return JudgeClient(self._setup.options, self._accounts, self._setup.answers)

    def vertex(self) -> VertexService:
        """Return Vertex's evaluation service.

        Raises:
            JudgeError: naming what is missing for it.
        """
        if self._vertex is None:
            from mlflow_adk_eval.judge.providers.vertex import VertexService, vertex_client  # noqa: PLC0415 - an extra

            self._vertex = VertexService(
                vertex_client(timeout_s=self._setup.options.timeout_s), self._calls(), rejudge_failed=self._setup.rejudge_failed
            )
        return self._vertex

    def speaker(self, settings: UserSimulatorConfig, source: str | Judge | None) -> UserModel:
        """Return the model that plays the user of scenarios: `source`, else the one that the config names.

        Raises:
            JudgeError: if it cannot be had.
            ConfigError: if it has no such settings.
        """
        model = _player(settings, source, self._setup.options)
        if model is not source:
            self._owned.append(model)
        calls = JudgeClient(self._setup.options, self._spoken, self._setup.answers, who="the simulated user's model")
        speaker = UserModel(judge=model, calls=calls, settings=settings.model_configuration or {}, scope=self._setup.scope)
        self._speakers.append(speaker)
        return speaker

    def simulating(self) -> JudgeUsage | None:
        """Return what the model that plays users took so far; ``None`` where none does."""
        if not self._speakers:
            return None
        models = dict.fromkeys(speaker.model for speaker in self._speakers)
        prompts = {name: sha256 for speaker in self._speakers for name, sha256 in speaker.prompts.items()}
        usage = self._spoken.usage(tuple(models), dict(sorted(prompts.items())))
        return replace(usage, outage="; ".join(filter(None, (speaker.calls.outage for speaker in self._speakers))))

    @property
    def asked(self) -> bool:
        """Whether any criterion needs a judge."""
        return bool(self._judges) or self._vertex is not None

    def usage(self) -> JudgeUsage | None:
        """Return what the judges took so far; ``None`` where no criterion needs one."""
        if not self.asked:
            return None
        services = self._services()
        models = [judge.model for judge, _ in self._judges.values()] + (["vertex"] if self._vertex else [])
        usage = self._accounts.usage(tuple(dict.fromkeys(models)), dict(sorted(self._prompts.items())))
        return replace(usage, outage="; ".join(filter(None, (calls.outage for calls in services))))

    def recover(self) -> None:
        """Give models that were given up another chance."""
        for calls in (*self._services(), *(speaker.calls for speaker in self._speakers)):
            if calls.outage:
                calls.recover()

    def _services(self) -> list[JudgeClient]:
        return [calls for _, calls in self._judges.values()] + ([self._vertex.calls] if self._vertex else [])

    async def aclose(self) -> None:
        """Give back the connections of the models that were made here."""
        ours = [judge for judge, _ in self._judges.values() if judge is not self._setup.judge]
        for model in (*ours, *self._owned):
            await model.aclose()
        if self._vertex:
            await self._vertex.aclose()


def _player(settings: UserSimulatorConfig, source: str | Judge | None, options: JudgeOptions) -> Judge:
    """Return the model that plays users."""
    try:
        model = resolve_judge(source, settings.model, options)
    except JudgeError as error:
        raise JudgeError(f"the simulated user: {error}") from None
    try:
        check_settings(model, settings.model_configuration or {})
    except ConfigError as error:
        raise ConfigError("user_simulator_config.model_configuration", error.problems) from None
    return model
