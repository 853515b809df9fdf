"""Asking models to judge: from a question to a verdict.

A criterion makes a `Question` (`question`): a prompt of our own (`prompt`), the material between delimiters that its authors could not know,
the media that this material leaves out (`material`), the items to decide and the labels that a judge may give them. Its `VoteCollector` (`voting`) asks for votes until the verdict stands. Each
vote is a request to the `Judge` (`protocol`, made in `providers`) through a `JudgeClient` (`client`), which looks in the ledger first, waits
for the limiter (`limiter`), repeats what failed for now and counts what it cost (`usage`). `JudgeSession` (`session`) holds the judges of one
evaluation together; `setup` says how a caller chooses them. `user_model` asks models in the same way for the messages of simulated users.
"""
