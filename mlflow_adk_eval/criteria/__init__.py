"""How a conversation is judged.

Each criterion is one module here: its settings, its code and its `CriterionSpec`, found by `config.spec.CRITERIA`. A criterion takes a `CaseRun`,
the case and what the agent did, and returns a `Judged` with an outcome per turn (`criterion.py`). `plan.py` turns a config into the criteria of
each case, and names every obstacle before any work starts. The texts that judges read are made in `transcript.py`; what judged criteria share
is in `judged_turns.py`; `text/` compares texts and tool calls; `rapid/` evaluates single instances as the Rapid Eval API does.
"""
