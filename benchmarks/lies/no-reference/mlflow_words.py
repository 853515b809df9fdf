import mlflow
from mlflow.genai.scorers.google_adk import ResponseMatch
from mlflow_agent import predict
from mlflow_reading import read_means

data = [
    {"inputs": {"question": "Refund order 7, please."}, "expectations": {"expected_response": "Order 7 is refunded."}},
    {"inputs": {"question": "Refund order 8, please."}},
]
words = ResponseMatch(threshold=0.8)
result = mlflow.genai.evaluate(data=data, predict_fn=predict, scorers=[words])
print(result.metrics, result.reason)
read_means(result, words.name)
