"""MLflow's traces as what an agent did: ADK's spans, spans that people write, and those of this package.

`conversations` groups traces, reads their turns and matches them with cases; `spans` has the tree of a trace; `adk` (with `messages`) and
`manual` read a turn from spans; `cases` makes eval cases of what was read.
"""

from mlflow_adk_eval.agents.traces.conversations import (
    ReadConversation,
    TracedCases,
    TracedConversation,
    conversation_key,
    conversation_of,
    conversations_of,
    invocations_of,
    recording_of_traces,
)
from mlflow_adk_eval.agents.traces.spans import is_traces, traces_of

__all__ = [
    "ReadConversation",
    "TracedCases",
    "TracedConversation",
    "conversation_key",
    "conversation_of",
    "conversations_of",
    "invocations_of",
    "is_traces",
    "recording_of_traces",
    "traces_of",
]
