"""A key that stands twice in one object is an error with its path, in whatever of ours is JSON or YAML; nothing else is one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from mlflow_adk_eval.agents.recordings import load_recording
from mlflow_adk_eval.analysis.calibration.bench import load_items
from mlflow_adk_eval.analysis.calibration.calibration import load_calibration
from mlflow_adk_eval.config.eval_config import load_config
from mlflow_adk_eval.errors import EvalSetError, InputError
from mlflow_adk_eval.evalset.conformance import eval_set_of
from mlflow_adk_eval.evalset.conversation import parse_result
from mlflow_adk_eval.evalset.files import load_eval_set
from mlflow_adk_eval.evalset.parse import RepeatedKeyError, from_json, from_lenient_json
from mlflow_adk_eval.evalset.rows import open_cases
from mlflow_adk_eval.evalset.storage import cases_of_scenarios
from mlflow_adk_eval.evalset.world import parse_world
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.shapes.rows import row_of
from tests.strategies import QUICK

TURN = '{"user_content": {"parts": [{"text": "q"}]}, "final_response": {"parts": [{"text": "x"}]}}'
KEYS = st.sampled_from(('"a"', '"b"', '"\\u0061"', '"a "', '"a\\\\"', '"\\""', '":"', '""', '"é"', '"\\u00e9"'))
SPACES = st.sampled_from(("", " ", "\n", " \t"))


def scalars() -> st.SearchStrategy[str]:
    """Texts of JSON values, among them many that look like keys."""
    strings = st.sampled_from(('":"', '"\\":"', '"a\\\\"', '"{\\"a\\":1,\\"a\\":2}"', '" : "', '""'))
    return strings | st.sampled_from(("1", "-0.0", "1e400", "NaN", "Infinity", "null", "true", "9" * 30))


def json_texts() -> st.SearchStrategy[str]:
    """Texts of JSON, with and without repeated keys."""

    def containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        entry = st.tuples(KEYS, SPACES, inner).map(lambda parts: f"{parts[0]}{parts[1]}:{parts[1]}{parts[2]}")
        objects = st.lists(entry, max_size=4).map(lambda entries: "{" + ", ".join(entries) + "}")
        return objects | st.lists(inner, max_size=3).map(lambda items: "[" + ",".join(items) + "]")

    return st.recursive(scalars(), containers, max_leaves=12)


def repeats(text: str) -> bool:
    """Whether Python's own parser finds an object with a key twice."""
    found: list[bool] = []

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.append(len(dict(pairs)) < len(pairs))
        return dict(pairs)

    json.loads(text, object_pairs_hook=look)
    return any(found)


@QUICK
@given(json_texts())
def test_a_key_is_refused_if_and_only_if_it_stands_twice(text: str) -> None:
    for reader in (from_json, from_lenient_json):
        if repeats(text):
            with pytest.raises(RepeatedKeyError):
                reader(text)
        else:
            assert repr(reader(text)) == repr(json.loads(text))


def test_every_repeated_key_is_named_by_its_path() -> None:
    text = '{"a": [{"b": 1, "b": 2}, {"c": {"d d": 1, "\\u0064 d": {"e": 1, "e": 1}}}], "a": 3, "a": 4}'
    with pytest.raises(RepeatedKeyError) as refused:
        from_json(text)
    paths = [problem.path for problem in refused.value.problems()]
    assert paths == ["$.a", "$.a[0].b", "$.a[1].c['d d']", "$.a[1].c['d d'].e"]


def test_a_text_that_is_no_json_either_is_just_that() -> None:
    with pytest.raises(ValueError, match="EOF while parsing an object") as refused:
        from_json('{"a": 1, "a": 2')
    assert not isinstance(refused.value, RepeatedKeyError)


def _written(name: str, text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_text(text, encoding="utf-8")
        return folder / name

    return write


def _zipped(folder: Path) -> Path:
    path = folder / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(f'{{"eval_id": "a", "conversation": [{TURN}]}}\n{{"eval_id": "b", "eval_id": "b"}}\n'.encode()))
    return path


def _parquet(folder: Path) -> Path:
    path = folder / "rows.parquet"
    parquet.write_table(pa.table({"eval_id": ["a"], "conversation": [f'[{TURN[:-1]}, "final_response": null}}]']}), path)
    return path


def _conformance(folder: Path) -> Path:
    (folder / "core" / "one").mkdir(parents=True)
    spec = "description: d\nagent: a\nuser_messages:\n- text: hi\n  text: ho\n"
    (folder / "core" / "one" / "spec.yaml").write_text(spec)
    return folder


SET = f'{{"eval_set_id": "s", "eval_cases": [{{"eval_id": "a", "eval_id": "b", "conversation": [{TURN}]}}]}}'
STATE = f'{{"eval_set_id": "s", "eval_cases": [{{"eval_id": "a", "conversation": [{TURN}], "final_session_state": {{"x": 1, "x": 2}}}}]}}'
READERS: list[Any] = [
    (_written("s.evalset.json", SET), load_eval_set, "$.eval_cases[0].eval_id"),
    (_written("s.evalset.json", STATE), load_eval_set, "$.eval_cases[0].final_session_state.x"),
    (_written("s.test.json", '[{"query": "q", "reference": "r", "reference": ""}]'), load_eval_set, "$[0].reference"),
    (_written("s.jsonl", '{"eval_set_id": "s", "eval_set_id": "t"}\n'), load_eval_set, "line 1: $.eval_set_id"),
    (_zipped, load_eval_set, "line 2: $.eval_id"),
    (_parquet, load_eval_set, "row 1: $.conversation[0].final_response"),
    (_conformance, eval_set_of, "$.user_messages[0].text"),
    (_written("c.json", '{"criteria": {"safety_v1": 1, "safety_v1": 0}}'), load_config, "$.criteria.safety_v1"),
    (_written("p.json", '{"rules": {}, "rules": {}}'), load_policy, None),
    (_written("p.yaml", "rules: {}\nrules: {}"), load_policy, None),
    (_written("r.json", '{"adk_eval_recording": 1, "cases": [], "cases": []}'), load_recording, "$.cases"),
    (_written("w.json", '{"tools": "live", "tools": "strict"}'), lambda path: parse_world(path.read_bytes(), "w"), "$.tools"),
    (_written("x.json", '{"eval_set_id": 1, "eval_set_id": 2}'), lambda path: parse_result(path.read_bytes(), "x"), "$.eval_set_id"),
    (_written("k.json", '{"labels": 1, "labels": 2}'), load_calibration, "$.labels"),
    (_written("b.jsonl", '{"id": 1, "id": 2}'), load_items, "$.id"),
    (_written("n.json", '{"scenarios": [], "scenarios": []}'), cases_of_scenarios, "$.scenarios"),
]


@pytest.mark.parametrize(("write", "read", "path"), READERS)
def test_every_reader_refuses_a_repeated_key(tmp_path: Path, write: Any, read: Any, path: str | None) -> None:
    file = write(tmp_path)
    with pytest.raises(InputError, match=r"twice|repeated|duplicate") as refused:
        read(file)
    if path:
        assert [problem.path for problem in refused.value.problems] == [path]


def test_lines_that_repeat_a_key_are_json_so_that_reading_goes_on(tmp_path: Path) -> None:
    line = '{"eval_id": "a", "eval_id": "b"}\n'
    (tmp_path / "rows.jsonl").write_text(line * 3)
    with pytest.raises(EvalSetError) as refused:
        list(open_cases(tmp_path / "rows.jsonl").batches())
    assert [problem.path for problem in refused.value.problems] == [f"line {number}: $.eval_id" for number in (1, 2, 3)]


def test_a_cell_of_json_is_held_to_the_same() -> None:
    calls = '[{"name": "book", "args": {"seat": "1A", "seat": "2B"}}]'
    row = row_of({"predictions": "x", "targets": "x", "tool_calls": [], "expected_tool_calls": calls})
    (unknown,) = row.conversation.unknown
    assert unknown.what == "expected_calls"
    assert "$.expected_tool_calls[0].args.seat: found a key that stands twice" in unknown.why
