"""Policies from files: YAML or JSON, strictly read.

A key that stands twice, an unknown one and an alias that grows without end are errors, all named at once. A policy may name
the files of a calibration, of public keys and of Sigstore's trusted root, which then become a part of it, so that the digest covers them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mlflow_adk_eval.analysis.calibration.calibration import load_calibration
from mlflow_adk_eval.config.spec import CRITERIA, MEASURES, MEASURES_OF_A_CRITERION, PASS_HAT, range_of
from mlflow_adk_eval.errors import InputError, PolicyError, Problem, UsageError, did_you_mean, json_path, nearest, shown
from mlflow_adk_eval.evalset.foreign import refuse_other_file
from mlflow_adk_eval.evalset.parse import (
    RepeatedKeyError,
    Steps,
    excess,
    from_json,
    members,
    not_yaml,
    problems_of,
    read_text,
    unknown_keys,
)
from mlflow_adk_eval.gating.policy.model import DEFAULT_POLICY, NO_EFFECT, TAGS, Policy, Rule, contradictions
from mlflow_adk_eval.redact import message_of
from mlflow_adk_eval.signing.identities import load_trust

_MOST_VALUES = 20_000
_DEEPEST = 50


def decode_yaml(text: bytes, source: str) -> Any:
    """Return the value in YAML text, of which JSON is a part. A key that stands twice is an error, not the last of its values.

    Raises:
        PolicyError: if it is no YAML, more than one document, or more than a policy can be once its aliases are written out.
    """
    from ruamel.yaml import YAML  # noqa: PLC0415 - only policies are YAML
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415

    try:
        problem = excess(YAML(typ="safe", pure=True).parse(text), most=_MOST_VALUES, deepest=_DEEPEST)
        if not problem:
            return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError) as error:
        problem = not_yaml(error)
    raise PolicyError(source, [Problem("$", problem, "YAML or JSON")])


_LARGEST = 256 * 1024


def load_policy(source: str | Path | Mapping[str, Any] | Policy | None = None) -> Policy:
    """Return a policy from a YAML or JSON file, a dict or an object; ``None``: the default policy.

    If the policy names a calibration file, relative to its own folder, the calibration is read and becomes part of the policy.

    Raises:
        PolicyError: with every problem of the policy.
        InputError: with every problem of its calibration.
    """
    if source is None:
        return DEFAULT_POLICY
    if isinstance(source, Policy):
        return source
    if isinstance(source, Mapping):
        name, policy = "policy", parse_policy(dict(source), "policy")
    else:
        name, path = str(source), Path(source)
        text = read_text(path, error=PolicyError)
        if len(text) > _LARGEST:  # to be written by people
            raise PolicyError(name, [Problem("$", f"{len(text):,} bytes", f"a policy of at most {_LARGEST:,} bytes")])
        value = decode_json(text, name) if path.suffix == ".json" else decode_yaml(text, name)
        refuse_other_file(value, name)
        policy = parse_policy(value, name, beside=path.parent)
    if misspelt := list(unmeasured(policy)):
        raise PolicyError(name, misspelt)
    return policy


def unmeasured(policy: Policy, customs: Collection[str] | None = None) -> Iterator[Problem]:
    """Yield the rules on what nothing measures.

    Args:
        policy: the policy.
        customs: the custom metrics that there are; ``None``: unknown, so that only an obvious slip in another name is a problem. A name that
            extends another one, or has another number, may be that of a custom metric.
    """
    for named, measure, _ in policy.all_rules():
        criterion, _, of_it = measure.rpartition("/")
        name = criterion if of_it in MEASURES_OF_A_CRITERION else measure
        known = [*CRITERIA, *(customs or ()), *(MEASURES if name == measure else ())]
        known += [f"{criterion}/{each}" for each in MEASURES_OF_A_CRITERION if name == measure and criterion]
        if name in known or PASS_HAT.fullmatch(measure):
            continue
        near = nearest(name, known, cutoff=0.9)
        if customs is None and (not near or near in name or re.sub(r"\D", "", near) != re.sub(r"\D", "", name)):
            continue
        path = json_path("$", ["slices", named, "rules", measure] if named else ["rules", measure])
        of_config = "" if customs is None else " from a config given here or in the policy's folder"
        wanted = f"a criterion, a custom metric{of_config}, or one of {', '.join(MEASURES)}"
        yield Problem(path, "a rule on an unknown measure", wanted, did_you_mean(name, known))


def decode_json(text: bytes, source: str) -> Any:
    """Return the value in JSON text. A key that stands twice is an error, not the last of its values.

    Raises:
        PolicyError: if it is no JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise PolicyError(source, [Problem("$", "lists and objects nested too deeply", "a policy")]) from None
    except ValueError as error:
        found = f"text that is not JSON ({error})" if text.strip() else "an empty text"
        raise PolicyError(source, [Problem(_place_of_repeat(text), found, "JSON")]) from None


def _place_of_repeat(text: bytes) -> str:
    """Return the JSON path of the first key that stands twice; ``$`` where there is none."""
    try:
        from_json(text)
    except RepeatedKeyError as repeats:
        return repeats.problems()[0].path
    except ValueError:  # it is no JSON at all
        pass
    return "$"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is repeated in one object")
        found[key] = value
    return found


def parse_policy(value: Any, source: str, *, beside: Path | None = None) -> Policy:
    """Return a decoded policy; `beside`: the folder of its file.

    Raises:
        PolicyError: with every problem of the policy.
        InputError: with every problem of its calibration.
    """
    if not isinstance(value, dict):
        raise PolicyError(source, [Problem("$", shown(value), "an object with rules")])
    unknown = list(unknown_keys(Policy, value))
    folder, calibration = beside or Path(), None
    value, elsewhere = _with_keys(value, folder)
    if isinstance(given := value.get("calibration"), str | dict):  # one that it holds is checked, and one that it names is put in its place
        try:
            read = load_calibration(folder / given if isinstance(given, str) else given)
            value |= {"calibration": read.model_dump(mode="json", exclude_none=True)}
        except InputError as error:
            value, calibration = value | {"calibration": {}}, error
    try:
        policy = Policy.model_validate(value)
        details = []
    except ValidationError as error:
        policy, details = None, error.errors(include_url=False)
        for detail in details:
            detail["loc"] = tuple(step for step in detail["loc"] if step not in TAGS)
    rules = dict(_rules_of(value))
    if any(detail["loc"] for detail in details):  # pydantic looks at the whole only once all of its parts are right
        known = members(Policy)
        given = {known[key].name: part for key, part in value.items() if key in known}
        wholes = contradictions([(str(place[-1]), rule) for place, rule in rules.items()], given)
        details += [ErrorDetails(type=error.type, loc=(), msg="", input=None, ctx=dict(error.context or {})) for error in wholes]
    found = [*problems_of(Policy, value, details, unknown, at="$"), *elsewhere]
    for place, rule in rules.items():  # the bounds that every run meets, or none can, of measures whose range is known without a run
        for key, bound, wanted in rule.without_effect(*(range_of(str(place[-1])) or (-math.inf, math.inf))):
            found.append(Problem(json_path("$", (*place, key)), bound, wanted, NO_EFFECT))
    found += _impossible(value)
    if calibration and not found:
        raise calibration
    if calibration:
        found.append(Problem("$.calibration", f"{calibration.source}: {calibration.problems[0]}", "a calibration"))
    if found or policy is None:
        raise PolicyError(source, found)
    return policy


def _rules_of(value: Mapping[str, Any]) -> Iterator[tuple[Steps, Rule]]:
    """Yield each rule of a decoded policy that can be read, with its place."""
    slices = value.get("slices")
    tables = [(("slices", name, "rules"), part.get("rules")) for name, part in _items(slices) if isinstance(part, Mapping)]
    for place, table in (("rules",), value.get("rules")), *tables:
        for measure, rule in _items(table):
            with suppress(ValidationError):
                yield (*place, measure), Rule.model_validate(rule)


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, Mapping) else ()


def _impossible(value: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the thresholds that a policy pins and no config can have."""
    pin = value.get("config")
    for criterion, threshold in _items(pin.get("criteria") if isinstance(pin, Mapping) else None):
        low, high = range_of(str(criterion)) or (-math.inf, math.inf)
        if isinstance(threshold, int | float) and math.isfinite(threshold) and not low <= threshold <= high:
            where = json_path("$", ("config", "criteria", str(criterion)))
            yield Problem(where, f"{threshold:.15g}", f"a number from {low:g} to {high:g}", NO_EFFECT)


def _with_keys(value: dict[str, Any], folder: Path) -> tuple[dict[str, Any], list[Problem]]:
    """Return a policy that holds the public keys and the trusted root of its attestation instead of naming their files.

    An attestation whose files cannot be read is left out, and returned as problems.
    """
    pin = value.get("attestation")
    if not isinstance(pin, dict):
        return value, []
    problems: list[Problem] = []
    trust, given = pin.get("trust"), pin.get("keys")
    if isinstance(trust, str | Mapping):
        try:
            pin = pin | {"trust": load_trust(folder / trust if isinstance(trust, str) else trust)}
        except UsageError as error:
            wanted = "a file with Sigstore's TrustedRoot or ClientTrustConfig, relative to the policy, or its content"
            problems.append(Problem("$.attestation.trust", message_of(error), wanted))
    if isinstance(given, list | tuple) and all(isinstance(key, str) for key in given):
        keys: list[str] = []
        for number, key in enumerate(given):
            try:
                text = key if "-----BEGIN " in key else (folder / key).read_text("utf-8")
            except (OSError, ValueError):
                problems.append(Problem(f"$.attestation.keys[{number}]", shown(key), "a PEM file, relative to the policy, or PEM text"))
            else:
                keys.append("".join(f"{line.strip()}\n" for line in text.strip().splitlines()).strip())
        pin = pin | {"keys": keys}
    return value | {"attestation": None if problems else pin}, problems


def policy_schema() -> dict[str, Any]:
    """Return the JSON Schema of policy files, for editors."""
    schema = Policy.model_json_schema(by_alias=False)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "mlflow-adk-eval gate policy"}
