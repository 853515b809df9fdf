"""Votes as a Parquet file."""

from __future__ import annotations

from dataclasses import fields, replace
from io import BytesIO

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.config.eval_config import judged_criteria, parse_config
from mlflow_adk_eval.errors import InputError
from mlflow_adk_eval.results.outcomes import Vote
from mlflow_adk_eval.results.table import VOTE_COLUMNS
from mlflow_adk_eval.runs.parts import dump_votes, parse_votes
from tests.profiles import examples

VOTE = Vote(
    eval_id="a",
    run_index=0,
    invocation_index=1,
    criterion="c",
    rubric_id=None,
    vote_index=2,
    verdict=None,
    explanation="",
    model="m",
    latency_s=0.5,
    input_tokens=None,
    output_tokens=None,
    error="down",
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNTS = st.integers(0, 2**62)
VOTES = st.builds(
    Vote,
    eval_id=TEXTS,
    run_index=COUNTS,
    invocation_index=COUNTS,
    criterion=TEXTS,
    rubric_id=st.none() | TEXTS,
    vote_index=COUNTS,
    verdict=st.none() | TEXTS,
    explanation=TEXTS,
    model=TEXTS,
    latency_s=st.floats(0, 1e6),
    input_tokens=st.none() | COUNTS,
    output_tokens=st.none() | COUNTS,
    error=TEXTS,
    raw=TEXTS,
    reused=st.booleans(),
    host=TEXTS,
    asked_in=TEXTS,
    asked_at=TEXTS,
    value=st.none() | st.floats(0, 10),
)


@examples(50)  # the first call imports pyarrow
@given(st.lists(VOTES, max_size=4))
def test_votes_come_back_as_they_were(votes: list[Vote]) -> None:
    assert parse_votes(dump_votes(votes), "votes") == tuple(votes)


def test_every_field_of_a_vote_is_kept() -> None:
    assert list(VOTE_COLUMNS) == [field.name for field in fields(Vote)]


@pytest.mark.parametrize("votes", [[], [VOTE], [replace(VOTE, rubric_id="r", verdict="yes", input_tokens=2**60 + 1, output_tokens=1)]])
def test_the_columns_and_their_types_are_always_the_same(votes: list[Vote]) -> None:
    frame = pd.read_parquet(BytesIO(dump_votes(votes)))
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == dict(VOTE_COLUMNS)
    assert len(frame) == len(votes)


def test_the_same_votes_are_the_same_bytes() -> None:
    assert dump_votes([VOTE, VOTE]) == dump_votes([VOTE, VOTE])


def test_the_words_of_others_are_cleaned_and_the_cell_is_not() -> None:
    words = replace(VOTE, eval_id="k", criterion="k", rubric_id="k", explanation="k", model="k", error="k", raw="k")
    (found,) = parse_votes(dump_votes([words], lambda text: text.replace("k", "[K]")), "votes")
    assert (found.eval_id, found.criterion, found.rubric_id) == ("k", "k", "k")
    assert (found.explanation, found.model, found.error, found.raw) == ("[K]", "[K]", "[K]", "[K]")


def other_columns() -> bytes:
    return pd.DataFrame({"eval_id": ["a"]}).to_parquet()


def other_types() -> bytes:
    frame = pd.read_parquet(BytesIO(dump_votes([VOTE])))
    return frame.assign(run_index=["first"]).to_parquet()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "not a Parquet file"),
        (b"PAR1" * 20, "not a Parquet file"),
        (dump_votes([VOTE])[:-50], "not a Parquet file"),
        (other_columns(), "no column run_index"),
        (other_types(), "other types"),
    ],
)
def test_anything_else_is_refused(content: bytes, found: str) -> None:
    with pytest.raises(InputError, match=rf"run/votes\.parquet: 1 problem(.|\n)*{found}"):
        parse_votes(content, "run/votes.parquet")


def test_the_criteria_that_a_model_decides_are_known_with_all_their_settings() -> None:
    match = {"threshold": 0.5, "judge_model_options": {"num_samples": 3}}
    config = parse_config(
        {
            "criteria": {"response_match_score": 0.5, "final_response_match_v2": match},
            "case_criteria": {"a": {"final_response_match_v2": 0.7}, "b": {"final_response_match_v2": match}, "c": {"safety_v1": 1.0}},
        },
        "config",
    )
    found = {name: [one.judge_model_options.num_samples for one in found] for name, found in judged_criteria(config).items()}
    assert found == {"final_response_match_v2": [3, 5], "safety_v1": [5]}
    assert judged_criteria(parse_config({"criteria": {"response_match_score": 0.5}}, "config")) == {}
