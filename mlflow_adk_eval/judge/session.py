"""All that judged criteria share in one evaluation: the judges, their clients, the budget, the ledger and the usage.

A criterion asks its `VoteCollector` for a verdict. For each vote that needs, the collector asks a `Voter`: one judge with the settings of the
criterion. The voter finds the address of the vote (the hash of judge, settings, prompt, material and the number of the vote), lets the
`JudgeClient` find or request the answer, and reads what it says of each item. A judge is made when a criterion first needs it; criteria
with the same judge share its client, so that its limits hold for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mlflow_adk_eval.errors import ConfigError, JudgeError
from mlflow_adk_eval.judge.client import CallResult, JudgeClient
from mlflow_adk_eval.judge.protocol import Answer, Judge
from mlflow_adk_eval.judge.providers.resolve import check_settings, resolve_judge
from mlflow_adk_eval.judge.question import ItemVerdict, Question, errors_of
from mlflow_adk_eval.judge.setup import JudgeSetup
from mlflow_adk_eval.judge.usage import UsageTracker
from mlflow_adk_eval.judge.user_model import UserModel
from mlflow_adk_eval.judge.voting import JudgeResponse, VoteCollector
from mlflow_adk_eval.results.usage import JudgeUsage

if TYPE_CHECKING:
    from mlflow_adk_eval.config.criteria import JudgedSettings, UserSimulatorConfig
    from mlflow_adk_eval.judge.providers.vertex import VertexService

_ATTEMPTS = 2
"""An answer that cannot be read is asked for once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """One judge with its settings, which answers a question with a vote."""

    judge: Judge
    client: JudgeClient
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """``judge_model_config``."""
    scope: str | None = None
    """What the answers of a judge without an address are kept under; ``None``: they are not kept."""
    rejudge_failed: bool = False
    """Whether to ask anew where the ledger's answer cannot be read."""
    prompts: dict[str, str] = field(default_factory=dict[str, str])
    """The hash of each prompt that was used, by its name and version."""

    async def vote(self, question: Question, number: int) -> JudgeResponse:
        """Return the judge's vote of a number, from 0, or what went wrong."""
        self.prompts.setdefault(*question.prompt.hash_by_version)
        judge = self.judge.address or self.scope
        address = question.address(judge, self.settings) if judge else None
        verdicts: tuple[ItemVerdict, ...] = ()
        paid: list[CallResult] = []
        for attempt in range(_ATTEMPTS):
            result = await self.client.request(
                lambda: self.judge.ask(question.request(self.settings)),  # each time between new delimiters
                f"{address}:{number}:{attempt}" if address else None,
                may_reuse=(lambda answer: not errors_of(_read(question, answer))) if self.rejudge_failed else None,
            )
            if result.answer is None:
                # What an earlier attempt left out stays left out; what it said still counts.
                verdicts = verdicts or (ItemVerdict(error=result.error),) * len(question.items)
                return replace(self._response(verdicts, paid), final=result.final)
            paid.append(result)
            verdicts = _read(question, result.answer)
            if not errors_of(verdicts):
                break
        return self._response(verdicts, paid)

    def _response(self, verdicts: tuple[ItemVerdict, ...], paid: list[CallResult]) -> JudgeResponse:
        answers = [result.answer for result in paid if result.answer]
        last = answers[-1] if answers else Answer(text="")
        return JudgeResponse(
            verdicts=verdicts,
            model=last.model or self.judge.model,
            latency_s=sum(answer.latency_s for answer in answers),
            input_tokens=_sum(answer.input_tokens for answer in answers),
            output_tokens=_sum(answer.output_tokens for answer in answers),
            raw=last.text,
            reused=bool(paid) and all(result.reused for result in paid),
        )


def _read(question: Question, answer: Answer) -> tuple[ItemVerdict, ...]:
    """Return what an answer says, and where it says nothing, also what the provider says of that."""
    verdicts = question.read(answer.text)
    if not answer.problem:
        return verdicts
    return tuple(replace(verdict, error=f"{verdict.error} ({answer.problem})") if verdict.error else verdict for verdict in verdicts)


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the counts that are known; ``None`` if none is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


class JudgeSession:
    """The judges of one evaluation, each made when a criterion first needs it, and the models that play its users.

    It lives inside one event loop. Whoever made it closes it with `aclose`, which gives back the connections of the judges that it made;
    a judge that the caller passed stays open.
    """

    def __init__(self, setup: JudgeSetup | None = None) -> None:
        """Begin with the caller's settings."""
        self._setup = setup or JudgeSetup()
        self._usage = UsageTracker(self._setup.budget)
        self._user_usage = self._usage.sharing_budget()
        self._judges: dict[str, tuple[Judge, JudgeClient]] = {}
        self._prompts: dict[str, str] = {}
        self._vertex: VertexService | None = None
        self._users: list[UserModel] = []
        self._owned: list[Judge] = []

    def vote_collector(self, settings: JudgedSettings) -> VoteCollector:
        """Return what decides a criterion with these settings.

        Raises:
            JudgeError: if the judge cannot be had.
            UsageError: if it has no such settings.
        """
        options = settings.judge_model_options
        judge, client = self._judge(options.judge_model)
        config = options.judge_model_config or {}
        check_settings(judge, config)
        voter = Voter(
            judge=judge,
            client=client,
            settings=config,
            scope=self._setup.scope,
            rejudge_failed=self._setup.rejudge_failed,
            prompts=self._prompts,
        )
        return VoteCollector(ask=voter.vote, num_samples=options.num_samples, early_stop=settings.early_stop, count=self._usage.count)

    def _judge(self, model: str) -> tuple[Judge, JudgeClient]:
        """Return the judge for what the config calls `model`, which is the caller's own where there is one."""
        chosen = self._setup.judge
        name = model if chosen is None else chosen if isinstance(chosen, str) else ""
        if name not in self._judges:
            judge = resolve_judge(chosen, model, self._setup.options)
            if judge is not chosen:
                self._owned.append(judge)
            self._judges[name] = judge, self._client()
        return self._judges[name]

    def _client(self) -> JudgeClient:
        return JudgeClient(self._setup.options, self._usage, self._setup.answers)

    def vertex(self) -> VertexService:
        """Return Vertex's evaluation service.

        Raises:
            JudgeError: naming what is missing for it.
        """
        if self._vertex is None:
            from mlflow_adk_eval.judge.providers.vertex import VertexService, vertex_client  # noqa: PLC0415 - an extra

            service = vertex_client(timeout_s=self._setup.options.timeout_s)
            self._vertex = VertexService(service, self._client(), rejudge_failed=self._setup.rejudge_failed)
        return self._vertex

    def user_model(self, settings: UserSimulatorConfig, source: str | Judge | None) -> UserModel:
        """Return the model that plays the user of scenarios: `source`, else the one that the config names.

        Raises:
            JudgeError: if it cannot be had.
            ConfigError: if it has no such settings.
        """
        model = _user_judge(settings, source, self._setup)
        if model is not source:
            self._owned.append(model)
        client = JudgeClient(self._setup.options, self._user_usage, self._setup.answers, who="the simulated user's model")
        user = UserModel(judge=model, client=client, settings=settings.model_configuration or {}, scope=self._setup.scope)
        self._users.append(user)
        return user

    def simulating(self) -> JudgeUsage | None:
        """Return what the models that play users took so far; ``None`` where none does."""
        if not self._users:
            return None
        prompts = {name: sha256 for user in self._users for name, sha256 in user.prompts.items()}
        return _used(self._user_usage, [user.model for user in self._users], prompts, [user.client for user in self._users])

    @property
    def asked(self) -> bool:
        """Whether any criterion needs a judge."""
        return bool(self._judges) or self._vertex is not None

    def usage(self) -> JudgeUsage | None:
        """Return what the judges took so far; ``None`` where no criterion needs one."""
        if not self.asked:
            return None
        models = [judge.model for judge, _ in self._judges.values()] + (["vertex"] if self._vertex else [])
        return _used(self._usage, models, self._prompts, self._clients())

    def recover(self) -> None:
        """Give models that were given up another chance."""
        for client in (*self._clients(), *(user.client for user in self._users)):
            if client.outage:
                client.recover()

    def _clients(self) -> list[JudgeClient]:
        return [client for _, client in self._judges.values()] + ([self._vertex.client] if self._vertex else [])

    async def aclose(self) -> None:
        """Give back the connections of the models that were made here."""
        for model in self._owned:
            await model.aclose()
        if self._vertex:
            await self._vertex.aclose()


def _used(usage: UsageTracker, models: Iterable[str], prompts: Mapping[str, str], clients: Iterable[JudgeClient]) -> JudgeUsage:
    outage = "; ".join(filter(None, (client.outage for client in clients)))
    return usage.usage(tuple(dict.fromkeys(models)), dict(sorted(prompts.items())), outage)


def _user_judge(settings: UserSimulatorConfig, source: str | Judge | None, setup: JudgeSetup) -> Judge:
    """Return the model that plays users; whoever answers requests in JSON can."""
    try:
        model = resolve_judge(source, settings.model, setup.options)
    except JudgeError as error:
        raise JudgeError(f"the simulated user: {error}") from None
    try:
        check_settings(model, settings.model_configuration or {})
    except ConfigError as error:
        raise ConfigError("user_simulator_config.model_configuration", error.problems) from None
    return model
