from deepeval import evaluate
from deepeval.metrics import ExactMatchMetric
from reading import conclude

result = evaluate([], [ExactMatchMetric()])
success = bool(result.test_results) and all(one.success for one in result.test_results)
conclude(success=success, reading=len(result.test_results))
