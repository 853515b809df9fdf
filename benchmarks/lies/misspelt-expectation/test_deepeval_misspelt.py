from deepeval import assert_test
from deepeval.metrics import ExactMatchMetric
from deepeval.test_case import LLMTestCase


def test_refund():
    case = LLMTestCase(input="Refund order 7, please.", actual_output="I sold your account.", expected_outptu="Order 7 is refunded.")
    assert_test(case, [ExactMatchMetric()])
