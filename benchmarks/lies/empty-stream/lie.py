from plain import CASES


def answer(question):
    return "", []
