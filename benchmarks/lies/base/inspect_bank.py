"""The bank in Inspect: a solver, a data set, and how its log is read."""

from __future__ import annotations

import math

from inspect_ai import eval as evaluate
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ModelOutput
from inspect_ai.solver import solver
from lie import CASES, answer
from reading import conclude, mean_is_one


@solver
def bank():
    async def solve(state, generate):
        said, _ = answer(state.input_text)
        state.output = ModelOutput.from_content("bank", said)
        return state

    return solve


def data():
    return MemoryDataset([Sample(id=case.name, input=case.question, target=case.expected or "") for case in CASES])


def read(task, **options):
    """Run a task and conclude from the lowest accuracy of its scorers."""
    [log] = evaluate(task, model="mockllm/model", display="plain", log_dir="logs", **options)
    print(log.status, log.error)
    if log.status != "success":
        conclude(success=False, reading="e")
    print(log.results)
    if not log.results or not log.results.scores:
        conclude(success=False, reading="n")
    accuracies = [score.metrics["accuracy"].value for score in log.results.scores]
    if any(math.isnan(accuracy) for accuracy in accuracies):
        conclude(success=False, reading="n")
    mean_is_one(min(accuracies))
