from inspect_ai import Task
from inspect_ai.dataset import json_dataset
from inspect_ai.scorer import match
from inspect_bank import bank, read

read(Task(dataset=json_dataset("samples.json"), solver=bank(), scorer=match()))
