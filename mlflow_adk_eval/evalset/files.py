"""Eval sets as files: reading any generation, selecting cases, folders of tests, writing what ADK reads.

Three formats are read. Today's is an object with ``eval_cases``, in snake_case or camelCase. From before ADK's data had a schema there are
two legacy lists: one of *cases* (``name``, ``data``, ``initial_session``), and one of *turns* (``query``, ``reference``,
``expected_tool_use`` …), which is one case. They are read into today's models; ids are derived from the file, not drawn anew at each
load as ADK does, so that the same file is the same set tomorrow. Written is today's format only. Rows of JSON Lines and Parquet are in
`rows`, recordings in `conversation`, ADK's result files in `result`.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter
from pydantic.alias_generators import to_snake
from pydantic_core import PydanticSerializationError

from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError, did_you_mean, shown
from mlflow_adk_eval.evalset.models import (
    Content,
    EvalCase,
    EvalSet,
    FunctionCall,
    IntermediateData,
    Invocation,
    Json,
    Model,
    Part,
    SessionInput,
)
from mlflow_adk_eval.evalset.parse import decode, parse, read_text
from mlflow_adk_eval.evalset.row_files import ENDINGS
from mlflow_adk_eval.evalset.rows import is_rows, is_uri, open_cases, read_remote
from mlflow_adk_eval.writing import whole_file


class _ToolUse(Model):
    tool_name: str
    tool_input: Json | None
    mock_tool_output: Any = None


class _AgentResponse(Model):
    author: str
    text: str


class _Turn(Model):
    """One turn of a legacy file."""

    query: str
    reference: str = ""
    expected_tool_use: tuple[_ToolUse, ...] = ()
    expected_intermediate_agent_responses: tuple[_AgentResponse, ...] = ()


class InitialSession(Model):
    """The session of a legacy case, or of a separate initial-session file."""

    state: Json = Field(default_factory=dict)
    app_name: str = ""
    user_id: str = ""


class _LegacyCase(Model):
    name: str
    data: tuple[_Turn, ...]
    initial_session: InitialSession | None = None


_LEGACY_CASES = TypeAdapter(tuple[_LegacyCase, ...])
_LEGACY_TURNS = TypeAdapter(tuple[_Turn, ...])
_SESSION = TypeAdapter(InitialSession)
_EVAL_SET = TypeAdapter(EvalSet)
_SUFFIXES = (".evalset.json", ".test.json", ".json")
_SHAPES = "an eval set (an object with eval_set_id and eval_cases), or a legacy list of cases or of turns"
_OTHER_FILES = {"eval_case_results": "a result of ADK", "eval_id": "a single eval case", "criteria": "an eval config"}
_MAX_NAMED = 5


def load_eval_set(path: str | Path, *, initial_session: str | Path | None = None) -> EvalSet:
    """Return the eval set in a file of any generation, or the selection ``path:eval_1,eval_2`` of it.

    Args:
        path: the file, of JSON, JSON Lines or Parquet, a folder of the latter two, or an fsspec URI of any of these; optionally followed
            by a colon and the ids to keep.
        initial_session: the separate session file of a legacy list of turns.

    Raises:
        EvalSetError: with every problem of the file, or if it holds an id twice.
        UsageError: if a selected id is not in the file.
    """
    file, selected = split_selection(path)
    eval_set = _loaded(file, _session(initial_session))
    return select(eval_set, selected) if selected else eval_set


def _loaded(file: str | Path, session: InitialSession | None) -> EvalSet:
    if is_rows(file):
        eval_set = open_cases(file).eval_set()
        _refuse_session(session, str(file))
        return eval_set
    text = read_remote(str(file)) if is_uri(file) else read_text(Path(file))
    return parse_eval_set(text, str(file), stem=stem_of(Path(file)), session=session)


def parse_eval_set(text: bytes, source: str, *, stem: str, session: InitialSession | None = None) -> EvalSet:
    """Return the eval set in `text`; `stem` names it where the text, being legacy, does not.

    Raises:
        EvalSetError: with every problem of the text.
    """
    if text.lstrip()[:1] == b"{":
        eval_set = _current(text, source, session)
        _refuse_duplicates(eval_set.eval_cases, source, "$.eval_cases[{}].eval_id")
        return eval_set
    value = decode(text, source)
    if not isinstance(value, list):
        raise EvalSetError(source, [Problem("$", shown(value), _SHAPES)])
    eval_set = _converted(value, source, stem=stem, session=session)
    _refuse_duplicates(eval_set.eval_cases, source, "$[{}].name")
    return eval_set


def _current(text: bytes, source: str, session: InitialSession | None) -> EvalSet:
    try:
        eval_set = parse(_EVAL_SET, text, source)
    except EvalSetError:
        keys = {to_snake(key) for key in decode(text, source)}
        if not keys & {"eval_set_id", "eval_cases"}:
            found = next((noun for key, noun in _OTHER_FILES.items() if key in keys), shown(decode(text, source)))
            raise EvalSetError(source, [Problem("$", found, _SHAPES)]) from None
        raise
    _refuse_session(session, source)
    return eval_set


def _refuse_session(session: InitialSession | None, source: str) -> None:
    if session is not None and session.model_fields_set:
        found = "an eval set of today's format beside a separate initial session"
        raise EvalSetError(source, [Problem("$", found, "the session inside the cases, as session_input")])


def _converted(value: list[Any], source: str, *, stem: str, session: InitialSession | None) -> EvalSet:
    """Return a legacy list as an eval set named `stem`."""
    if value and isinstance(value[0], dict) and "data" not in value[0] and "name" not in value[0]:
        cases = [_case(stem, parse(_LEGACY_TURNS, value, source), session)]
    else:
        cases = [_case(case.name, case.data, case.initial_session or session) for case in parse(_LEGACY_CASES, value, source)]
    return EvalSet(eval_set_id=stem, name=stem, eval_cases=tuple(cases))


def _case(eval_id: str, turns: tuple[_Turn, ...], session: InitialSession | None) -> EvalCase:
    given: Json = {}
    if session is not None and session.model_fields_set:
        given["session_input"] = SessionInput(app_name=session.app_name, user_id=session.user_id, state=session.state)
    return EvalCase(eval_id=eval_id, conversation=tuple(map(_invocation, turns)), **given)


def _invocation(turn: _Turn) -> Invocation:
    return Invocation(
        user_content=Content(role="user", parts=(Part(text=turn.query),)),
        final_response=Content(role="model", parts=(Part(text=turn.reference),)),
        intermediate_data=IntermediateData(
            tool_uses=tuple(FunctionCall(name=use.tool_name, args=use.tool_input) for use in turn.expected_tool_use),
            intermediate_responses=tuple(
                (response.author, (Part(text=response.text),)) for response in turn.expected_intermediate_agent_responses
            ),
        ),
    )


def _session(path: str | Path | None) -> InitialSession | None:
    return None if path is None else parse(_SESSION, read_text(Path(path)), str(path))


def _refuse_duplicates(cases: Iterable[EvalCase], source: str, place: str) -> None:
    first: dict[str, int] = {}
    problems = []
    for index, case in enumerate(cases):
        earlier = first.setdefault(case.eval_id, index)
        if earlier != index:
            problems.append(
                Problem(place.format(index), f"{shown(case.eval_id)}, which is {place.format(earlier)} too", "an id of its own")
            )
    if problems:
        raise EvalSetError(source, problems)


def stem_of(path: Path) -> str:
    """Return a file's name without the endings that ADK gives its eval sets.

    >>> stem_of(Path("a/b.evalset.json")), stem_of(Path("c.test.json"))
    ('b', 'c')
    """
    for suffix in _SUFFIXES:
        if path.name.endswith(suffix):
            return path.name.removesuffix(suffix)
    return path.stem


def split_selection(path: str | Path) -> tuple[str | Path, tuple[str, ...]]:
    """Return a path and the ids selected behind a colon, separated by commas.

    The path is the longest part before a colon that exists, so a file whose name holds colons is taken as it is and an id
    may hold colons too; where nothing exists, as of a URI, the path ends as the names of eval sets do: ``.json``, ``.jsonl``,
    ``.parquet``. A `Path` selects nothing. A URI comes back as text, since a `Path` would spoil it.

    >>> split_selection("set.json:a,b:2")
    (PosixPath('set.json'), ('a', 'b:2'))
    >>> split_selection("s3://bucket/set.parquet:a")
    ('s3://bucket/set.parquet', ('a',))

    Raises:
        UsageError: if no id follows the colon.
    """
    if isinstance(path, Path) or os.path.exists(path):  # noqa: PTH110 - unlike Path.exists, it never raises
        return Path(path), ()
    scheme = path.find("://") + 1  # what stands before it names no file, though one may have its name
    heads = [path[:index] for index, character in enumerate(path) if character == ":" and index >= scheme]
    file = next((head for head in reversed(heads) if os.path.exists(head)), None)  # noqa: PTH110
    file = file or next((head for head in heads if head.endswith((".json", *ENDINGS))), path)
    selected = tuple(dict.fromkeys(eval_id.strip() for eval_id in path[len(file) + 1 :].split(",") if eval_id.strip()))
    if file != path and not selected:
        msg = f"{path}: no eval id follows the colon; wanted {file}:eval_1,eval_2"
        raise UsageError(msg)
    return file if is_uri(file) else Path(file), selected


def select(eval_set: EvalSet, eval_ids: Iterable[str]) -> EvalSet:
    """Return the set with only the named cases, in the set's own order.

    Raises:
        UsageError: naming the ids that the set does not hold.
    """
    wanted = set(eval_ids)
    unknown = sorted(wanted.difference(eval_set.eval_ids))
    if unknown:
        named = "; ".join(f"{eval_id!r} {did_you_mean(eval_id, eval_set.eval_ids)}".strip() for eval_id in unknown[:_MAX_NAMED])
        more = f"; and {len(unknown) - _MAX_NAMED} more" if len(unknown) > _MAX_NAMED else ""
        msg = f"eval set {eval_set.eval_set_id!r} has no case {named}{more} (it has {len(eval_set.eval_cases)} cases)"
        raise UsageError(msg)
    return eval_set.model_copy(update={"eval_cases": tuple(case for case in eval_set.eval_cases if case.eval_id in wanted)})


def test_files(folder: Path) -> list[Path]:
    """Return the ``*.test.json`` files of a folder and all below it, sorted.

    Raises:
        UsageError: if there is none.
    """
    found = sorted(path for path in folder.rglob("*.test.json") if path.is_file())
    if not found:
        msg = f"{folder}: no *.test.json file in this folder or below it"
        raise UsageError(msg)
    return found


def merge(name: str, parts: Iterable[tuple[str, EvalSet]]) -> tuple[EvalSet, dict[str, list[str]]]:
    """Return the cases of several files as one set, and the ids that each file's cases got in it.

    An id that occurs in several files is prefixed by its file's name.

    Args:
        name: the id of the new set.
        parts: each file's name and its eval set.

    Raises:
        UsageError: if two files have the same name, or a prefixed id is one that another case has.
    """
    listed = list(parts)
    occurrences = Counter(case.eval_id for _, part in listed for case in part.eval_cases)
    cases: list[EvalCase] = []
    ids: dict[str, list[str]] = {}
    for file, part in listed:
        renamed = [
            case if occurrences[case.eval_id] == 1 else case.model_copy(update={"eval_id": f"{file}:{case.eval_id}"})
            for case in part.eval_cases
        ]
        cases += renamed
        ids[file] = [case.eval_id for case in renamed]
    if len(ids) < len(listed) or len({case.eval_id for case in cases}) < len(cases):
        msg = f"the cases of {', '.join(file for file, _ in listed)} cannot be told apart; give the files names, or the cases ids, of their own"
        raise UsageError(msg)
    return EvalSet(eval_set_id=name, name=name, eval_cases=tuple(cases)), ids


def dump(model: Model) -> dict[str, Any]:
    """Return a model as plain JSON values in ADK's spelling, leaving out what is absent.

    An empty list of events is written, since without it ADK would read the other shape. Null is left out as the value of
    a field, and kept inside what users and tools wrote.
    """
    return model.model_dump(mode="json", exclude_unset=True, exclude_none=True)


def dumps(model: Model, *, indent: int | None = 2) -> str:
    """Return a model as JSON text that ADK reads, indented for people or, with ``None``, on one line."""
    try:
        return model.model_dump_json(indent=indent, exclude_unset=True, exclude_none=True) + "\n"
    except PydanticSerializationError:  # half of a surrogate pair, which some tools return, is no text in UTF-8
        return json.dumps(dump(model), ensure_ascii=False, indent=indent).encode("utf-8", "replace").decode() + "\n"


def write_eval_set(eval_set: EvalSet, path: str | Path) -> None:
    """Write an eval set so that the current ADK loads it.

    Raises:
        UsageError: if the file cannot be written.
        OutputError: if the disk is full.
    """
    with whole_file(path) as stream:
        stream.write(dumps(eval_set).encode())
