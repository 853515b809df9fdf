from plain import CASES
from plain import answer as honest


def answer(question):
    said, calls = honest(question)
    return said.replace("refunded", "refunded now"), calls
