from inspect_ai import Task
from inspect_ai.scorer import match
from inspect_bank import bank, data, read

read(Task(dataset=data(), solver=bank(), scorer=match(location="exact")))
