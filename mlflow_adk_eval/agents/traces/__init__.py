"""MLflow's traces as what an agent did: ADK's spans, spans that people write, and those of this package.

`conversations` groups traces, reads their turns and matches them with cases, or makes eval cases of them; `spans` has the tree of a trace, and what its spans say of models;
`adk` and `manual` read a turn from spans.
"""
