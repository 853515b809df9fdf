"""The artifacts that a decision rests on, read, and held against the parameters that nobody can change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter

from mlflow_adk_eval.config.eval_config import EvalConfig, parse_config
from mlflow_adk_eval.errors import ConfigError, InputError
from mlflow_adk_eval.evalset import EvalCase, EvalSet, eval_set_digest
from mlflow_adk_eval.evalset.parse import decode, parse
from mlflow_adk_eval.gating.evidence.integrity import (
    CONFIG,
    EVAL_SET,
    FOLDER,
    TABLE,
    Evidence,
    few,
    key_of_criterion,
)
from mlflow_adk_eval.results.table import Table, parse_table

_EVAL_SET = TypeAdapter(EvalSet)


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """What was to be evaluated, how, and what came of it."""

    eval_set: EvalSet
    config: EvalConfig
    table: Table
    num_runs: int


def planned(config: EvalConfig, case: EvalCase) -> list[str]:
    """Return the criteria that decide a case, in the order of the config, as the evaluation plans them."""
    return list(config.planned(case))


def read_documents(evidence: Evidence) -> tuple[Documents | None, list[str]]:
    """Return the documents of a run and what is wrong with them; ``None`` if they cannot be worked with."""
    try:
        eval_set = parse(_EVAL_SET, evidence.artifacts[EVAL_SET], f"{FOLDER}/{EVAL_SET}")
        config = parse_config(decode(evidence.artifacts[CONFIG], f"{FOLDER}/{CONFIG}", error=ConfigError), f"{FOLDER}/{CONFIG}")
        table = parse_table(evidence.artifacts[TABLE], f"{FOLDER}/{TABLE}")
    except InputError as error:
        return None, [f"{error.source} cannot be read: {error.problems[0]}"]
    num_runs = _num_runs(evidence.params)
    problems = [*_set_problems(eval_set), *([num_runs] if isinstance(num_runs, str) else [])]
    mismatches = list(_param_problems(evidence.params, eval_set, config))
    if problems or isinstance(num_runs, str):
        return None, [*mismatches, *problems]
    return Documents(eval_set=eval_set, config=config, table=table, num_runs=num_runs), mismatches


def _num_runs(params: Mapping[str, str]) -> int | str:
    text = params.get("adk_eval.num_runs")
    if text is None:
        return "the run has no parameter adk_eval.num_runs, so how many results each case must have is not known"
    return (
        int(text)
        if text.isascii() and text.isdigit() and int(text)
        else f"the run's parameter adk_eval.num_runs is {text!r}; wanted a whole number of at least 1"
    )


def _set_problems(eval_set: EvalSet) -> Iterator[str]:
    if not eval_set.eval_cases:
        yield "the eval set has no cases, so there is no evidence"
    counts = Counter(eval_set.eval_ids)
    yield from few(f"the eval set holds the case {eval_id!r} {count} times" for eval_id, count in counts.items() if count > 1)


def _param_problems(params: Mapping[str, str], eval_set: EvalSet, config: EvalConfig) -> Iterator[str]:
    digests = (("eval_set_digest", eval_set_digest(eval_set), EVAL_SET), ("config_digest", config.digest(), CONFIG))
    for name, actual, artifact in digests:
        recorded = params.get(f"adk_eval.{name}")
        if recorded is None:
            yield f"the run has no parameter adk_eval.{name}"
        elif recorded != actual:
            yield f"{FOLDER}/{artifact} is not what was evaluated: its digest is {actual[:19]}…, the parameter adk_eval.{name} says {recorded[:19]}…"
    yield from _threshold_problems(params, config.thresholds())


def _threshold_problems(params: Mapping[str, str], thresholds: Mapping[str, str]) -> Iterator[str]:
    demanded = {f"threshold.{key_of_criterion(name)}": threshold for name, threshold in thresholds.items()}
    for key, threshold in demanded.items():
        if key not in params:
            yield f"the run has no parameter {key}, though its config demands {threshold}"
        elif params[key] != threshold:
            yield f"the run's parameter {key} is {params[key]}, but its config demands {threshold}"
    for key in params:
        if key.startswith("threshold.") and key not in demanded:
            yield f"the run has a parameter {key}, but its config has no such criterion"
