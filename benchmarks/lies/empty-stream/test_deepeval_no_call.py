from deepeval import assert_test
from deepeval.metrics import ToolCorrectnessMetric
from deepeval.test_case import LLMTestCase
from deepeval_judge import Judge
from lie import answer


def test_no_call():
    said, calls = answer("When are you open?")
    case = LLMTestCase(input="When are you open?", actual_output=said, tools_called=calls, expected_tools=[])
    assert_test(case, [ToolCorrectnessMetric(model=Judge())])
