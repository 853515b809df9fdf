from plain import CASES as GOOD

CASES = GOOD[:1]


def answer(question):
    return "I sold your account.", []
