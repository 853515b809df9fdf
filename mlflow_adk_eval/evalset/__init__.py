"""What is evaluated: ADK's file formats as light models of our own.

`models` has the data (`EvalSet`, `EvalCase`, `Invocation` and so on), and the digest that says whether two eval sets demand the same; `files`
says once what it is that a user names, reads eval sets of every generation and writes today's; `rows` reads cases as a stream, from JSON Lines and Parquet, and `conversion` writes them in any
of these formats; `conversation` has what agents did: recordings, this package's own format, and ADK's result files. All of them parse by
`parse`, which names every problem by its JSON path.
"""

from mlflow_adk_eval.evalset.conversation import EvalSetResult, load_result
from mlflow_adk_eval.evalset.conversion import migrate
from mlflow_adk_eval.evalset.files import dump, dumps, load_eval_set, parse_eval_set, select, split_selection, stem_of, write_eval_set
from mlflow_adk_eval.evalset.models import (
    AgentDetails,
    AppDetails,
    Content,
    ConversationScenario,
    EvalCase,
    EvalSet,
    FunctionCall,
    FunctionResponse,
    IntermediateData,
    Invocation,
    InvocationEvent,
    InvocationEvents,
    Part,
    Rubric,
    RubricContent,
    SessionInput,
    eval_set_digest,
)

__all__ = [
    "AgentDetails",
    "AppDetails",
    "Content",
    "ConversationScenario",
    "EvalCase",
    "EvalSet",
    "EvalSetResult",
    "FunctionCall",
    "FunctionResponse",
    "IntermediateData",
    "Invocation",
    "InvocationEvent",
    "InvocationEvents",
    "Part",
    "Rubric",
    "RubricContent",
    "SessionInput",
    "dump",
    "dumps",
    "eval_set_digest",
    "load_eval_set",
    "load_result",
    "migrate",
    "parse_eval_set",
    "select",
    "split_selection",
    "stem_of",
    "write_eval_set",
]
