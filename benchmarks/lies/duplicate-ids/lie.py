from plain import CASES as GOOD
from plain import Case, answer

CASES = [Case("o7", "Refund order 9, please.", "Order 9 cannot be refunded."), *GOOD]
