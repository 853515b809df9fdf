from pydantic_bank import read, task
from pydantic_evals import Dataset

read(Dataset[str, str, dict].from_file("cases.yaml").evaluate_sync(task, progress=False))
