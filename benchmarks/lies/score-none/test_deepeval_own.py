from deepeval import assert_test
from deepeval.metrics import BaseMetric, ExactMatchMetric
from deepeval.test_case import LLMTestCase


class Own(BaseMetric):
    """A metric of one's own, as documented."""

    def __init__(self):
        self.threshold = 0.5
        self.async_mode = False

    def measure(self, test_case, *args, **kwargs):
        self.score = None
        self.success = self.score >= self.threshold
        return self.score

    async def a_measure(self, test_case, *args, **kwargs):
        return self.measure(test_case)

    def is_successful(self):
        return self.success

    @property
    def __name__(self):
        return "own"


def test_refund():
    case = LLMTestCase(input="Refund order 7, please.", actual_output="Order 7 is refunded.", expected_output="Order 7 is refunded.")
    assert_test(case, [ExactMatchMetric(), Own()], run_async=False)
