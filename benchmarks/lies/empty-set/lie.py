from plain import answer

CASES = []
