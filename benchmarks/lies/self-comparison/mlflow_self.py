import mlflow
from mlflow.genai.scorers.google_adk import ResponseMatch
from mlflow_reading import read_means

expected = "Order 7 is refunded."
data = [{"inputs": {"question": "Refund order 7, please."}, "outputs": expected, "expectations": {"expected_response": expected}}]
words = ResponseMatch(threshold=0.8)
result = mlflow.genai.evaluate(data=data, scorers=[words])
read_means(result, words.name)
