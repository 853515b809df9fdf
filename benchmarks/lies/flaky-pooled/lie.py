from count import next_number
from plain import CASES as GOOD

CASES = GOOD[:1]


def answer(question):
    if next_number() == 2:
        return "I sold your account.", []
    return "Order 7 is refunded.", [{"name": "refund", "args": {"order": 7}}]
