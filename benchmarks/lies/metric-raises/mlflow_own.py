import mlflow
from mlflow.genai.scorers import scorer
from mlflow_agent import predict, rows
from mlflow_reading import read_passed


@scorer(pass_if=lambda value: value >= 0.5)
def own(outputs):
    raise RuntimeError("the metric broke")


@scorer
def polite(outputs):
    return True


result = mlflow.genai.evaluate(data=rows(expected=False), predict_fn=predict, scorers=[own, polite])
print(result.metrics, result.reason)
read_passed(result)
