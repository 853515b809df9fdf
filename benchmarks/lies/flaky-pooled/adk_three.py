import asyncio

from google.adk.evaluation.agent_evaluator import AgentEvaluator

asyncio.run(AgentEvaluator.evaluate("bank", "refunds.evalset.json", num_runs=3))
