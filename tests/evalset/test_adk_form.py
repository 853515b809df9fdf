"""The law of writing: what we write, google-adk loads and we read; nothing is lost, and what moved is said."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from mlflow_adk_eval.cli.main import cli
from mlflow_adk_eval.evalset.adk_form import NOTES
from mlflow_adk_eval.evalset.conversation import dumps_result, parse_result
from mlflow_adk_eval.evalset.conversion import migrate, write_cases
from mlflow_adk_eval.evalset.files import load_eval_set, parse_eval_set, write_eval_set
from mlflow_adk_eval.evalset.genai_fields import RAW_FIELDS
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.evalset.rows import CasesInMemory, open_cases
from mlflow_adk_eval.evalset.storage import EvalStorage, cases_of_scenarios
from tests.evalset.test_result import result_of
from tests.strategies import QUICK, eval_sets, invocations, json_values, legacy_cases, legacy_turns, scenarios

adk = pytest.importorskip("google.adk.evaluation.eval_set", reason="the extra [adk] is not installed")
pytestmark = pytest.mark.needs("google-adk", "2.13")

OTHERS = ("note", "latencyMs", "id", "name", "from_adk_9", "tags_of_turn", "_draft")
"""Keys that ADK does not know; ``name`` and ``id`` are fields of some objects, where they are not added."""
UNREAD = ("expected_keywords", "golden", "expectedToolUse", "reference")
_USER_DATA = {"args", "response", "state", "final_session_state", "part_metadata", "tool_declarations", "note", "agent_details"}


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Return all objects of an eval set that are models."""
    if isinstance(value, list):
        return [found for item in value for found in objects_in(item)]
    if not isinstance(value, dict):
        return []
    inner = [found for key, item in value.items() if key not in _USER_DATA for found in objects_in(item)]
    agents = value.get("agent_details")
    details = list(agents.values()) if isinstance(agents, dict) else []
    return [value, *inner, *details]


@st.composite
def with_others(draw: st.DrawFn, values: st.SearchStrategy[Any], names: tuple[str, ...] = OTHERS) -> Any:
    """Values with unknown keys anywhere."""
    value = draw(values)
    objects = objects_in(value)
    for _ in range(draw(st.integers(1, 4)) if objects else 0):
        holder = draw(st.sampled_from(objects))
        name = draw(st.sampled_from(names))
        known = {"id", "name"} & {name} and {"args", "response", "author", "app_name", "behaviors", "eval_cases"} & holder.keys()
        if name not in holder and not known and set(holder) != {"name"}:
            holder[name] = draw(json_values().filter(lambda item: item is not None))
    return value


def loaded_by_adk(path: Path) -> Any:
    return adk.EvalSet.model_validate_json(path.read_text(encoding="utf-8"))


def said_in(value: Any) -> list[str]:
    """Return all leaves of JSON with their innermost key, so that what moved is found and what is lost is missed."""
    if isinstance(value, dict):
        return sorted(leaf for key, item in value.items() for leaf in (said_in(item) or [f"{key.rsplit('.')[-1]}: empty"]))
    if isinstance(value, list):
        return sorted(leaf for item in value for leaf in said_in(item))
    return [] if value is None else [json.dumps(value)]


def by_write(eval_set: EvalSet, folder: Path) -> Path:
    write_eval_set(eval_set, folder / "written.evalset.json")
    return folder / "written.evalset.json"


def by_source(eval_set: EvalSet, folder: Path) -> Path:
    write_cases(CasesInMemory(eval_set), folder / "cases.evalset.json")
    return folder / "cases.evalset.json"


def by_rows(eval_set: EvalSet, folder: Path) -> Path:
    write_cases(CasesInMemory(eval_set), folder / "cases.jsonl")
    migrate(folder / "cases.jsonl", folder / "back.evalset.json")
    return folder / "back.evalset.json"


def by_storage(eval_set: EvalSet, folder: Path) -> Path:
    (folder / "agent").mkdir(exist_ok=True)
    storage = EvalStorage(folder / "agent")
    Path(storage.file("kept")).unlink(missing_ok=True)
    storage.create("kept")
    storage.add("kept", eval_set.eval_cases)
    return Path(storage.file("kept"))


WRITERS: list[Callable[[EvalSet, Path], Path]] = [by_write, by_source, by_rows, by_storage]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("form")


@pytest.mark.parametrize("write", WRITERS)
@QUICK
@given(value=with_others(eval_sets(min_cases=1)) | eval_sets())
def test_adk_loads_what_we_write_and_we_read_it(folder: Path, write: Any, value: Any) -> None:
    eval_set = parse_eval_set(json.dumps(value).encode(), "set.json", stem="set")
    path = write(eval_set, folder)
    theirs = loaded_by_adk(path)
    assert [case.eval_id for case in theirs.eval_cases] == list(eval_set.eval_ids)
    again = load_eval_set(path)
    for before, after in zip(eval_set.eval_cases, again.eval_cases, strict=True):
        was, is_now = (case.model_dump(mode="json", exclude_unset=True, exclude_none=True) for case in (before, after))
        before_moving, after_moving = Counter(said_in(was)), Counter(said_in(is_now))
        assert not before_moving - after_moving
        emptied = after_moving - before_moving  # objects whose only key moved
        assert all(leaf.endswith(": empty") for leaf in emptied)


@QUICK
@given(value=with_others(eval_sets(min_cases=1), (*OTHERS, *UNREAD)))
def test_migrating_takes_what_nothing_reads_along_and_says_so(folder: Path, value: Any) -> None:
    """Whatever `migrate` was given, its result is loaded by ADK and by us, without a single value less."""
    (folder / "old.evalset.json").write_text(json.dumps(value), encoding="utf-8")
    for name in ("new.evalset.json", "new.jsonl", "new.parquet"):
        migrate(folder / "old.evalset.json", folder / name)
        assert load_eval_set(folder / name).eval_ids == tuple(case["eval_id"] for case in value["eval_cases"])
    loaded_by_adk(folder / "new.evalset.json")
    assert list(open_cases(folder / "new.jsonl").batches())


@QUICK
@given(value=legacy_turns() | legacy_cases())
def test_legacy_files_of_both_kinds_are_loaded_once_migrated(folder: Path, value: Any) -> None:
    (folder / "old.test.json").write_text(json.dumps(value), encoding="utf-8")
    migrate(folder / "old.test.json", folder / "new.test.json")
    assert len(loaded_by_adk(folder / "new.test.json").eval_cases) == len(load_eval_set(folder / "new.test.json").eval_cases)


@QUICK
@given(value=st.lists(with_others(scenarios()), min_size=1, max_size=3))
def test_scenarios_with_unknown_keys_become_cases_that_adk_loads(folder: Path, value: Any) -> None:
    (folder / "scenarios.json").write_text(json.dumps({"scenarios": value}), encoding="utf-8")
    path = by_storage(EvalSet(eval_set_id="s", eval_cases=cases_of_scenarios(folder / "scenarios.json")), folder)
    assert all(case.conversation_scenario for case in loaded_by_adk(path).eval_cases)


@QUICK
@given(turn=with_others(invocations()))
def test_adk_loads_the_results_that_we_write(turn: Any) -> None:
    from google.adk.evaluation.eval_result import EvalSetResult

    value = result_of(turn, {**turn, "draft": None})
    written = dumps_result(parse_result(json.dumps(value).encode(), "r.json"))
    assert len(EvalSetResult.model_validate_json(written).eval_case_results) == 1
    (case,) = parse_result(written.encode(), "r.json").eval_case_results
    assert len(case.actual) == 2


def test_usage_that_a_newer_model_reports_is_kept_in_the_note(tmp_path: Path) -> None:
    usage = {"promptTokenCount": 3, "dreamTokenCount": 5, "cacheTokensDetails": [{"modality": "TEXT", "mood": "good"}]}
    event = {"author": "a", "usage_metadata": usage}
    turn = {"user_content": {"parts": [{"text": "hi"}]}, "intermediate_data": {"invocation_events": [event]}}
    value = {"eval_set_id": "s", "eval_cases": [{"eval_id": "a", "conversation": [turn]}]}
    write_eval_set(parse_eval_set(json.dumps(value).encode(), "x", stem="x"), tmp_path / "new.json")
    loaded_by_adk(tmp_path / "new.json")
    (case,) = load_eval_set(tmp_path / "new.json").eval_cases
    at = "$.conversation[0].intermediate_data.invocation_events[0].usage_metadata"
    notes = {f"{at}.dreamTokenCount": 5, f"{at}.cacheTokensDetails[0].mood": "good"}
    assert (case.model_extra or {})[NOTES] == notes


def test_what_genai_knows_of_raw_fields_is_what_this_package_takes_for_known() -> None:
    def known(kind: Any, fields: Any) -> Iterator[str]:
        for name, inner in (fields or {}).items():
            if name not in kind.model_fields:
                yield f"{kind.__name__}.{name}"
                continue
            models = _models(kind.model_fields[name].annotation)
            yield from known(models[0], inner) if inner else ()

    from google.genai import types

    owners = {"usage_metadata": types.GenerateContentResponseUsageMetadata, "grounding_metadata": types.GroundingMetadata}
    for name, fields in RAW_FIELDS.items():
        holder = {"partial_args": types.FunctionCall, "parts": types.FunctionResponse}.get(name, types.Part)
        kind = owners.get(name) or _models(holder.model_fields[name].annotation)[0]
        assert list(known(kind, fields)) == []


def _models(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


def test_what_moved_is_said_and_where_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    turn = {"user_content": {"parts": [{"text": "hi"}]}, "note": {"by": "anna"}}
    value = {"eval_set_id": "s", "eval_cases": [{"eval_id": "a", "conversation": [turn], "tags": ["smoke"]}]}
    with caplog.at_level(logging.WARNING):
        write_eval_set(parse_eval_set(json.dumps(value).encode(), "x", stem="x"), tmp_path / "new.json")
    assert f"note now, '{NOTES}':\n  case 'a', $.conversation[0].note" in caplog.text
    (case,) = json.loads((tmp_path / "new.json").read_text())["eval_cases"]
    assert case[NOTES] == {"$.conversation[0].note": {"by": "anna"}}
    assert case["tags"] == ["smoke"]
    caplog.clear()
    write_eval_set(load_eval_set(tmp_path / "new.json"), tmp_path / "again.json")
    assert not caplog.text
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "new.json").read_bytes()


def test_a_legacy_key_in_a_turn_of_today_gets_its_place_when_migrated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    use = {"tool_name": "find", "tool_input": {"number": 7}}
    turn = {"user_content": {"parts": [{"text": "hi"}]}, "expectedToolUse": [use], "expected_keywords": ["depot"]}
    file = tmp_path / "old.evalset.json"
    file.write_text(json.dumps({"eval_set_id": "s", "eval_cases": [{"eval_id": "a", "conversation": [turn]}]}))
    ended = CliRunner().invoke(cli, ["migrate", str(file), str(tmp_path / "new.evalset.json")])
    assert ended.exit_code == 0
    assert "$.conversation[0].expectedToolUse is intermediate_data.tool_uses" in caplog.text
    assert "$.conversation[0].expected_keywords" in caplog.text
    (case,) = load_eval_set(tmp_path / "new.evalset.json").eval_cases
    assert case.conversation
    assert [(call.name, call.args) for call in case.conversation[0].tool_calls] == [("find", {"number": 7})]


@pytest.mark.parametrize("both", [{"final_response": {"parts": [{"text": "other"}]}}, {}])
def test_two_answers_to_one_question_are_not_guessed_from(tmp_path: Path, both: dict[str, Any]) -> None:
    turn = {"user_content": {"parts": [{"text": "hi"}]}, "reference": "this" if both else 5, **both}
    file = tmp_path / "old.evalset.json"
    file.write_text(json.dumps({"eval_set_id": "s", "eval_cases": [{"eval_id": "a", "conversation": [turn]}]}))
    migrate(file, tmp_path / "new.evalset.json")
    (case,) = load_eval_set(tmp_path / "new.evalset.json").eval_cases
    assert (case.model_extra or {})[NOTES] == {"$.conversation[0].reference": turn["reference"]}
