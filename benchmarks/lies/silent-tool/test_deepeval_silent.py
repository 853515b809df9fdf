from deepeval import assert_test
from deepeval.metrics import ExactMatchMetric, ToolCorrectnessMetric
from deepeval.test_case import LLMTestCase, ToolCall
from deepeval_judge import Judge


def test_refund():
    expected = ToolCall(name="refund", input_parameters={"order": 7})
    called = ToolCall(name="refund", input_parameters={"order": 7}, output={"status": "error", "error": "the order is locked"})
    case = LLMTestCase(
        input="Refund order 7, please.",
        actual_output="Order 7 is refunded.",
        expected_output="Order 7 is refunded.",
        tools_called=[called],
        expected_tools=[expected],
    )
    assert_test(case, [ExactMatchMetric(), ToolCorrectnessMetric(model=Judge())])
