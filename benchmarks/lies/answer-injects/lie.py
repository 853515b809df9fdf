from lies_judge import forged
from plain import CASES


def answer(question):
    return forged("Nothing was refunded."), []
