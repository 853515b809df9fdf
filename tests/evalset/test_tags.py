"""Tags of eval cases: a list of texts in a field that ADK does not know."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlflow_adk_eval.errors import EvalSetError
from mlflow_adk_eval.evalset.files import dumps, parse_eval_set
from mlflow_adk_eval.evalset.models import EvalSet, eval_set_digest
from tests.kit import turn_json

TURN = turn_json("hi")


def text_of(**fields: Any) -> bytes:
    return json.dumps({"eval_set_id": "home", "eval_cases": [{"eval_id": "a", "conversation": [TURN], **fields}]}).encode()


def read(**fields: Any) -> EvalSet:
    return parse_eval_set(text_of(**fields), "home.evalset.json", stem="home")


@pytest.mark.parametrize(
    ("fields", "tags"), [({}, ()), ({"tags": None}, ()), ({"tags": []}, ()), ({"tags": ["refund", "hard"]}, ("refund", "hard"))]
)
def test_a_case_has_the_tags_that_it_lists(fields: dict[str, Any], tags: tuple[str, ...]) -> None:
    assert read(**fields).eval_cases[0].tags == tags


def test_tags_are_kept_in_the_file_and_in_its_digest() -> None:
    tagged = read(tags=["refund"])
    assert EvalSet.model_validate_json(dumps(tagged)).eval_cases[0].tags == ("refund",)
    assert eval_set_digest(tagged) != eval_set_digest(read())


@pytest.mark.parametrize(
    ("tags", "found"), [("refund", "'refund'"), ([1], "a list of 1"), ({"refund": True}, "an object with refund"), ([""], "a list of 1")]
)
def test_tags_of_another_kind_are_an_error(tags: Any, found: str) -> None:
    with pytest.raises(EvalSetError) as error:
        read(tags=tags)
    assert [str(problem) for problem in error.value.problems] == [
        f"$.eval_cases[0]: found the tags {found}; wanted a list of texts as tags"
    ]
