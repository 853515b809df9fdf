"""What is evaluated: ADK's file formats as light models of our own.

`models` has the data (`EvalSet`, `EvalCase`, `Invocation` and so on); `files` reads eval sets of every generation and writes today's;
`rows` reads cases as a stream, from JSON Lines and Parquet, and `conversion` writes them in any of these formats;
`result` reads and writes ADK's result files; `conversation` has recordings, this package's own format. All of them parse by `parse`, which
names every problem by its JSON path with the help of `schema`. `digest` says whether two eval sets demand the same.
"""

from mlflow_adk_eval.evalset.conversion import migrate
from mlflow_adk_eval.evalset.digest import eval_set_digest
from mlflow_adk_eval.evalset.files import (
    dump,
    dumps,
    load_eval_set,
    merge,
    parse_eval_set,
    select,
    split_selection,
    stem_of,
    test_files,
    write_eval_set,
)
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
    UserBehavior,
    UserPersona,
)
from mlflow_adk_eval.evalset.result import EvalSetResult, load_result

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
    "UserBehavior",
    "UserPersona",
    "dump",
    "dumps",
    "eval_set_digest",
    "load_eval_set",
    "load_result",
    "merge",
    "migrate",
    "parse_eval_set",
    "select",
    "split_selection",
    "stem_of",
    "test_files",
    "write_eval_set",
]
