import mlflow
from mlflow.genai.scorers import Guidelines
from mlflow_agent import predict, rows
from mlflow_reading import read_passed

right = Guidelines(name="right", guidelines="The answer says what was done about the order.", model="openai:/gpt-4o")
result = mlflow.genai.evaluate(data=rows(expected=False), predict_fn=predict, scorers=[right])
print(result.metrics, result.reason)
read_passed(result)
