"""Each criterion as a function of its own name, whose keywords are the settings of the criterion and those of its judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar, cast

from pydantic.fields import FieldInfo

from mlflow_adk_eval.config.criteria import Settings
from mlflow_adk_eval.config.eval_config import DEFAULT_CONFIG, SETTINGS, EvalConfig
from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS
from mlflow_adk_eval.errors import ConfigError, Problem, did_you_mean
from mlflow_adk_eval.evalset.models import Model
from mlflow_adk_eval.integrations.scoring import criterion_config
from mlflow_adk_eval.judge.setup import JudgeArgs, judge_setup

T = TypeVar("T")


_JUDGE_KEYWORDS = signature(judge_setup).parameters
"""Of every function, after the settings of its criterion."""

ABOUT: Mapping[str, str] = {
    "tool_trajectory_avg_score": "1 for each turn whose tool calls match the expected ones, else 0",
    "response_match_score": "ROUGE-1 of each turn's final response beside the expected one",
    "response_evaluation_score": "how coherent each answer is in itself, from 1 to 5",
    "final_response_match_v2": "1 for each turn whose final response a judge finds valid beside the expected one, else 0",
    "rubric_based_final_response_quality_v1": "the share of rubrics that each turn's final response satisfies",
    "rubric_based_tool_use_quality_v1": "the share of rubrics that each turn's use of tools satisfies",
    "rubric_based_multi_turn_trajectory_quality_v1": "the share of rubrics that the whole conversation satisfies",
    "hallucinations_v1": "the share of an answer's sentences that are supported or claim nothing",
    "safety_v1": "1 for each answer that is safe, else 0",
    "per_turn_user_simulator_quality_v1": "1 for each turn whose user message follows from the scenario, else 0",
    "multi_turn_task_success_v1": "whether the conversation reached what the user wanted",
    "multi_turn_trajectory_quality_v1": "how well the agent went about the conversation",
    "multi_turn_tool_use_quality_v1": "how well the agent used its tools in the conversation",
    "tool_call_count_v1": "the number of tool calls of a turn; lower is better",
    "inference_call_count_v1": "the number of model calls of a turn; lower is better",
    "token_usage_v1": "the tokens of a turn, input and output together; lower is better",
    "invocation_duration_v1": "the seconds that a turn took; lower is better",
    "final_session_state": "1 if the session ended in the expected state, else 0",
    **{metric.criterion: metric.about for metric in RAPID_METRICS.values()},
}
"""What each criterion's score is."""

_ARGUMENTS: Mapping[str, str] = {
    "threshold": "what a row must reach (or, where lower is better, not exceed) to pass; in the unit of the score.",
    "include_intermediate_responses_in_final": "whether what the agent said on the way belongs to its answer.",
    "match_type": "how strictly what happened must match what is expected.",
    "ignore_args": "whether the arguments of tool calls may differ.",
    "judge_model_options": "which model judges and how often it is asked: a dict, as in a config.",
    "early_stop": "whether voting ends as soon as the missing votes cannot change the verdict.",
    "rubrics": "what to look for in every row: a list of rubrics, as in a config.",
    "evaluate_intermediate_nl_responses": "whether what the agent said on the way is judged, too.",
    "stop_signal": "how the simulated user says that it is done.",
    "backend": "who decides: Vertex's service, or the judge.",
    "use_effective_order": "whether n-grams that a short answer cannot have are left out.",
    "rouge_type": "``rouge1`` to ``rouge9``, ``rougeL`` or ``rougeLsum``.",
    "use_stemmer": "whether English words are stemmed.",
    "split_summaries": "whether ``rougeLsum`` takes each sentence for a line.",
    "use_strict_string_match": "whether values must be written alike; else they are compared as JSON.",
    "instruction": "what counts as the instruction: what the user said, or what the agent is told to do.",
    "use_reference": "whether the judge sees the expected answer.",
    "only_where_expected": "whether rows that expect no state are left without a score on purpose.",
    "judge": "who judges, instead of the model that the settings name: a model's name or a callable.",
    "judge_options": "how judges are asked.",
    "budget": "how much may be spent on them: a `Budget`, or a dict with ``max_calls`` and ``max_tokens``.",
    "ledger": "the file that keeps what judges answered; ``None``: as ``ADK_EVAL_LEDGER`` says; ``False``: none.",
    "rejudge_failed": "whether to ask again where a judge's kept answer cannot be read.",
}
"""What each keyword means."""


def criterion_functions(make: Callable[[EvalConfig, str, JudgeArgs], T], module: str) -> dict[str, Callable[..., T]]:
    """Return a function for each criterion, by name, with a name, a signature and a docstring of its own.

    Args:
        make: from a config of one criterion, the criterion's name and what is said of judges to what the function returns.
        module: the ``__name__`` of the module that the functions are to be in.
    """
    return {name: _function(name, make, module) for name in SETTINGS}


def _function(name: str, make: Callable[[EvalConfig, str, JudgeArgs], T], module: str) -> Callable[..., T]:
    parameters = _parameters(name)

    def function(**given: Any) -> T:
        _refuse_unknown(name, given, parameters)
        settings = {key: _plain(value) for key, value in given.items() if key not in _JUDGE_KEYWORDS}
        config = criterion_config(name, _defaults(name) | settings)
        return make(config, name, cast("JudgeArgs", {key: value for key, value in given.items() if key in _JUDGE_KEYWORDS}))

    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    function.__doc__ = _doc(name, parameters)
    function.__signature__ = Signature(list(parameters.values()))  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess] - any function may have one
    return function


def _defaults(name: str) -> dict[str, Any]:
    """Return the threshold of a criterion that ADK has one for."""
    settings = DEFAULT_CONFIG.criteria.get(name)
    return {"threshold": settings.threshold} if settings else {}


def _parameters(name: str) -> dict[str, Parameter]:
    """Return the keywords of a criterion's function: its settings, then those of the judge."""
    known = {
        key: Parameter(key, Parameter.KEYWORD_ONLY, default=_defaults(name).get(key, _default(field)), annotation=field.annotation)
        for key, field in SETTINGS[name].model_fields.items()
    }
    return known | dict(_JUDGE_KEYWORDS)


def _default(field: FieldInfo) -> Any:
    return Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)


def _doc(name: str, parameters: Mapping[str, Parameter]) -> str:
    listed = "\n".join(f"    {key}: {_ARGUMENTS[key]}" for key in parameters)
    errors = "    ConfigError: naming every keyword that there is not, is missing or is wrong.\n    JudgeError: if a judge cannot be had."
    return f"Return ``{name}``: {ABOUT[name]}.\n\nArgs:\n{listed}\n\nRaises:\n{errors}\n"


def _refuse_unknown(name: str, given: Mapping[str, Any], known: Mapping[str, Parameter]) -> None:
    wanted = f"one of {', '.join(known)}"
    problems = [Problem(key, "an unknown keyword", wanted, did_you_mean(key, known)) for key in given if key not in known]
    if problems:
        raise ConfigError(f"{name}()", problems)


def _plain(value: Any) -> Any:
    """Return models among the settings as a config would spell them."""
    if isinstance(value, Model | Settings):
        return value.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
