def own(eval_metric, actual_invocations, expected_invocations=None, conversation_scenario=None):
    """Judge a conversation, in ADK's form."""
    raise RuntimeError("the metric broke")
