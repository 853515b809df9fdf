"""Where ADK keeps the eval sets of an agent and the results on them: the agent's folder, or a bucket (``--eval-storage-uri``).

The places and ids are ADK's, so that ``adk eval``, ``adk eval_set`` and ``adk web`` find what is kept here, and the other way round.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow_adk_eval.errors import EvalSetError, Problem, UsageError
from mlflow_adk_eval.evalset.adk_form import for_adk
from mlflow_adk_eval.evalset.conversation import EvalSetResult, dumps_result
from mlflow_adk_eval.evalset.files import dumps, load_eval_set
from mlflow_adk_eval.evalset.models import ConversationScenario, EvalCase, EvalSet, SessionInput, Written
from mlflow_adk_eval.evalset.parse import parse, read_text
from mlflow_adk_eval.evalset.row_files import UNREADABLE, located
from mlflow_adk_eval.writing import write_file

_BUCKET = re.compile(r"(gs://[^/]+)(/.*)?")
_ID = re.compile(r"\w+", re.ASCII)


class _Scenarios(Written):
    """What ``--scenarios-file`` names."""

    scenarios: tuple[ConversationScenario, ...]


def agent_folder(agent: str | Path) -> Path:
    """Return the path of an agent; of its ``__init__.py``, which ADK's documentation names, the folder that this is in."""
    path = Path(agent)
    return path.parent if path.name == "__init__.py" and path.is_file() else path


@dataclass(frozen=True, slots=True)
class EvalStorage:
    """The eval sets and results of one agent."""

    agent: str
    """The agent's folder, the ``__init__.py`` in it, or its module."""
    uri: str | None = None
    """``gs://bucket``, of which ADK minds the bucket alone, or a folder as fsspec names it; ``None``: the agent's folder."""

    @property
    def app_name(self) -> str:
        """What ADK calls the agent."""
        return agent_folder(self.agent).resolve().name

    def file(self, eval_set_id: str) -> str:
        """Return the path or URI of an eval set."""
        return self._place("eval_sets" if self.uri else "", f"{eval_set_id}.evalset.json")

    def create(self, eval_set_id: str) -> str:
        """Keep a new eval set without cases, and return where.

        Raises:
            UsageError: if there is one already, the id is not of ASCII letters, digits and underscores, or nothing can be written there.
        """
        if not _ID.fullmatch(eval_set_id):
            raise UsageError(f"{eval_set_id!r}: wanted ASCII letters, digits and underscores, as ADK does")
        if self.uri is None and not agent_folder(self.agent).is_dir():
            raise UsageError(f"{self.agent}: wanted the agent's folder, where the eval set is stored")
        if self.holds(eval_set_id):
            raise UsageError(f"{self.file(eval_set_id)} exists already")
        eval_set = EvalSet(eval_set_id=eval_set_id, name=eval_set_id, eval_cases=(), creation_timestamp=time.time())
        return _written(self.file(eval_set_id), dumps(eval_set))

    def add(self, eval_set_id: str, cases: Sequence[EvalCase]) -> tuple[str, ...]:
        """Add cases to an eval set, but those whose id it has, and return the ids of the new ones.

        Raises:
            EvalSetError: if there is no such eval set.
            UsageError: if it cannot be written.
        """
        eval_set = load_eval_set(self.file(eval_set_id))
        known = set(eval_set.eval_ids)
        new = {case.eval_id: case for case in cases if case.eval_id not in known}
        if new:
            more = eval_set.model_copy(update={"eval_cases": (*eval_set.eval_cases, *new.values())})
            file = self.file(eval_set_id)
            _written(file, dumps(for_adk(more, file)))
        return tuple(new)

    def keep_result(self, result: EvalSetResult) -> str:
        """Keep a result where ADK looks for its history, and return where.

        Raises:
            UsageError: if it cannot be written.
        """
        name = f"{result.eval_set_result_name}.evalset_result.json"
        return _written(self._place("eval_history" if self.uri else ".adk/eval_history", name), dumps_result(result))

    def holds(self, eval_set_id: str) -> bool:
        """Whether there is an eval set of this id.

        Raises:
            UsageError: if that cannot be told.
        """
        file, place = self.file(eval_set_id), None
        try:
            place = located(file)
            return bool(place.system.exists(place.path)) if place.system else Path(place.path).is_file()
        except UNREADABLE as error:
            raise _failed(file, "read", error) from None

    def _place(self, folder: str, name: str) -> str:
        if self.uri is None:
            return str(Path(agent_folder(self.agent), folder, name))
        bucket = _BUCKET.fullmatch(self.uri)
        return f"{bucket[1] if bucket else self.uri.rstrip('/')}/{self.app_name}/evals/{folder}/{name}"


def _written(file: str, text: str) -> str:
    try:
        place = located(file)
        if place.system:
            if "gs" not in place.system.protocol:  # a bucket has no folders, and is not made
                place.system.makedirs(place.path.rpartition("/")[0], exist_ok=True)
            place.system.pipe_file(place.path, text.encode())
        else:
            Path(place.path).parent.mkdir(parents=True, exist_ok=True)
            write_file(place.path, text)
    except (*UNREADABLE, EvalSetError) as error:
        raise _failed(file, "written", error) from None
    return file


def _failed(file: str, what: str, error: Exception) -> UsageError:
    return UsageError(f"{file}: cannot be {what}: {str(error) or type(error).__name__}")


def cases_of_scenarios(scenarios: Path, session_input: Path | None = None) -> tuple[EvalCase, ...]:
    """Return a case for each of ADK's conversation scenarios.

    Args:
        scenarios: a file of JSON, ``{"scenarios": [...]}``.
        session_input: a file with the session that all begin in.

    Raises:
        EvalSetError: with every problem of a file.
    """
    found = parse(_Scenarios, read_text(scenarios), str(scenarios)).scenarios
    session = None if session_input is None else parse(SessionInput, read_text(session_input), str(session_input))
    if not found:
        raise EvalSetError(str(scenarios), [Problem("$.scenarios", "an empty list", "at least one scenario")])
    cases: list[EvalCase] = []
    for scenario in found:
        # The id that ADK gives a scenario without a persona; with one, it hashes its own words for that, too.
        dumped = {"user_persona": None} | scenario.model_dump(mode="json")
        eval_id = hashlib.sha256(json.dumps(dumped, sort_keys=True).encode()).hexdigest()[:8]
        cases.append(EvalCase(eval_id=eval_id, conversation_scenario=scenario, session_input=session, creation_timestamp=time.time()))
    return tuple(cases)
