"""What users name as eval sets, said once, and eval sets as JSON: reading any generation, writing what ADK reads.

`open_inputs` looks at what is named and returns a tagged value, which everything behind it takes. An `EvalSet` is there already; others are in
a file of JSON (`JsonFile`), in rows (`RowFiles`: JSON Lines, Parquet, a folder of either or of a run's parts), in a folder of ADK's conformance
tests (`ConformanceFolder`), in several files as one set
(`Several`: paths, or the tests of a folder), or in a dataset of MLflow (`DatasetInput`, which is read by those who know MLflow). A path may be a
URI of fsspec, and may select cases: ``path:eval_1,eval_2``. `open_file` says the same of one path, which may also be a recording or a result.

Three formats are read. Today's is an object with ``eval_cases``, in snake_case or camelCase. From before ADK's data had a schema there are
two legacy lists: one of *cases* (``name``, ``data``, ``initial_session``), and one of *turns* (``query``, ``reference``,
``expected_tool_use`` …), which is one case. They are read into today's models; ids are derived from the file, not drawn again at each
load as ADK does, so that the same file is the same set tomorrow. Written is today's format only;
rows of JSON Lines and Parquet are in `rows`, recordings and ADK's result files in `conversation`.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, ValidationError
from pydantic.alias_generators import to_snake
from pydantic_core import PydanticSerializationError

from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError, did_you_mean, shown
from mlflow_adk_eval.evalset.adk_form import for_adk
from mlflow_adk_eval.evalset.conformance import eval_set_of, has_tests, tests_in
from mlflow_adk_eval.evalset.foreign import refuse_dataset
from mlflow_adk_eval.evalset.models import (
    CasesElsewhere,
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
    Written,
)
from mlflow_adk_eval.evalset.parse import Steps, UnknownKey, decode, parse, read_text, repeated
from mlflow_adk_eval.evalset.row_files import ENDINGS, RowFile, is_uri, read_remote
from mlflow_adk_eval.evalset.rows import CaseFiles, is_run, open_cases
from mlflow_adk_eval.evalset.unread import Level
from mlflow_adk_eval.writing import write_file


class _ToolUse(Written):
    tool_name: str
    tool_input: Json | None
    mock_tool_output: Any = None


class _AgentResponse(Written):
    author: str
    text: str


class _Turn(Written):
    """One turn of a legacy file."""

    level: ClassVar[Level] = "old"
    query: str
    reference: str = ""
    expected_tool_use: tuple[_ToolUse, ...] = ()
    expected_intermediate_agent_responses: tuple[_AgentResponse, ...] = ()


class InitialSession(Written):
    """The session of a legacy case, or of a separate initial-session file."""

    state: Json = Field(default_factory=dict)
    app_name: str = ""
    user_id: str = ""


class _LegacyCase(Written):
    level: ClassVar[Level] = "old case"
    name: str
    data: tuple[_Turn, ...]
    initial_session: InitialSession | None = None


_SUFFIXES = (".evalset.json", ".test.json", ".json")
_SHAPES = "an eval set (an object with eval_set_id and eval_cases), or a legacy list of cases or of turns"
_OTHER_FILES = {"eval_case_results": "a result of ADK", "eval_id": "a single eval case", "criteria": "an eval config"}


def parse_eval_set(text: bytes, source: str, *, stem: str, session: InitialSession | None = None, mending: bool = False) -> EvalSet:
    """Return the eval set in `text`; `stem` names it where the text, being legacy, does not.

    Args:
        text: JSON.
        source: what messages call it.
        stem: the id of an eval set that has none, as legacy ones.
        session: the separate session of a legacy list of turns.
        mending: whether keys that nothing reads where they are come along, for `AdkForm` to move them.

    Raises:
        EvalSetError: with every problem of the text.
    """
    if text.lstrip()[:1] == b"{":
        try:
            eval_set, place = parse(EvalSet, text, source, mending=mending), "$.eval_cases[{}].eval_id"
        except EvalSetError:
            value = decode(text, source)
            refuse_dataset(value, source)
            keys = {to_snake(key) for key in value}
            if keys & {"eval_set_id", "eval_cases"}:
                raise
            found = next((noun for key, noun in _OTHER_FILES.items() if key in keys), shown(value))
            raise EvalSetError(source, [Problem("$", found, _SHAPES)]) from None
        refuse_session(session, source)
    else:
        value = decode(text, source)
        if not isinstance(value, list):
            raise EvalSetError(source, [Problem("$", shown(value), _SHAPES)])
        refuse_dataset(value, source)
        if value and isinstance(value[0], dict) and "data" not in value[0] and "name" not in value[0]:
            cases = [_case(stem, parse(tuple[_Turn, ...], value, source, mending=mending), session)]
        else:
            listed = parse(tuple[_LegacyCase, ...], value, source, mending=mending)
            cases = [_case(case.name, case.data, case.initial_session or session) for case in listed]
        eval_set, place = EvalSet(eval_set_id=stem, name=stem, eval_cases=tuple(cases)), "$[{}].name"
    if problems := repeated([case.eval_id for case in eval_set.eval_cases], place):
        raise EvalSetError(source, problems)
    return eval_set


def refuse_unread(eval_set: EvalSet, source: str) -> None:
    """Refuse an eval set made in Python, not read from a file, in which a key says what nothing reads there.

    Raises:
        EvalSetError: with each such key of the set, its cases and their turns.
    """
    if isinstance(eval_set.eval_cases, CasesElsewhere):  # which were read from somewhere
        return
    problems = _unread(eval_set, ())
    for place, case in enumerate(eval_set.eval_cases):
        at: Steps = ("eval_cases", place)
        problems += _unread(case, at)
        for index, turn in enumerate(case.conversation or ()):
            problems += _unread(turn, (*at, "conversation", index))
            problems += _unread(turn.intermediate_data, (*at, "conversation", index, "intermediate_data"))
    if problems:
        raise EvalSetError(source, problems)


def _unread(model: Written | None, at: Steps) -> list[Problem]:
    others = model.__pydantic_extra__ if model else None
    if not others or model is None:
        return []
    places = {key: model.place_of(key, vars(model)) for key, value in others.items() if value is not None}
    return [UnknownKey((*at, key), (), belongs=place).problem("$") for key, place in places.items() if place]


def refuse_session(session: InitialSession | None, source: str) -> None:
    """Refuse a separate initial session, which only legacy files need.

    Raises:
        EvalSetError: if there is one.
    """
    if session is not None and session.model_fields_set:
        found = "an eval set in the current format with a separate initial session"
        raise EvalSetError(source, [Problem("$", found, "the session inside the cases, as session_input")])


def _case(eval_id: str, turns: tuple[_Turn, ...], session: InitialSession | None) -> EvalCase:
    conversation = tuple(map(_invocation, turns))
    if session is None or not session.model_fields_set:
        return EvalCase(eval_id=eval_id, conversation=conversation)
    start = SessionInput(app_name=session.app_name, user_id=session.user_id, state=session.state)
    return EvalCase(eval_id=eval_id, conversation=conversation, session_input=start)


_STEPS = frozenset({"expected_tool_use", "expected_intermediate_agent_responses"})


def _invocation(turn: _Turn) -> Invocation:
    """Return a legacy turn in today's format. What it does not say is left out, and not expected to be empty."""
    fields: Json = {"user_content": Content(role="user", parts=(Part(text=turn.query),))}
    if "reference" in turn.model_fields_set:
        fields["final_response"] = Content(role="model", parts=(Part(text=turn.reference),))
    if not _STEPS.isdisjoint(turn.model_fields_set):
        responses = turn.expected_intermediate_agent_responses
        fields["intermediate_data"] = IntermediateData(
            tool_uses=tuple(FunctionCall(name=use.tool_name, args=use.tool_input) for use in turn.expected_tool_use),
            intermediate_responses=tuple((response.author, (Part(text=response.text),)) for response in responses),
        )
    return Invocation(**fields)


_TODAY = {
    "reference": "final_response",
    "expected_tool_use": "intermediate_data.tool_uses",
    "expected_intermediate_agent_responses": "intermediate_data.intermediate_responses",
}
"""What legacy keys are called today."""


def with_todays_keys(case: EvalCase) -> tuple[EvalCase, list[tuple[Steps, str]]]:
    """Return a case whose turns have no legacy keys where today's say nothing, and each such key with its place today."""
    renamed: list[tuple[Steps, str]] = []
    conversation: list[Invocation] = []
    for index, turn in enumerate(case.conversation or ()):
        today, keys = _with_todays_keys(turn)
        conversation.append(today)
        renamed += [(("conversation", index, key), _TODAY[to_snake(key)]) for key in keys]
    return (case.model_copy(update={"conversation": tuple(conversation)}), renamed) if renamed else (case, [])


def _with_todays_keys(turn: Invocation) -> tuple[Invocation, list[str]]:
    keys = [key for key in turn.model_extra or () if to_snake(key) in _TODAY]
    if not keys:
        return turn, []
    others = dict(turn.model_extra or {})
    try:
        old = _Turn.model_validate({"query": "", **{key: others[key] for key in keys}})
    except ValidationError:  # so it says nothing that could be moved
        return turn, []
    today = _invocation(old)
    given = {name: value for name in ("final_response", "intermediate_data") if (value := getattr(today, name)) is not None}
    if any(getattr(turn, name) is not None for name in given):  # which of the two is meant would be a guess
        return turn, []
    rest = {key: value for key, value in others.items() if key not in keys}
    known = {name: getattr(turn, name) for name in turn.model_fields_set if name in type(turn).model_fields}
    return Invocation(**{**known, **given, **rest}), keys


def stem_of(path: Path) -> str:
    """Return a file's name without the endings that ADK gives its eval sets.

    >>> stem_of(Path("a/b.evalset.json")), stem_of(Path("c.test.json"))
    ('b', 'c')
    """
    return path.name.removesuffix(next((suffix for suffix in _SUFFIXES if path.name.endswith(suffix)), path.suffix))


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
    """Write an eval set in the current ADK format.

    A key that ADK refuses where it is is moved to a note of its case, and a warning is logged.

    Raises:
        UsageError: if the file cannot be written.
        OutputError: if the disk is full.
    """
    write_file(path, dumps(for_adk(eval_set, str(path))))


_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class _File:
    path: str | Path
    """Where it is; a URI is text, since a `Path` would spoil it."""
    selected: tuple[str, ...] = ()
    """The ids of the cases that are meant; none: all."""

    @property
    def folder(self) -> Path | None:
        """The folder in which the config is looked for; ``None`` for a URI."""
        if is_uri(self.path):
            return None
        path = Path(self.path)
        return path if path.is_dir() else path.parent


@dataclass(frozen=True, slots=True)
class JsonFile(_File):
    """A file that is no rows: an eval set of ADK, a recording or a result. Nobody has looked whether it is there."""

    def read(self) -> bytes:
        """Return its text without a byte order mark.

        Raises:
            EvalSetError: if there is no such file, or it cannot be read.
            UsageError: if reading the URI needs a package that is not installed.
        """
        return read_remote(str(self.path)) if is_uri(self.path) else read_text(Path(self.path))


@dataclass(frozen=True, slots=True)
class RowFiles(_File):
    """JSON Lines or Parquet, or a folder of either or of a run's parts."""

    def cases(self) -> CaseFiles:
        """Return its cases, which are read when they are asked for.

        Raises:
            EvalSetError: if there is no such file or it is of another kind.
            UsageError: if reading the URI needs a package that is not installed.
        """
        return open_cases(self.path)


@dataclass(frozen=True, slots=True)
class ConformanceFolder(_File):
    """A folder of tests of ``adk conformance``."""


File = JsonFile | RowFiles | ConformanceFolder


@dataclass(frozen=True, slots=True)
class Several:
    """Several files as one set."""

    files: tuple[File, ...]
    folder: Path | None = None
    """The folder whose tests they are; ``None``: each was named."""


@dataclass(frozen=True, slots=True)
class DatasetInput:
    """A dataset of MLflow."""

    dataset: Any
    stored: bool
    """Whether MLflow's store has its records; else it is one of `mlflow.data.from_adk_evalset`, which holds an eval set."""


Inputs = EvalSet | File | Several | DatasetInput


def open_inputs(source: Any) -> Inputs:
    """Return what is named as an eval set. Nothing is read yet.

    Args:
        source: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files or of conformance tests, several paths,
            or a dataset of MLflow;
            what this function has returned is returned as it is.

    Raises:
        UsageError: if it is nothing of the kind, a folder holds no test, or no id follows a colon.
    """
    if isinstance(source, Inputs):
        return source
    if isinstance(source, str | Path):
        source = [source]
    if isinstance(source, Sequence) and source and all(isinstance(path, str | Path) for path in source):
        files = _files(source)
        return files[0] if len(files) == 1 else Several(files, Path(open_file(source[0]).path) if len(source) == 1 else None)
    if type(source).__module__.startswith("mlflow.") and str(getattr(source, "dataset_id", "")).startswith("d-"):
        return DatasetInput(source, stored=True)
    if type(getattr(source, "source", None)).__name__ == "EvalSetSource" and hasattr(source, "eval_set"):
        return DatasetInput(source, stored=False)
    raise UsageError(f"an eval set is a path, a folder, several paths or an EvalSet, not {shown(source)}")


def _files(paths: Iterable[str | Path]) -> tuple[File, ...]:
    """Return each file once, with all that is selected of it. A folder of rows is one of them, unless there are tests in it."""
    files: dict[str | Path, File] = {}
    for named in paths:
        file = open_file(named)
        path = Path(file.path)
        tests = not is_uri(file.path) and path.is_dir() and (isinstance(file, JsonFile) or any(path.glob("*.test.json")))
        for one in [JsonFile(test, file.selected) for test in test_files(path)] if tests else [file]:
            place = one.path.resolve() if isinstance(one.path, Path) else one.path  # one file may be named in two ways
            known = files.setdefault(place, one)
            both = known.selected and one.selected  # none means all, and all plus some is all
            files[place] = replace(known, selected=tuple(dict.fromkeys((*known.selected, *one.selected))) if both else ())
    return tuple(files.values())


def open_file(named: str | Path) -> File:
    """Return the file, folder or URI that is named, with what is selected of it. Nothing is read yet.

    Raises:
        UsageError: if no id follows a colon.
    """
    path, selected = split_selection(named)
    return file_at(path, selected)


def file_at(path: str | Path, selected: tuple[str, ...] = ()) -> File:
    """Return what a path or URI names, which is no selection."""
    text, folder = str(path), RowFile(str(path))
    if is_uri(path):
        rows = not text.endswith(".json")
    else:
        rows = text.endswith(ENDINGS) or (folder.is_dir() and (is_run(folder) or bool(folder.children())))
    kind = RowFiles if rows else ConformanceFolder if not is_uri(path) and folder.is_dir() and has_tests(Path(path)) else JsonFile
    return kind(path, selected)


def load_eval_set(path: str | Path | File, *, initial_session: str | Path | None = None, mending: bool = False) -> EvalSet:
    """Return the eval set in a file of any ADK generation, or a selection of it, ``path:eval_1,eval_2``.

    Args:
        path: the file, of JSON, JSON Lines or Parquet, a folder of the latter two, an fsspec URI of any of these, or a folder of tests of
            ``adk conformance``; optionally followed by a colon and the ids to keep.
        initial_session: the separate session file of a legacy list of turns.
        mending: whether keys that nothing reads where they are come along, for `AdkForm` to move them.

    Raises:
        EvalSetError: with every problem of the file, such as a repeated id.
        UsageError: if a selected id is not in the file.
    """
    file = open_file(path) if isinstance(path, str | Path) else path
    if isinstance(file, ConformanceFolder):
        every = len(tests_in(Path(file.path))) if file.selected else 0
        return eval_set_of(Path(file.path), file.selected).as_picked_from(every)
    session = None if initial_session is None else parse(InitialSession, read_text(Path(initial_session)), str(initial_session))
    if isinstance(file, RowFiles):
        eval_set = replace(file.cases(), mending=mending).eval_set()
        refuse_session(session, str(file.path))
    else:
        eval_set = parse_eval_set(file.read(), str(file.path), stem=stem_of(Path(file.path)), session=session, mending=mending)
    return picked(eval_set, file.selected) if file.selected else eval_set


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
        raise UsageError(f"{path}: no eval id after the colon; wanted {file}:eval_1,eval_2")
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
        raise UsageError(f"eval set {eval_set.eval_set_id!r} has no case {named}{more} (it has {len(eval_set.eval_cases)} cases)")
    return eval_set.model_copy(update={"eval_cases": tuple(case for case in eval_set.eval_cases if case.eval_id in wanted)})


def picked(eval_set: EvalSet, eval_ids: Iterable[str]) -> EvalSet:
    """Return the set with only the cases that the user named, which remembers of how many.

    Raises:
        UsageError: naming the ids that the set does not hold.
    """
    whole = eval_set.picked_from or len(eval_set.eval_cases)
    return select(eval_set, eval_ids).as_picked_from(whole)


def test_files(folder: Path) -> list[Path]:
    """Return the ``*.test.json`` files of a folder and all below it, sorted.

    Raises:
        UsageError: if there is none.
    """
    found = sorted(path for path in folder.rglob("*.test.json") if path.is_file())
    if not found:
        raise UsageError(f"{folder}: found no *.test.json file and no spec.yaml in this folder or its subfolders")
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
        names = [eval_id if occurrences[eval_id] == 1 else f"{file}:{eval_id}" for eval_id in part.eval_ids]
        renamed = [case.model_copy(update={"eval_id": name}) for case, name in zip(part.eval_cases, names, strict=True)]
        cases += renamed
        ids[file] = [case.eval_id for case in renamed]
    if len(ids) < len(listed) or len({case.eval_id for case in cases}) < len(cases):
        raise UsageError(f"the cases in {', '.join(file for file, _ in listed)} have the same names; rename the files or the eval ids")
    whole = sum(part.picked_from or len(part.eval_cases) for _, part in listed)
    return EvalSet(eval_set_id=name, name=name, eval_cases=tuple(cases)).as_picked_from(whole), ids
