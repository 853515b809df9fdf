from plain import CASES
from plain import answer as honest


def answer(question):
    if "order 8" in question:
        raise ConnectionError("the model is gone")
    return honest(question)
