from deepeval import assert_test
from deepeval.metrics import ToolCorrectnessMetric
from deepeval.test_case import LLMTestCase
from deepeval_judge import Judge


def test_refund():
    case = LLMTestCase(
        input="Refund order 7, please.",
        actual_output="Order 7 is refunded.",
        tools_called=[],
        expected_tools=[],
        metadata={"expected_tools": [{"name": "refund", "input_parameters": {"order": 7}}]},
    )
    assert_test(case, [ToolCorrectnessMetric(model=Judge())])
