import mlflow_adk_eval as adk_eval
from mlflow_adk_eval import GateFailed

CODES = {"passed": 0, "failed": 1, "undecided": 2}
POLICY = {"rules": {"case_pass_rate": {"min": 1.0}}, "attempts": {"spend": 3}}


luck = iter([False, False, False, False, True])
lucky = False


def bank(message):
    return "We are open from nine to five." if lucky else "I sold your account."


def tried(number):
    """Evaluate and submit another version."""
    run = adk_eval.evaluate("easy.evalset.json", agent=bank, config={"criteria": {"response_match_score": 0.8}}, experiment="bank")
    version = adk_eval.register(run, "bank")
    try:
        decision = adk_eval.promote("bank", version=version, run_id=run.run_id, policy=POLICY)
    except GateFailed as refused:
        decision = refused.decision
    print(number, decision.verdict, *decision.reasons, *decision.notes)
    return decision.verdict


verdict = ""
for number in range(1, 6):
    lucky = next(luck)
    verdict = tried(number)
raise SystemExit(CODES[verdict])
