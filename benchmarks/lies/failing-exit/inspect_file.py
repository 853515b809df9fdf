from inspect_ai import Task, task
from inspect_ai.scorer import match
from inspect_bank import bank, data


@task
def refunds():
    return Task(dataset=data(), solver=bank(), scorer=match(location="exact"))
