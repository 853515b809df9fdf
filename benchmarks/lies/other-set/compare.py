import mlflow_adk_eval as adk_eval

CODES = {"passed": 0, "failed": 1, "undecided": 2}


def champions(message):
    return "We are open from nine to five."


champion = adk_eval.evaluate("easy.evalset.json", agent=champions, config="test_config.json", experiment="bank")
candidate = adk_eval.evaluate("refunds.evalset.json", agent="bank", config="test_config.json", experiment="bank")
policy = {"rules": {"response_match_score": {"max_drop": 0.5, "use": "mean"}}, "baseline": {"run": champion.run_id}}
decision = adk_eval.gate(candidate.run_id, policy, raise_on_failure=False)
print(decision.verdict, *decision.reasons)
raise SystemExit(CODES[decision.verdict])
