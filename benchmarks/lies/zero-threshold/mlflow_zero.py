import mlflow
from mlflow.genai.scorers.google_adk import ResponseMatch
from mlflow_agent import predict, rows
from mlflow_reading import read_means

words = ResponseMatch(threshold=0)
result = mlflow.genai.evaluate(data=rows(), predict_fn=predict, scorers=[words])
read_means(result, words.name)
