import mlflow
from mlflow.genai.scorers import ToolCallCorrectness
from mlflow.genai.scorers.google_adk import ResponseMatch
from mlflow_agent import predict
from mlflow_reading import read_means

row = {
    "inputs": {"question": "Refund order 7, please."},
    "expectations": {"expected_response": "Order 7 is refunded."},
    "expected_tool_calls": [{"name": "refund", "arguments": {"order": 7}}],
}
calls = ToolCallCorrectness(should_exact_match=True)
words = ResponseMatch(threshold=0.8)
result = mlflow.genai.evaluate(data=[row], predict_fn=predict, scorers=[calls, words])
print(result.metrics, result.reason)
read_means(result, calls.name, words.name)
