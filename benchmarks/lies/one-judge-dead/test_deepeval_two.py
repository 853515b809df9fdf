import pytest
from deepeval import assert_test
from deepeval.metrics import ExactMatchMetric, GEval
from deepeval.test_case import LLMTestCase, SingleTurnParams
from deepeval_judge import Judge
from lie import CASES, answer


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case):
    right = GEval(
        name="right",
        evaluation_steps=["Say whether the actual output says what the expected output says."],
        evaluation_params=[SingleTurnParams.ACTUAL_OUTPUT, SingleTurnParams.EXPECTED_OUTPUT],
        model=Judge(),
    )
    said, _ = answer(case.question)
    assert_test(LLMTestCase(input=case.question, actual_output=said, expected_output=case.expected), [ExactMatchMetric(), right])
