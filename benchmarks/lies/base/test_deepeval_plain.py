import pytest
from deepeval import assert_test
from deepeval.metrics import ExactMatchMetric, ToolCorrectnessMetric
from deepeval.test_case import LLMTestCase, ToolCall
from deepeval_judge import Judge
from lie import CASES, answer


def tools(calls):
    return [ToolCall(name=call["name"], input_parameters=call["args"]) for call in calls]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case):
    said, calls = answer(case.question)
    case_ = LLMTestCase(
        input=case.question,
        actual_output=said,
        expected_output=case.expected,
        tools_called=tools(calls),
        expected_tools=tools(case.calls),
    )
    assert_test(case_, [ExactMatchMetric(), ToolCorrectnessMetric(model=Judge())])
