"""All that judged criteria share in one evaluation: the judges, their clients, the budget, the ledger and the usage.

A criterion asks its `VoteCollector` for a verdict. For each vote that needs, the collector asks a `Voter`: one judge with the settings of the
criterion. The voter finds the address of the vote (the hash of judge, settings, prompt, material and the number of the vote), lets the
`JudgeClient` find or request the answer, and reads what it says of each item. A judge is made when a criterion first needs it; criteria
with the same judge share its client, so that its limits hold for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING
from uuid import uuid4

from mlflow_adk_eval.config.eval_config import GENERATION, EvalConfig, endpoints_in
from mlflow_adk_eval.config.spec import JudgedSettings, PromptVariant
from mlflow_adk_eval.config.surroundings import UserSimulatorConfig
from mlflow_adk_eval.errors import ConfigError, JudgeError, Problem, UsageError, did_you_mean
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.client import CallResult, JudgeClient
from mlflow_adk_eval.judge.hosts import VERTEX, host_of, is_among, named_at
from mlflow_adk_eval.judge.identity import AskedModel, Identity
from mlflow_adk_eval.judge.prompt import is_varied
from mlflow_adk_eval.judge.protocol import Answer, Judge, ResolvedJudge
from mlflow_adk_eval.judge.providers.resolve import resolve_judge
from mlflow_adk_eval.judge.question import ItemVerdict, Question, errors_of
from mlflow_adk_eval.judge.setup import HOSTS_VARIABLE, JudgeSetup, OneJudge
from mlflow_adk_eval.judge.usage import BudgetLease, UsageTracker
from mlflow_adk_eval.judge.user_model import UserModel
from mlflow_adk_eval.judge.voting import CellKey, JudgeResponse, VoteCollector, first_of
from mlflow_adk_eval.results.usage import JudgeUsage, added
from mlflow_adk_eval.runtime import model_or_object

if TYPE_CHECKING:
    from mlflow_adk_eval.judge.providers.vertex import VertexService


_ELSEWHERE = "Set an endpoint in the environment, or pass a judge in Python (judge=)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter(AskedModel):
    """One judge with its settings, which answers a question with a vote."""

    rejudge_failed: bool = False
    """Whether to ask again where the ledger's answer cannot be read."""
    variant: PromptVariant = "standard"
    """How questions are asked."""
    fresh: str = ""
    """What its answers are kept apart under from those to equal questions; empty: nothing."""

    async def vote(self, question: Question, number: int) -> JudgeResponse:
        """Return the judge's vote of a number, from 0, or what went wrong."""
        question = question.variant(self.variant)
        self.prompts.setdefault(*question.prompt.hash_by_version)
        judge = await self.identity.address(self.settings)
        address = question.address(judge, self.settings) if judge else None
        verdicts: tuple[ItemVerdict, ...] = ()
        paid: list[CallResult] = []
        for attempt in range(2):  # an answer that cannot be read is asked for once more
            result = await self.client.request(
                lambda: self.judge.ask(question.request(self.settings, again=bool(paid))),
                f"{address}:{number}:{attempt}{self.fresh}" if address else None,
                may_reuse=(lambda answer: not errors_of(read_verdicts(question, answer))) if self.rejudge_failed else None,
            )
            if result.answer is None:
                # What an earlier attempt left out stays left out; what it said still counts.
                verdicts = verdicts or (ItemVerdict(error=result.error),) * len(question.items)
                return replace(self._response(verdicts, paid), final=result.final)
            paid.append(result)
            verdicts = read_verdicts(question, result.answer)
            if not result.reused:
                if all(verdict.error for verdict in verdicts):
                    self.client.could_not_read(result.answer, question.address("", {}), errors_of(verdicts), question.wanted)
                else:
                    self.client.could_read()
            if not errors_of(verdicts):
                break
        return self._response(verdicts, paid)

    def _response(self, verdicts: tuple[ItemVerdict, ...], paid: list[CallResult]) -> JudgeResponse:
        answers = [result.answer for result in paid if result.answer]
        last = answers[-1] if answers else Answer(text="")
        said: Json = {name: getattr(last, name) for name in ("text", "host", "asked_in", "asked_at")}
        said |= {name: _sum(getattr(answer, name) for answer in answers) for name in ("input_tokens", "output_tokens")}
        latency_s, reused = sum(answer.latency_s for answer in answers), bool(paid) and all(result.reused for result in paid)
        return JudgeResponse(verdicts=verdicts, model=last.model or self.judge.model, latency_s=latency_s, reused=reused, **said)


def read_verdicts(question: Question, answer: Answer) -> tuple[ItemVerdict, ...]:
    """Return what an answer says, and where it says nothing, also what the provider says of that."""
    verdicts = question.read(answer.text)
    if not answer.problem:
        return verdicts
    return tuple(replace(verdict, error=answer.why(verdict.error)) if verdict.error else verdict for verdict in verdicts)


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
        budget, answers, lease = self._setup.budget, self._setup.answers, None
        if budget.name and (budget.max_calls is not None or budget.max_tokens is not None):
            if answers is None:
                raise UsageError(f"budget {budget.name!r}: processes share it through a ledger, but there is none")
            lease = BudgetLease(budget, answers, budget.name)
        self._usage = UsageTracker(budget, lease)
        self._user_usage: UsageTracker | None = None
        self._judges: dict[str | int, tuple[ResolvedJudge, JudgeClient]] = {}
        self._identities: dict[tuple[int, str | None], Identity] = {}
        """By the id of the judge, and what its answers are kept under if it has no address."""
        self._prompts: dict[str, str] = {}
        self._named: dict[str, None] = {}
        """The judges as reports name them, in the order in which they were needed."""
        self._vertex: VertexService | None = None
        self._users: list[UserModel] = []
        self._owned: list[ResolvedJudge] = []
        self._elsewhere: list[JudgeUsage] = []
        self.evaluation = self._setup.scope or uuid4().hex
        """The id under which the ledger has what is asked here. Nobody can have written answers under it before."""

    def check(self, config: EvalConfig) -> None:
        """Refuse a config that names an endpoint which the caller does not allow, or changes requests in a way that nobody can allow.

        What is made of single settings is held to the same.

        Raises:
            ConfigError: with the path of each such setting.
        """
        problems: list[Problem] = []
        for path, host in endpoints_in(config):
            if host is None:
                found = "a setting that a config must not contain, because it may change where or how a model is called"
                wanted = f"only generation settings such as temperature. {_ELSEWHERE}"
                problems.append(Problem(path, found, wanted, did_you_mean(re.split(r"[.\]]", path)[-1], GENERATION)))
            elif not is_among(host, self._setup.hosts):
                wanted = "a host that you allow. If it may read the conversations and receive your API key, set"
                ways = f"{HOSTS_VARIABLE}={host}, --judge-host {host}, or judge_hosts=[{host!r}] in Python"
                problems.append(Problem(path, f"the host {host}", f"{wanted} {ways}"))
        if problems:
            raise ConfigError(config.source, problems)

    def vote_collector(
        self, settings: JudgedSettings, prompts: Iterable[str] = (), *, again: frozenset[CellKey] | None = None, of: str = ""
    ) -> VoteCollector:
        """Return what decides a criterion with these settings, asked by these prompts.

        Args:
            settings: of the criterion.
            prompts: by their names.
            again: the cells of an earlier run to judge again, with one vote each that is asked for whatever the ledger has; ``None``: decide all.
            of: the id of that run.

        Raises:
            ConfigError: if the settings name an endpoint that the caller does not allow.
            JudgeError: if the judge cannot be had.
            UsageError: if it has no such settings, or a prompt no such variant.
        """
        self.check(EvalConfig.model_construct(criteria={"criterion": settings}))
        variant = settings.prompt or "standard"
        names = tuple(prompts)
        if not is_varied(names, variant) and variant != "standard" and names:
            raise UsageError(f"prompt={variant!r} changes nothing in {', '.join(names)}, which asks about one thing; use another variant")
        options, scope = settings.judge_model_options, self._setup.scope
        config = options.judge_model_config or {}
        given = self._setup.judge
        chosen: Sequence[OneJudge] = settings.judge_panel or (options.judge_model,)
        if given is not None and given != "":
            chosen = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
        judges: list[tuple[ResolvedJudge, JudgeClient]] = []
        for one in chosen:
            key = one if isinstance(one, str) else id(one)
            if key not in self._judges:
                named = model_or_object(one, "judge", error=JudgeError) if isinstance(one, str) else one
                if named is not one and not given and hasattr(named, "ask"):  # an object could name itself after another model and host
                    raise UsageError(f"judge_model {one}: a config names only models and functions; pass a judge in Python (judge=)")
                judge = resolve_judge(named, self._setup.options)
                if judge is not one:
                    self._owned.append(judge)
                self._judges[key] = judge, self._client(self._usage, judge)
            judges.append(self._judges[key])
        voters: dict[str, Voter] = {}
        fresh = "" if again is None else f" for {self.evaluation}, anchor of {of}"
        how: Json = {"rejudge_failed": self._setup.rejudge_failed, "variant": variant, "prompts": self._prompts, "fresh": fresh}
        for judge, client in judges:
            judge.check(config)
            self._named.setdefault(named_at(judge.model, judge.host(config)))
            # What judges without an address answer is kept by the run, and apart for each of a panel.
            identity = self._identity(judge, f"{scope} {judge.model}" if scope and len(judges) > 1 else scope)
            voters[judge.model] = Voter(judge=judge, client=client, identity=identity, settings=config, **how)
        if not judges or len(voters) < len(judges):
            named = ", ".join(judge.model for judge, _ in judges) or "nobody"
            raise UsageError(f"a panel of {named}: wanted different judges with unique names")
        if again is not None:
            members = list(voters.values())
            return VoteCollector(ask=lambda question, number: first_of(members, question).vote(question, number), num_samples=1, only=again)
        ask, samples = next(iter(voters.values())).vote, ceil(options.num_samples / len(voters)) * len(voters)
        panel = {name: voter.vote for name, voter in voters.items()} if len(voters) > 1 else {}
        return VoteCollector(ask=ask, num_samples=samples, early_stop=settings.early_stop, count=self._usage.count, panel=panel)

    def _identity(self, judge: ResolvedJudge, scope: str | None) -> Identity:
        return self._identities.setdefault((id(judge), scope), Identity(judge, self._setup.answers, scope=scope))

    @property
    def notes(self) -> tuple[str, ...]:
        """What whoever reads the results should know of the judges and of the models that play users."""
        models = [judge for judge, _ in self._judges.values()] + [user.judge for user in self._users]
        notes = [note for model in models for note in model.notes]
        return tuple(dict.fromkeys([*notes, *(identity.note for identity in self._identities.values() if identity.note)]))

    def _client(self, usage: UsageTracker, judge: ResolvedJudge | None, who: str = "the judge") -> JudgeClient:
        """Return a client of a judge, or of Vertex's service."""
        setup, unknown = self._setup, judge is not None and judge.own_server
        model, name = (judge.model, judge.address or judge.model) if judge else (VERTEX, VERTEX)
        return JudgeClient(
            setup.options, usage, setup.answers, name=name, model=model, who=who, unknown=unknown, evaluation=self.evaluation
        )

    def vertex(self) -> VertexService:
        """Return Vertex's evaluation service.

        Raises:
            JudgeError: naming what is missing for it.
        """
        if self._vertex is None:
            from mlflow_adk_eval.judge.providers.vertex import VertexService, vertex_client  # noqa: PLC0415 - an extra

            service = vertex_client(timeout_s=self._setup.options.timeout_s)
            client = self._client(self._usage, None)
            self._named.setdefault(named_at(VERTEX, host_of(service.endpoint)))
            self._vertex = VertexService(service, client, rejudge_failed=self._setup.rejudge_failed)
        return self._vertex

    def user_model(self, settings: UserSimulatorConfig, source: str | Judge | None) -> UserModel:
        """Return the model that plays the user of scenarios: `source`, else the one that the config names.

        Raises:
            JudgeError: if it cannot be had.
            UsageError: if there is no such model.
            ConfigError: if it has no such settings, or they name an endpoint that the caller does not allow.
        """
        self.check(EvalConfig.model_construct(criteria={}, user_simulator_config=settings))
        try:
            model = resolve_judge(source or settings.model, self._setup.options)
        except (JudgeError, UsageError) as error:
            kind = JudgeError if isinstance(error, JudgeError) else UsageError
            raise kind(f"the simulated user: {error}") from None
        try:
            model.check(settings.model_configuration or {})
        except ConfigError as error:
            raise ConfigError("user_simulator_config.model_configuration", error.problems) from None
        if model is not source:
            self._owned.append(model)
        self._user_usage = self._user_usage or self._usage.sharing_budget()
        client = self._client(self._user_usage, model, "the simulated user's model")
        identity = self._identity(model, self._setup.scope)
        user = UserModel(judge=model, client=client, settings=settings.model_configuration or {}, identity=identity)
        self._users.append(user)
        return user

    def simulating(self) -> JudgeUsage | None:
        """Return what the models that play users took so far; ``None`` where none does."""
        if not self._user_usage:
            return None
        prompts = {name: sha256 for user in self._users for name, sha256 in user.prompts.items()}
        models = [named_at(user.judge.model, user.judge.host(user.settings)) for user in self._users]
        return _used(self._user_usage, models, prompts, [user.client for user in self._users])

    @property
    def asked(self) -> bool:
        """Whether any criterion needs a judge."""
        return bool(self._judges) or self._vertex is not None

    def usage(self) -> JudgeUsage | None:
        """Return what the judges took so far; ``None`` where no criterion needs one."""
        if not self.asked:
            return None
        return added([_used(self._usage, self._named, self._prompts, self._clients()), *self._elsewhere])

    def add(self, usage: JudgeUsage) -> None:
        """Count what judges took in another process, for the same evaluation."""
        self._elsewhere = [added([*self._elsewhere, usage])]

    def recover(self) -> None:
        """Give models that were given up another chance."""
        for client in (*self._clients(), *(user.client for user in self._users)):
            if client.outage:
                client.recover()

    def _clients(self) -> list[JudgeClient]:
        return [client for _, client in self._judges.values()] + ([self._vertex.client] if self._vertex else [])

    async def aclose(self) -> None:
        """Give back the connections of the models that were made here."""
        await self._usage.aclose()
        for model in self._owned:
            await model.aclose()
        if self._vertex:
            await self._vertex.service.aclose()


def _used(usage: UsageTracker, models: Iterable[str], prompts: Mapping[str, str], clients: Iterable[JudgeClient]) -> JudgeUsage:
    several = len(all_clients := list(clients)) > 1
    outages = [f"{client.model}: {client.outage}" if several else client.outage for client in all_clients if client.outage]
    return usage.usage(tuple(dict.fromkeys(models)), dict(sorted(prompts.items())), "; ".join(outages))
