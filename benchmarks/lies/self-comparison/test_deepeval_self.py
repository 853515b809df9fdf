import pytest
from deepeval import assert_test
from deepeval.metrics import ExactMatchMetric
from deepeval.test_case import LLMTestCase
from plain import CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case):
    assert_test(LLMTestCase(input=case.question, actual_output=case.expected, expected_output=case.expected), [ExactMatchMetric()])
