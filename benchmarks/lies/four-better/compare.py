import mlflow_adk_eval as adk_eval

CODES = {"passed": 0, "failed": 1, "undecided": 2}
champion = adk_eval.evaluate("refunds.evalset.json", agent="bank", experiment="bank")
candidate = adk_eval.evaluate("refunds.evalset.json", agent="bank", experiment="bank")
policy = {"rules": {"response_match_score": {"max_drop": 0.05}}, "baseline": {"run": champion.run_id}}
decision = adk_eval.gate(candidate.run_id, policy, raise_on_failure=False)
print(decision.verdict, *decision.reasons)
raise SystemExit(CODES[decision.verdict])
