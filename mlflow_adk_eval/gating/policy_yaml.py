"""YAML as policies may use it: one document of plain values, which cannot grow out of a few lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlflow_adk_eval.errors import PolicyError, Problem

_MOST_VALUES = 20_000
_DEEPEST = 50


def decode_yaml(text: bytes, source: str) -> Any:
    """Return the value in YAML text, of which JSON is a part. A key that stands twice is an error, not the last of its values.

    Raises:
        PolicyError: if it is no YAML, more than one document, or more than a policy can be once its aliases are written out.
    """
    from ruamel.yaml import YAML  # noqa: PLC0415 - only policies are YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415

    try:
        problem = _excess(YAML(typ="safe", pure=True).parse(text))
        if not problem:
            return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = f"text that is no YAML ({error.problem}{where})"
    except (YAMLError, ValueError) as error:
        problem = f"text that is no YAML ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
    raise PolicyError(source, [Problem("$", problem, "YAML or JSON")])


def _excess(events: Iterable[Any]) -> str:
    """Return why a document must not be built, told by its events alone: a few lines of aliases can stand for billions of values."""
    sizes: dict[str, int] = {}
    counts, anchors = [0], [""]
    for event in events:
        kind = type(event).__name__
        if kind in ("MappingStartEvent", "SequenceStartEvent"):
            counts.append(1)
            anchors.append(event.anchor or "")
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            count, anchor = counts.pop(), anchors.pop()
            counts[-1] += count
            sizes[anchor] = count
        elif kind == "AliasEvent":
            if event.anchor in anchors:
                return f"an alias *{event.anchor} within what it stands for"
            counts[-1] += sizes.get(event.anchor, 1)
        elif kind == "ScalarEvent":
            counts[-1] += 1
            sizes[event.anchor or ""] = 1
        if len(counts) > _DEEPEST or sum(counts) > _MOST_VALUES:
            return f"more than {_MOST_VALUES:,} values, or {_DEEPEST} levels"
    return ""
