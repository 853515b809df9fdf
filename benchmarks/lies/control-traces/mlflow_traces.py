import mlflow
from mlflow.genai.scorers import ToolCallCorrectness
from mlflow_reading import read_means
from traced import record

record()
trace_id = mlflow.get_last_active_trace_id()
mlflow.log_expectation(trace_id=trace_id, name="expected_tool_calls", value=[{"name": "refund", "arguments": {"order": 7}}])
calls = ToolCallCorrectness(should_exact_match=True)
result = mlflow.genai.evaluate(data=[mlflow.get_trace(trace_id)], scorers=[calls])
print(result.metrics, result.reason)
read_means(result, calls.name)
