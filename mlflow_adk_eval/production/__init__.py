"""Production traces: which are there, which are scored, what becomes of the scores on the traces themselves, and when somebody must look."""
