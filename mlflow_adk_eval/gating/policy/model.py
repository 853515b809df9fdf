"""What a run must show before it may be promoted: the model of a policy file, `gate.yaml`.

A policy is immutable, and its digest is part of each decision, so what was demanded can be read from the record later. What
contradicts itself is refused when the policy is read, not when a run is decided on. `load` reads it from YAML and JSON.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    StringConstraints,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from mlflow_adk_eval.config.spec import MEASURES, PASS_HAT, Settings, is_measure
from mlflow_adk_eval.evalset.models import Json, canonical_json
from mlflow_adk_eval.signing.keys import public_key_problem

CONFIDENCE = 0.95
NO_EFFECT = "A bound that every run or no run meets decides nothing."
COST, AGENT = "cost", "agent"
"""The measure that needs prices, and whose price it is that is not a judge's."""
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_MINUTE = timedelta(minutes=1)
_APART = "and a separate rule for each bound of a range"


def _unwanted(found: str, wanted: str, lacks: str = "") -> PydanticCustomError:
    return PydanticCustomError("unwanted", "{wanted}", {"found": found, "wanted": wanted, "of": (lacks,)})


class _Part(Settings):
    """A part of a policy: all that it says against itself is reported at once."""

    _either: ClassVar[tuple[str, ...]] = ()
    """The fields of which at least one must be there."""

    def _contradictions(self) -> Iterator[PydanticCustomError]:
        """Yield what is wrong with the part as a whole, though each of its values is right."""
        if self._either and not any(value is not None for name, value in self if name in self._either):
            yield _unwanted(f"neither {' nor '.join(self._either)}", f"at least one of {' and '.join(self._either)}")

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if errors := [InitErrorDetails(type=error, input=None) for error in self._contradictions()]:
            raise ValidationError.from_exception_data("policy", errors)
        return self


def _as_it_is(value: str) -> str:
    if not value.strip():
        raise _unwanted(repr(value), "a non-empty string")
    if value != value.strip():
        raise _unwanted(repr(value), "a name without leading or trailing spaces")
    return value


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
"""What people read, such as a reason."""
Name = Annotated[str, StringConstraints(min_length=1), AfterValidator(_as_it_is)]
"""What must be the very name of something else. Were spaces dropped, one key could stand for another unseen."""
Share = Annotated[float, Field(gt=0, lt=1, strict=True)]
Confidence = Annotated[float, Field(gt=0.5, lt=1, strict=True)]
Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]
Amount = Annotated[Number, Field(ge=0)]
Count = Annotated[int, Field(ge=1, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
CORRECTED = ("corrected_ci_low", "ppi_ci_low")
"""The lower bounds of the pass rate that people would give."""
Use = Literal["mean", "ci_low", "ci_high", "corrected_ci_low", "ppi_ci_low"]


def _age(value: Any) -> Any:
    """Read ``7d`` as a time; a number has no unit, so it is none."""
    if isinstance(value, timedelta):
        if value < _MINUTE or value % _MINUTE:
            raise _unwanted(str(value), "an age of whole minutes")
        return value
    found = re.fullmatch(r"(\d+)\s*([mhdw])", value.strip()) if isinstance(value, str) else None
    with suppress(OverflowError):
        if found and int(found[1]):
            return timedelta(**{_UNITS[found[2]]: int(found[1])})
    raise _unwanted(repr(value), "an age such as 12h, 7d or 2w")


def format_age(age: timedelta) -> str:
    """Return an age in its largest whole unit.

    >>> format_age(timedelta(days=7)), format_age(timedelta(hours=36))
    ('1w', '36h')
    """
    minutes = int(age.total_seconds()) // 60
    unit, size = next((unit, size) for unit, size in (("w", 10080), ("d", 1440), ("h", 60), ("m", 1)) if minutes % size == 0)
    return f"{minutes // size}{unit}"


def _day(value: Any) -> Any:
    """Read a day as YAML or JSON has it; neither a time of day nor a number, which pydantic would take, too."""
    is_day = isinstance(value, date) and not isinstance(value, datetime)
    if is_day or (isinstance(value, str) and re.fullmatch(r"\d{4}-\d{2}-\d{2}", value)):
        return value
    raise _unwanted(str(value), "a day such as 2027-01-31")


def _twice(entries: Iterable[str], what: str) -> Iterator[PydanticCustomError]:
    """Yield what stands twice, as it is likely a slip."""
    for entry, count in Counter(entries).items():
        if count > 1:
            yield _unwanted(f"{entry!r} twice", f"each {what} once")


Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Age = Annotated[
    timedelta,
    BeforeValidator(_age),
    PlainSerializer(format_age, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^\d+\s*[mhdw]$", "examples": ["12h", "7d", "2w"]}),
]
Day = Annotated[date, BeforeValidator(_day)]
Rate = Annotated[float, Field(gt=0, le=1, strict=True)]
FileOrJson = Annotated[Json, WithJsonSchema({"type": ["string", "object"]})]
"""What a policy file may name instead of holding it: its path, relative to the file."""


def _optional(description: str, **more: Any) -> Any:
    """Return the field of a demand that need not be there."""
    return Field(default=None, description=description, **more)


class JudgeDemand(_Part):
    """How well a judge must be known by people's labels, before what it says decides anything."""

    calibrated: Flag | None = _optional("Whether the policy must have a calibration of exactly this judge.")
    labels: Count | None = _optional("The least number of labelled verdicts it must be calibrated on.")
    max_age: Age | None = _optional("The greatest age of the oldest labelled run, such as 90d.")
    min_kappa: Rate | None = _optional("The least Cohen's kappa between judge and people.")
    min_sensitivity: Rate | None = _optional("The least share of people's passes that the judge passes as well.")
    min_specificity: Rate | None = _optional("The least share of people's failures that the judge fails as well.")
    fresh: Flag | None = _optional("Whether every vote must be asked for in this evaluation, and none reused from a ledger.")
    max_reused: Annotated[float, Field(ge=0, lt=1, strict=True)] | None = _optional(
        "The largest share of a criterion's votes that may be reused from other evaluations."
    )
    max_drift: Share | None = _optional(
        "The size, as a share of the scale, from which on a change of the judge leaves undecided what it comes between: run and"
        " baseline, or run and labels."
    )
    max_apart: Age | None = _optional(
        "The longest time, such as 1d, between asking for the judge's votes on the run and on the baseline; beyond it, they are not compared."
    )
    use: Literal["mean", "ci_low"] = Field(
        default="mean",
        description="The number to compare with these minimums: mean (as measured) or ci_low (the lower bound of its interval).",
    )

    @property
    def demands(self) -> bool:
        """Whether anything is demanded that takes a calibration."""
        least = (self.labels, self.max_age, self.min_kappa, self.min_sensitivity, self.min_specificity)
        return bool(self.calibrated) or any(bound is not None for bound in least)

    @property
    def most_reused(self) -> float | None:
        """The largest share of votes from other evaluations; ``None``: any."""
        return 0.0 if self.fresh else self.max_reused

    @property
    def minds_time(self) -> bool:
        """Whether it matters when the judge was asked."""
        return self.max_drift is not None or self.max_apart is not None

    def _contradictions(self) -> Iterator[PydanticCustomError]:
        if self.fresh is not None and self.max_reused is not None:
            both = f"fresh: {str(self.fresh).lower()} with max_reused {self.max_reused:g}"
            yield _unwanted(both, "one of them: fresh means max_reused 0")
        if self.demands and self.calibrated is False:
            yield _unwanted("calibrated: false with other demands on the calibration", "calibrated: true, or none of them")


class Rule(_Part):
    """What one measure must come to. In a comparison, *worse* is lower, or higher where lower is better."""

    min: Number | None = _optional("The least that passes.")
    max: Number | None = _optional("The most that passes.")
    use: Use | None = _optional(
        "The number to compare with min or max: mean (as measured), ci_low or ci_high (a bound of the confidence interval),"
        " corrected_ci_low (the lower bound of the pass rate corrected for the judge's error) or ppi_ci_low (the same, from labels of this very run)."
        " Without it, min and max use the mean, and max_drop is tested for significance. With mean, it is not."
    )
    max_drop: Amount | None = _optional("The largest allowed drop from the baseline on the same cases, in the unit of the measure.")
    confidence: Confidence | None = _optional("The confidence level of intervals and tests; overrides the policy's.")
    min_cases: Count | None = _optional("The least number of distinct cases with a value; overrides the policy's or the slice's number.")
    judge: JudgeDemand | None = _optional("Demands on the judges behind this measure, in addition to the policy's.")
    range: tuple[Number, Number] | None = _optional(
        "Limits for a single case's value, such as [0, 100]; values outside are clipped. Needed for a measure without limits,"
        " where one case could lift the mean of all."
    )

    def _contradictions(self) -> Iterator[PydanticCustomError]:
        if self.range is not None and not self.range[0] < self.range[1]:
            yield _unwanted(f"the range {self.range[0]:g} to {self.range[1]:g}", "a range from a lower to a higher number")
        if self.range is not None and self.use in CORRECTED:
            yield _unwanted(f"use {self.use} with a range", "no range: a corrected pass rate is between 0 and 1 anyway")
        if self.min is None and self.max is None and self.max_drop is None:
            yield _unwanted("a rule that demands nothing", "at least one of min, max and max_drop")
            return
        if self.min is not None and self.max is not None and self.min > self.max:
            yield _unwanted(f"min {self.min:g} above max {self.max:g}", "a min that is not above max")
        if self.use in ("ci_low", *CORRECTED) and (self.min is None or self.max is not None):
            yield _unwanted(f"use {self.use} without min, or with max", f"ci_high for a max, {_APART}")
        if self.use == "ci_high" and (self.max is None or self.min is not None):
            yield _unwanted("use ci_high without max, or with min", f"ci_low for a min, {_APART}")

    def without_effect(self, low: float, high: float) -> Iterator[tuple[str, str, str]]:
        """Yield each bound that every value from `low` to `high` keeps to, or none can: its key, itself, and what it should be."""
        if self.use in CORRECTED:
            low, high = 0.0, 1.0
        if self.range is not None:
            low, high = max(low, self.range[0]), min(high, self.range[1])
        if not low < high:
            yield "range", str(list(self.range or ())), "a range that overlaps the measure's values"
            return
        lowest, highest, span = (f"{end:.15g}" for end in (low, high, high - low))
        if self.min is not None and not low < self.min <= high:
            yield "min", f"{self.min:.15g}", f"a number above {lowest}, up to {highest}"
        if self.max is not None and not low <= self.max < high:
            yield "max", f"{self.max:.15g}", f"a number from {lowest}, below {highest}".removesuffix(", below inf")
        if self.max_drop is not None and self.max_drop >= high - low:
            yield "max_drop", f"{self.max_drop:.15g}", f"a number below {span}, the largest possible drop"


class Slice(_Part):
    """Some of the cases, with rules of their own."""

    ids: tuple[Name, ...] = Field(default=(), description="Patterns for eval ids, such as refund_*.")
    tags: tuple[Name, ...] = Field(
        default=(), description="Tags (the list `tags` in the eval case); a case with any of them is in the slice."
    )
    min_cases: Count = Field(default=1, description="The least number of distinct cases with a value for each of its rules.")
    rules: dict[Name, Rule] = Field(min_length=1)

    def _contradictions(self) -> Iterator[PydanticCustomError]:
        if not self.ids and not self.tags:
            yield _unwanted("neither ids nor tags", "which cases the slice holds")
        yield from _twice(self.ids, "pattern")
        yield from _twice(self.tags, "tag")


def _spend(value: Any) -> Any:
    if value == "unlimited" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise _unwanted(repr(value), "a number of attempts from 1, or unlimited")


Spend = Annotated[
    int | Literal["unlimited"],
    BeforeValidator(_spend),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "unlimited"}]}),
]


class Attempts(_Part):
    """How the error of a decision is divided between the attempts against one champion."""

    spend: Spend = Field(
        description="The number of attempts with equal shares of the error, after which decisions are undecided; or unlimited, with shares"
        " that become ever smaller. Attempts on every eval set count, unless the policy pins the digest of one.",
    )


class Holdout(_Part):
    """Cases that no run scores, until a candidate that passes everything else is promoted."""

    ids: tuple[Name, ...] = Field(default=(), description="Patterns for eval ids, as in a slice.")
    tags: tuple[Name, ...] = Field(default=(), description="Tags, as in a slice.")
    uses: Count = Field(
        description="How often these cases may be scored, before you replace them. Each use has an equal share of the error."
    )
    min: Rate | None = _optional("The least share of these cases that must pass, as measured.")
    max_drop: Annotated[Number, Field(ge=0, lt=1)] | None = _optional(
        "The largest allowed drop of that share from the baseline, tested for significance."
    )

    def _contradictions(self) -> Iterator[PydanticCustomError]:
        if not self.ids and not self.tags:
            yield _unwanted("neither ids nor tags", "which cases are held out")
        if self.min is None and self.max_drop is None:
            yield _unwanted("a holdout that demands nothing", "at least one of min and max_drop")
        yield from _twice(self.ids, "pattern")
        yield from _twice(self.tags, "tag")


class Waiver(Settings):
    """A case, or one criterion of it, that does not count until a day."""

    case: Name = Field(description="The eval id.")
    criterion: Name | None = _optional("The criterion to waive; default: the whole case.")
    owner: Text
    reason: Text
    expires: Day = Field(description="The last day it is valid, in UTC.")

    def __str__(self) -> str:
        """Return the waiver as a sentence."""
        what = f"case {self.case!r}" + (f", {self.criterion}" if self.criterion else "")
        return f"{what}: waived by {self.owner} until {self.expires}: {self.reason}"


class EvalSetPin(_Part):
    """Which eval set the run must have used."""

    _either = ("id", "digest")
    id: Name | None = None
    digest: Digest | None = _optional("The run's parameter adk_eval.eval_set_digest. Without it, any cases with that id will do.")


class ConfigPin(_Part):
    """Which config the run must have used."""

    _either = ("digest", "criteria")
    digest: Digest | None = _optional("The run's parameter adk_eval.config_digest; it covers every setting.")
    criteria: dict[Name, Number] | None = _optional("Exactly the criteria that decide each case, with their thresholds.", min_length=1)


class HostedModel(_Part):
    """A model at a host that is not its provider's."""

    model: Name = Field(description="The model's name as in the config.")
    host: Name = Field(description="The host that may answer, for one port or for any: gateway.example.org:8080 or gateway.example.org.")

    def _contradictions(self) -> Iterator[PydanticCustomError]:
        if "/" in self.host:
            yield _unwanted(f"the host {self.host!r}", "a host or host:port, without http:// and without a path")

    def __str__(self) -> str:
        """Return how parameters name it."""
        return f"{self.model} at {self.host}"


TAGS = ("of a name", "of an object")
"""What pydantic puts into the paths of problems with a `JudgeModel`, though it is nothing that stands in a policy."""
JudgeModel = Annotated[
    Annotated[Name, Tag(TAGS[0])] | Annotated[HostedModel, Tag(TAGS[1])], Discriminator(lambda value: TAGS[not isinstance(value, str)])
]
"""Told by its kind, so that a mistake is one problem and not one of each kind."""


class JudgePin(JudgeDemand):
    """Who may judge, and how well every judge that a demand rests on must be known."""

    models: tuple[JudgeModel, ...] | None = _optional(
        "The models that may judge, as the config names them. Each is called at its provider's own host; write {model: …, host: …}"
        " for another. Default: any model.",
        min_length=1,
    )

    def _contradictions(self) -> Iterator[PydanticCustomError]:
        yield from super()._contradictions()
        if self.models is None and not self.demands and self.most_reused is None and not self.minds_time:
            found = "models, fresh: true, max_reused, max_drift, max_apart or calibrated: true"
            yield _unwanted("a demand on judges that demands nothing", found)


class IdentityPin(Settings):
    """Somebody whom an OIDC issuer knows, and who signs by Sigstore."""

    identity: Name = Field(description="Exactly as in the certificate: the URL of a workflow with its ref, or an email address.")
    issuer: Name = Field(description="The OIDC issuer's URL, such as https://token.actions.githubusercontent.com.")


class AttestationPin(_Part):
    """Who must have signed what was evaluated, when the evaluation ended."""

    keys: tuple[Text, ...] | None = _optional("Accepted public keys: PEM text or, in a policy file, the path of a PEM file.", min_length=1)
    identities: tuple[IdentityPin, ...] | None = _optional("Accepted OIDC identities, for signatures by Sigstore.", min_length=1)
    trust: FileOrJson | None = _optional(
        "Sigstore's TrustedRoot or, in a policy file, its path. Default: the public Sigstore's, from the network."
    )
    source: Literal["required", "optional"] = Field(
        default="required", description="Whether the agent's source must be known and match its LoggedModel."
    )

    def _contradictions(self) -> Iterator[PydanticCustomError]:
        if self.keys is None and self.identities is None:
            yield _unwanted("neither keys nor identities", "at least one of keys and identities")
        elif self.trust is not None and self.identities is None:
            yield _unwanted("trust without identities", "identities to trust it for")
        for key in self.keys or ():
            if (problem := public_key_problem(key)) is not None:
                yield _unwanted(problem, "the PEM text of public ed25519 or ECDSA P-256 keys")
        yield from _twice(self.keys or (), "key")
        yield from _twice((f"{one.identity} of {one.issuer}" for one in self.identities or ()), "identity")

    @property
    def signers(self) -> str:
        """Who may have signed, in words."""
        return " or ".join([*(["a key"] if self.keys else []), *(["an identity"] if self.identities else [])])


class ReplayPin(_Part):
    """What may have been answered from a recording, and what must."""

    _either = ("tools", "models")
    tools: Literal["strict", "never"] | None = _optional(
        "strict: every tool call was answered from a recording, in strict mode; never: none was. Default: either."
    )
    models: Literal["always", "never"] | None = _optional(
        "always: every answer of the agent's models was replayed; never: none was. Default: either."
    )


class BaselineSource(_Part):
    """What the run is compared with: the version that holds an alias, a version, or a run."""

    alias: Name | None = None
    version: Count | None = None
    run: Name | None = None
    model: Name | None = _optional("The registered model; default: the model being promoted.")
    if_missing: Literal["absolute", "refuse"] = Field(
        default="absolute", description="What to do without a champion: pass on the absolute rules alone, or refuse to promote."
    )
    if_incomparable: Literal["reevaluate", "refuse"] = Field(
        default="reevaluate",
        description="What to do if its run used another eval set, judge or criterion: evaluate it again if possible, or refuse.",
    )

    def _contradictions(self) -> Iterator[PydanticCustomError]:
        named = [name for name in ("alias", "version", "run") if getattr(self, name) is not None]
        if len(named) != 1:
            yield _unwanted(" and ".join(named) or "none of them", "exactly one of alias, version and run")
        if self.model and self.run:
            yield _unwanted("run and model", "a model only with an alias or a version")


class Price(_Part):
    """What a million tokens cost, in one currency for the whole policy."""

    input: Amount | None = None
    output: Amount | None = None
    tokens: Amount | None = _optional("One price for input and output. Use it for the agent: only the sum of its tokens is known.")

    def _contradictions(self) -> Iterator[PydanticCustomError]:
        named = [name for name in ("input", "output", "tokens") if getattr(self, name) is not None]
        if named not in (["tokens"], ["input", "output"]):
            yield _unwanted(" and ".join(named) or "no price", "either input and output, or tokens")


def contradictions(rules: Sequence[tuple[str, Rule]], given: Mapping[str, Any]) -> Iterator[PydanticCustomError]:
    """Yield what the parts of a policy lack, or say against each other.

    Args:
        rules: those that can be read, each with its measure.
        given: the parts of the policy by name, as they are or as they stand in its file.
    """
    if not any(given.get(part) for part in ("thresholds", "rules", "slices", "must_pass")):
        yield _unwanted("a policy that demands nothing", "rules, slices, must_pass or thresholds: true")
    if any(rule.max_drop is not None for _, rule in rules) and given.get("baseline") is None:
        yield _unwanted("max_drop without a baseline", "a baseline, such as {alias: champion}", "baseline")
    holdout = given.get("holdout")
    if isinstance(holdout, Holdout) and holdout.max_drop is not None and given.get("baseline") is None:
        yield _unwanted("holdout.max_drop without a baseline", "a baseline, such as {alias: champion}", "baseline")
    uses = dict.fromkeys(rule.use for _, rule in rules if rule.use in CORRECTED)
    if uses and given.get("calibration") is None:
        wanted = "calibration: the file that `mlflow-adk-eval calibrate` wrote"
        yield _unwanted(f"{' and '.join(map(str, uses))} without a calibration", wanted, "calibration")
    if any(measure == COST for measure, _ in rules) and not given.get("prices"):
        yield _unwanted("a rule on cost without prices", "prices, by judge model and `agent`", "prices")
    prices = given.get("prices")
    of_agent = prices.get(AGENT) if isinstance(prices, Mapping) else None
    if isinstance(of_agent, Price) and of_agent.tokens is None:
        yield _unwanted("a price of the agent by input and output", "prices.agent.tokens: only the sum of the agent's tokens is known")
    must_pass, waivers = (part if isinstance(part, list | tuple) else () for part in map(given.get, ("must_pass", "waivers")))
    yield from _twice((case for case in must_pass if isinstance(case, str)), "case of must_pass")
    waivers = [waiver for waiver in waivers if isinstance(waiver, Waiver)]
    yield from _twice((f"{waiver.case}: {waiver.criterion}" if waiver.criterion else waiver.case for waiver in waivers), "waiver")


class Policy(_Part):
    """The demands on a run. Immutable; its digest is part of each decision."""

    name: Text = "policy"
    thresholds: Flag = Field(
        default=False,
        description="Whether each case must also reach every threshold in the run's own config, as it must without a policy.",
    )
    eval_set: EvalSetPin | None = None
    config: ConfigPin | None = None
    judge: JudgePin | None = None
    attestation: AttestationPin | None = None
    replay: ReplayPin | None = None
    min_cases: Count = Field(
        default=1, description="The least number of distinct cases that are not waived, in the run and for each rule on all cases."
    )
    max_age: Age | None = _optional("The greatest age of the run, such as 7d.")
    confidence: Confidence = CONFIDENCE
    power: Share = Field(default=0.8, description="The statistical power assumed when an undecided rule says how many cases it needs.")
    rules: dict[Name, Rule] = Field(default_factory=dict, description="Rules by criterion or other measure.")
    slices: dict[Name, Slice] = Field(default_factory=dict)
    attempts: Attempts | None = _optional(
        "Default: each attempt is decided at the full error, and from the second on, the decision says the risk."
    )
    holdout: Holdout | None = None
    must_pass: tuple[Name, ...] = Field(default=(), description="The eval ids of cases that must pass in each run.")
    waivers: tuple[Waiver, ...] = ()
    baseline: BaselineSource | None = None
    calibration: FileOrJson | None = _optional(
        "The result of `calibrate`, for corrected_ci_low, ppi_ci_low and demands on judges; in a policy file, its path."
    )
    prices: dict[Name, Price] = Field(default_factory=dict, description="Prices by judge model, and for `agent`; for rules on cost.")

    def _contradictions(self) -> Iterator[PydanticCustomError]:
        return contradictions([(measure, rule) for _, measure, rule in self.all_rules()], dict(self))

    @property
    def compares(self) -> bool:
        """Whether any rule compares with a baseline."""
        return any(rule.max_drop is not None for _, _, rule in self.all_rules())

    @property
    def absolute(self) -> bool:
        """Whether any demand works without a baseline."""
        bounded = any(rule.min is not None or rule.max is not None for _, _, rule in self.all_rules())
        return self.thresholds or bool(self.must_pass) or bounded

    def all_rules(self) -> list[tuple[str, str, Rule]]:
        """Return each rule with its slice, empty for all cases, and its measure."""
        tables = {"": self.rules} | {name: part.rules for name, part in self.slices.items()}
        return [(name, measure, rule) for name, rules in tables.items() for measure, rule in rules.items()]

    @property
    def criteria(self) -> set[str]:
        """The criteria in its rules and in its pinned config."""
        measures = {measure for _, measure, _ in self.all_rules() if measure not in MEASURES and not PASS_HAT.fullmatch(measure)}
        named = {measure.rpartition("/")[0] if is_measure(measure) else measure for measure in measures}
        return named | set((self.config and self.config.criteria) or ())

    def waivers_on(self, now: datetime) -> tuple[tuple[Waiver, ...], tuple[Waiver, ...]]:
        """Return the waivers that are valid at a moment, and the expired ones."""
        today = now.astimezone(UTC).date()
        holding = tuple(waiver for waiver in self.waivers if waiver.expires >= today)
        return holding, tuple(waiver for waiver in self.waivers if waiver.expires < today)

    def to_json(self) -> dict[str, Any]:
        """Return the policy as JSON values with all defaults filled in, for the promotion record."""
        return self.model_dump(mode="json", exclude_none=True)

    def digest(self) -> str:
        """Return the sha256 of the policy, in hex."""
        return hashlib.sha256(canonical_json(self.to_json())).hexdigest()


DEFAULT_POLICY = Policy(name="default", thresholds=True)
"""Every case must be evaluated on every criterion of the run's config and reach the threshold given there."""
