"""What the model registry says of the versions that runs evaluated: which alias a version holds, and what the gate noted of its decisions.

Anybody who may write to the registry may change that. It is shown, and decides nothing: only `verify` says whether a promotion holds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlflow_adk_eval.gating.promotion.record import REFUSAL, TAG, pass_tag, read_location
from mlflow_adk_eval.runs.listed import RunRow
from mlflow_adk_eval.store.reaching import every_page

CHAMPION = "champion"
_MODELS_A_PAGE, _MOST_VERSIONS = 1_000, 10_000
"""As many versions are read, those that changed last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """A decision of the gate, as its notes at a version have it."""

    model: str
    version: str
    alias: str
    verdict: str
    run_id: str
    record: str
    """The path of the promotion record among the run's artifacts."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """A version that holds an alias."""

    model: str
    version: str
    alias: str

    def __str__(self) -> str:
        """Return how pages call it."""
        return f"{self.alias}, version {self.version} of {self.model}"


@dataclass(frozen=True, slots=True)
class Registry:
    """Aliases and notes of the registered versions."""

    holders: Mapping[str, Sequence[Holder]] = field(default_factory=dict[str, Sequence[Holder]])
    """By LoggedModel."""
    noted: Mapping[str, Sequence[Noted]] = field(default_factory=dict[str, Sequence[Noted]])
    """By run."""

    def held_by(self, row: RunRow) -> Sequence[Holder]:
        """Return the aliases that the version of a run holds."""
        return self.holders.get(row.model_id, ())

    def champion_of(self, row: RunRow, rows: Sequence[RunRow]) -> tuple[Holder, RunRow] | None:
        """Return the champion that a run can be compared with, and the run that stands for it; ``None``: there is none, or it is of the run's own version.

        It was evaluated on the same eval set. Of several, one of the same agent counts, and of its runs the one on which it was promoted.
        """
        best = self.standing([one for one in rows if one.eval_set == row.eval_set and one.pass_rate is not None], row.agent)
        return best if best and best[1].model_id != row.model_id else None

    def standing(self, rows: Iterable[RunRow], agent: str) -> tuple[Holder, RunRow] | None:
        """Return the champion among the versions that runs evaluated, and the run that stands for it, as `champion_of` does."""
        found = [(holder, one) for one in rows for holder in self.held_by(one)]

        def rank(pair: tuple[Holder, RunRow]) -> tuple[Any, ...]:
            holder, one = pair
            promoted = any((note.verdict, note.alias) == ("passed", holder.alias) for note in self.noted.get(one.run_id, ()))
            return holder.alias == CHAMPION, one.agent == agent, promoted, one.started

        return max(found, key=rank, default=None)


def registry_of(client: Any) -> Registry:
    """Return what the registry of a store says, with one search for models and one for versions."""
    aliases: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for model in every_page(lambda token: client.search_registered_models(max_results=_MODELS_A_PAGE, page_token=token)):
        for alias, number in model.aliases.items():
            aliases[str(model.name), str(number)].append(str(alias))
    holders: defaultdict[str, list[Holder]] = defaultdict(list)
    noted: defaultdict[str, list[Noted]] = defaultdict(list)
    for version in client.search_model_versions(max_results=_MOST_VERSIONS):
        name, number = str(version.name), str(version.version)
        if made_of := re.fullmatch(r"models:/(m-[^/@]+)", version.source or ""):
            holders[made_of[1]] += [Holder(name, number, alias) for alias in sorted(aliases.get((name, number), ()))]
        for note in _notes(name, number, version.tags):
            noted[note.run_id].append(note)
    return Registry(holders, noted)


def _notes(model: str, version: str, tags: Mapping[str, str]) -> Iterator[Noted]:
    """Yield the last decision on a version, the last refusal that left it its alias, and each pass of another alias."""
    seen = set[str]()
    for prefix in (TAG, REFUSAL):
        verdict, alias, record, reason = (tags.get(f"{prefix}{name}", "") for name in ("", ".alias", ".record", ".reason"))
        if verdict and (at := read_location(record)):
            seen.add(at.path)
            yield Noted(model=model, version=version, alias=alias, verdict=verdict, run_id=at.run_id, record=at.path, reason=reason)
    passed = pass_tag("")
    for name, text in tags.items():
        location = read_location(text) if name.startswith(passed) else None
        if location and location.path not in seen:
            alias = name.removeprefix(passed)
            yield Noted(model=model, version=version, alias=alias, verdict="passed", run_id=location.run_id, record=location.path)
