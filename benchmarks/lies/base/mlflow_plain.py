import mlflow
from mlflow.genai.scorers import ToolCallCorrectness
from mlflow.genai.scorers.google_adk import ResponseMatch
from mlflow_agent import predict, rows
from mlflow_reading import read_means

calls = ToolCallCorrectness(should_exact_match=True)
words = ResponseMatch(threshold=0.8)
result = mlflow.genai.evaluate(data=rows(), predict_fn=predict, scorers=[calls, words])
print(result.metrics)
read_means(result, calls.name, words.name)
