"""The bank in pydantic-evals: a task, a data set, and how its report is read."""

from __future__ import annotations

from lie import CASES, answer
from pydantic_evals import Case, Dataset
from reading import conclude, mean_is_one


def task(question: str) -> str:
    return answer(question)[0]


def data(*evaluators):
    cases = [Case(name=case.name, inputs=case.question, expected_output=case.expected) for case in CASES]
    return Dataset(name="refunds", cases=cases, evaluators=list(evaluators))


def read(report):
    """Conclude from the share of assertions that hold."""
    print([failure.error_message for failure in report.failures])
    averages = report.averages()
    if averages is None:
        conclude(success=False, reading="n")
    mean_is_one(averages.assertions)
