from pydantic_bank import data, read, task
from pydantic_evals.evaluators import Contains

read(data(Contains(value="refunded", case_sensitve=True)).evaluate_sync(task, progress=False))
