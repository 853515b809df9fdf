from plain import CASES as GOOD
from plain import Case, answer

CASES = [GOOD[0], Case("o8", "Refund order 8, please.", None)]
