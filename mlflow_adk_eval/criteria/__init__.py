"""How a conversation is judged.

Each criterion is one module here: its settings, its code and its `CriterionSpec`, found by `config.spec.CRITERIA`. A criterion takes a `CaseRun`,
the case and what the agent did, and returns a `Judged` with an outcome per turn (`criterion.py`). `plan.py` turns a config into the criteria of
each case, and names every obstacle before any work starts. The texts that judges read are made in `transcript.py`; what judged criteria share
is in `judged_turns.py`; `text.py` and `alignment.py` compare texts and tool calls; `rapid/` evaluates single instances as the Rapid Eval API does.
"""

from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS

# The module of each criterion, so that looking one up imports no other, and the modules of what is measured on every run.
# criteria: written by docs/criteria_table.py
MODULES = {
    "tool_call_count_v1": "efficiency",
    "inference_call_count_v1": "efficiency",
    "token_usage_v1": "efficiency",
    "invocation_duration_v1": "efficiency",
    "final_response_match_v2": "final_response",
    "final_session_state": "final_state",
    "forbidden_tools_v1": "forbidden_tools",
    "hallucinations_v1": "hallucinations",
    "response_match_score": "response_match",
    "rubric_based_final_response_quality_v1": "rubrics",
    "rubric_based_tool_use_quality_v1": "rubrics",
    "rubric_based_multi_turn_trajectory_quality_v1": "rubrics",
    "tool_trajectory_avg_score": "trajectory",
    "tool_parameter_match": "trajectory",
    "per_turn_user_simulator_quality_v1": "user_simulator",
    "safety_v1": "vertex",
    "response_evaluation_score": "vertex",
    "multi_turn_task_success_v1": "vertex",
    "multi_turn_trajectory_quality_v1": "vertex",
    "multi_turn_tool_use_quality_v1": "vertex",
    "general_quality_v2": "vertex",
    "text_quality_v2": "vertex",
    "instruction_following_v2": "vertex",
    "safety_v3": "vertex",
    "multi_turn_general_quality_v2": "vertex",
    "multi_turn_text_quality_v2": "vertex",
    "final_response_quality_v2": "vertex",
    "hallucination_v2": "vertex",
    "tool_use_quality_v2": "vertex",
    **{metric.criterion: "rapid_criteria" for metric in RAPID_METRICS.values()},
}
INFORMATIVE = ("efficiency",)
# end of criteria
