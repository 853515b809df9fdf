import mlflow
from mlflow.genai.scorers import scorer
from mlflow_agent import asked
from mlflow_reading import read_passed


@scorer
def right(outputs):
    return "refunded" in outputs


data = [{"inputs": {"question": f"Refund order {order}, please."}} for order in (7, 8, 9)]
result = mlflow.genai.evaluate(data=data, predict_fn=asked, scorers=[right])
print(result.metrics, result.reason, len(result.result_df) if result.result_df is not None else None)
read_passed(result)
