import mlflow
from mlflow.genai.scorers import Guidelines
from mlflow.genai.scorers.google_adk import ResponseMatch
from mlflow_agent import predict, rows
from mlflow_reading import read_means

words = ResponseMatch(threshold=0.8)
right = Guidelines(name="right", guidelines="The answer says what was done about the order.", model="openai:/gpt-4o")
result = mlflow.genai.evaluate(data=rows(), predict_fn=predict, scorers=[words, right])
read_means(result, words.name, "right")
