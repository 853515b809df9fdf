"""What ADK itself makes of our files: the real google-adk is the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from mlflow_adk_eval.config.eval_config import load_config
from mlflow_adk_eval.evalset.conversation import dumps_result, parse_result
from mlflow_adk_eval.evalset.conversion import migrate
from mlflow_adk_eval.evalset.files import dumps, load_eval_set, parse_eval_set, write_eval_set
from mlflow_adk_eval.evalset.models import EvalSet, eval_set_digest
from tests.evalset.test_result import METRIC, result_of
from tests.strategies import QUICK, damaged, eval_sets, invocations, legacy_cases, legacy_turns

manager = pytest.importorskip("google.adk.evaluation.local_eval_sets_manager", reason="the extra [adk] is not installed")

from google.adk.errors.not_found_error import NotFoundError  # noqa: E402 - after the check that it is there
from google.adk.evaluation.eval_set import EvalSet as AdkEvalSet  # noqa: E402

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "adk"
FILES = sorted(path for path in DATA.rglob("*.json") if path.name.endswith((".test.json", ".evalset.json")))
CONFIGS = sorted(DATA.rglob("test_config.json"))
INCIDENTAL = {"invocation_id", "creation_timestamp", "eval_set_id", "name"}


def _named(files: list[Path]) -> list[Any]:
    """Return a parameter for each sample file; a skipped one where there is none."""
    absent = pytest.param(None, marks=pytest.mark.skip(reason="ADK's sample files are not at ../shared/data/adk beside the project"))
    return [pytest.param(file, id=file.relative_to(DATA).as_posix()) for file in files] or [absent]


def adk_load(text: str, tmp_path: Path, name: str = "adk.evalset.json") -> Any:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return manager.load_eval_set_from_file(str(file), "s")


def demands(adk_set: Any, *, ids: bool = True) -> Any:
    """Return what an eval set of ADK's demands, without what it draws anew at each load."""
    return _without(adk_set.model_dump(mode="json"), INCIDENTAL if ids else INCIDENTAL | {"eval_id"})


def _without(value: Any, keys: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(item, keys) for key, item in value.items() if key not in keys}
    return [_without(item, keys) for item in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adk")


@pytest.mark.needs("google-adk", "2.13")
@QUICK
@given(eval_sets())
def test_adk_sees_the_same_in_what_we_wrote_as_in_what_we_read(folder: Path, value: Any) -> None:
    text = json.dumps(value)
    ours = parse_eval_set(text.encode(), "set.json", stem="set")
    file = folder / "ours.evalset.json"
    write_eval_set(ours, file)
    assert manager.load_eval_set_from_file(str(file), "s") == adk_load(text, folder)


@pytest.mark.needs("google-adk", "2.13")
@QUICK
@given(eval_sets())
def test_we_see_the_same_in_what_adk_wrote_as_in_what_it_read(folder: Path, value: Any) -> None:
    """ADK saves with nulls or without, and with url-safe base64. It spells personas out, which is no longer what the file said."""
    for case in value["eval_cases"]:
        case.get("conversation_scenario", {}).pop("user_persona", None)
    text = json.dumps(value)
    theirs = adk_load(text, folder)
    expected = eval_set_digest(parse_eval_set(text.encode(), "x", stem="x"))
    sparse = theirs.model_dump_json(indent=2, exclude_unset=True, exclude_defaults=True, exclude_none=True)
    for saved in (theirs.model_dump_json(), theirs.model_dump_json(by_alias=True), sparse):
        assert eval_set_digest(parse_eval_set(saved.encode(), "x", stem="x")) == expected


@QUICK
@given(damaged(eval_sets(min_cases=1)))
def test_what_adk_accepts_we_accept_with_the_same_meaning(folder: Path, value: Any) -> None:
    """But for an id that is there twice. A field whose value is null is lost, as when ADK saves it."""
    text = json.dumps(value)
    theirs = accepted_by_adk(text)
    if theirs is None or len({case.eval_id for case in theirs.eval_cases}) < len(theirs.eval_cases):
        return  # as most are; having hypothesis replace them would take minutes
    ours = parse_eval_set(text.encode(), "set.json", stem="set")
    assert said(adk_load(dumps(ours), folder)) == said(theirs)


def said(adk_set: Any) -> Any:
    saved = adk_set.model_dump(exclude_none=True)
    for case in saved["eval_cases"]:
        case.setdefault("final_session_state", {})
    return saved


def accepted_by_adk(text: str) -> Any:
    try:
        return AdkEvalSet.model_validate_json(text)
    except (ValueError, NotFoundError, AttributeError, UserWarning):  # the last two for an enum that is a list, or unheard of
        return None


def filled(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return legacy turns that say all that ADK takes for said."""
    return [{"reference": "", "expected_tool_use": [], **turn} for turn in turns]


@QUICK
@given(legacy_cases())
def test_a_legacy_list_of_cases_migrates_as_adk_converts_it(folder: Path, value: Any) -> None:
    theirs = adk_load(json.dumps(value), folder, "old.evalset.json")
    (folder / "old.evalset.json").write_text(json.dumps([{**case, "data": filled(case["data"])} for case in value]), encoding="utf-8")
    migrate(folder / "old.evalset.json", folder / "new.evalset.json")
    assert demands(manager.load_eval_set_from_file(str(folder / "new.evalset.json"), "s")) == demands(theirs)


@QUICK
@given(legacy_turns())
def test_a_legacy_list_of_turns_migrates_as_adk_converts_it(folder: Path, value: Any) -> None:
    theirs = manager.convert_eval_set_to_pydantic_schema("s", [{"name": "the path", "data": value, "initial_session": {}}])
    (folder / "old.test.json").write_text(json.dumps(filled(value)), encoding="utf-8")
    migrate(folder / "old.test.json", folder / "new.test.json")
    assert demands(manager.load_eval_set_from_file(str(folder / "new.test.json"), "s"), ids=False) == demands(theirs, ids=False)


@QUICK
@given(legacy_turns())
def test_what_a_legacy_turn_does_not_say_is_left_out_where_adk_expects_it_to_be_empty(folder: Path, value: Any) -> None:
    theirs = manager.convert_eval_set_to_pydantic_schema("s", [{"name": "x", "data": value, "initial_session": {}}])
    (folder / "old.test.json").write_text(json.dumps(value), encoding="utf-8")
    (ours,) = load_eval_set(folder / "old.test.json").eval_cases
    for old, turn, other in zip(value, ours.conversation or (), theirs.eval_cases[0].conversation, strict=True):
        steps = {"expected_tool_use", "expected_intermediate_agent_responses"} & old.keys()
        assert (turn.final_response is None, turn.intermediate_data is None) == ("reference" not in old, not steps)
        assert other.final_response.parts[0].text == old.get("reference", "")
        assert len(other.intermediate_data.tool_uses) == len(old.get("expected_tool_use", ()))


@pytest.mark.needs("google-adk", "2.13")
@QUICK
@given(invocations())
def test_adk_reads_the_results_that_we_write(turn: Any) -> None:
    from google.adk.evaluation.eval_result import EvalSetResult

    value = result_of(turn, turn)
    written = dumps_result(parse_result(json.dumps(value).encode(), "r.json"))
    assert EvalSetResult.model_validate_json(written) == EvalSetResult.model_validate_json(json.dumps(value))


@pytest.mark.needs("google-adk", "2.13")
def test_we_read_the_results_that_adk_writes() -> None:
    from google.adk.evaluation.eval_result import EvalSetResult

    theirs = EvalSetResult.model_validate(result_of({"user_content": {"parts": [{"text": "hi"}]}}, metric=METRIC | {"score": float("nan")}))
    for saved in (theirs.model_dump_json(indent=2), theirs.model_dump_json(by_alias=True), json.dumps(theirs.model_dump_json())):
        (case,) = parse_result(saved.encode(), "r.json").eval_case_results
        assert [turn.user_text for turn in case.actual] == ["hi"]
        assert case.overall_eval_metric_results[0].score is None
        assert case.session_details is not None
        assert case.session_details["state"] == {"room": None}


@pytest.mark.needs("google-adk", "1.39")
def test_the_persona_that_adk_expands_is_read_as_an_object(tmp_path: Path) -> None:
    scenario = {"starting_prompt": "hi", "conversation_plan": "p", "user_persona": "NOVICE"}
    theirs = adk_load(json.dumps({"eval_set_id": "s", "eval_cases": [{"eval_id": "c", "conversation_scenario": scenario}]}), tmp_path)
    ours = parse_eval_set(theirs.model_dump_json().encode(), "x", stem="x")
    assert adk_load(dumps(ours), tmp_path) == theirs


@pytest.mark.needs("google-adk", "1.39")
def test_what_adk_does_where_we_differ(tmp_path: Path) -> None:
    """The other side of four differences: a byte order mark, camelCase at the top, the empty list of events, an unknown persona."""
    turn = {"user_content": {}, "intermediate_data": {"invocation_events": []}}
    value = {"eval_set_id": "s", "eval_cases": [{"eval_id": "c", "conversation": [turn]}]}
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(value).encode())
    with pytest.raises(json.JSONDecodeError):
        manager.load_eval_set_from_file(str(tmp_path / "bom.json"), "s")
    with pytest.raises(TypeError, match="string indices"):
        adk_load(json.dumps({"evalSetId": "s", "evalCases": []}), tmp_path)
    scenario = {"starting_prompt": "hi", "conversation_plan": "p", "user_persona": "novice"}
    with pytest.raises(NotFoundError):
        adk_load(json.dumps({"eval_set_id": "s", "eval_cases": [{"eval_id": "c", "conversation_scenario": scenario}]}), tmp_path)
    saved = adk_load(json.dumps(value), tmp_path).model_dump_json(exclude_unset=True, exclude_defaults=True, exclude_none=True)
    assert json.loads(saved)["eval_cases"][0]["conversation"][0]["intermediate_data"] == {}


@pytest.mark.parametrize("file", _named(FILES))
def test_each_sample_of_adk_loads_migrates_and_round_trips(file: Path, tmp_path: Path) -> None:
    loaded = load_eval_set(file)
    assert migrate(file, tmp_path / "new.evalset.json") == len(loaded.eval_cases)
    again = load_eval_set(tmp_path / "new.evalset.json")
    assert again == _without_nulls(loaded)
    assert eval_set_digest(loaded) == eval_set_digest(again)
    for rows in ("new.jsonl", "new.parquet"):
        migrate(file, tmp_path / rows)
        migrate(tmp_path / rows, tmp_path / "back.evalset.json")
        assert (tmp_path / "back.evalset.json").read_bytes() == (tmp_path / "new.evalset.json").read_bytes()
    theirs = manager.load_eval_set_from_file(str(tmp_path / "new.evalset.json"), "s")
    assert [case.eval_id for case in theirs.eval_cases] == list(loaded.eval_ids)
    text = file.read_text(encoding="utf-8")
    if text.lstrip().startswith("{"):
        assert theirs == adk_load(text, tmp_path)
    else:
        value = json.loads(text)  # in which each turn says all
        cases = value if "data" in value[0] else [{"name": "x", "data": value}]
        assert demands(theirs, ids=False) == demands(manager.convert_eval_set_to_pydantic_schema("s", cases), ids=False)


def _without_nulls(eval_set: EvalSet) -> EvalSet:
    return parse_eval_set(dumps(eval_set).encode(), "x", stem="x")


@pytest.mark.parametrize("file", _named(CONFIGS))
def test_each_sample_config_means_to_us_what_it_means_to_adk(file: Path) -> None:
    from google.adk.evaluation.eval_config import get_evaluation_criteria_or_default

    theirs = get_evaluation_criteria_or_default(str(file)).criteria
    assert {name: settings.threshold for name, settings in load_config(file).criteria.items()} == theirs


def test_a_sample_with_its_session_file(tmp_path: Path) -> None:
    folder = DATA / "samples" / "customer-service" / "eval"
    if not folder.is_dir():
        pytest.skip("ADK's sample eval sets are not at ../shared/data/adk beside the project")
    old, session = folder / "eval_data" / "full_conversation.test.json", folder / "sessions" / "123.session.json"
    migrate(old, tmp_path / "new.test.json", initial_session=session)
    theirs = manager.convert_eval_set_to_pydantic_schema(
        "s", [{"name": "x", "data": json.loads(old.read_text()), "initial_session": json.loads(session.read_text())}]
    )
    assert demands(manager.load_eval_set_from_file(str(tmp_path / "new.test.json"), "s"), ids=False) == demands(theirs, ids=False)
