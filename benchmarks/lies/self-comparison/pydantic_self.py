from pydantic_bank import data, read, task
from pydantic_evals.evaluators import EqualsExpected

read(data(EqualsExpected()).evaluate_sync(task, progress=False))
