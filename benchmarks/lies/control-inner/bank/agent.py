from google.adk.agents import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from honest import Scripted, call, delete_account, refund, say


def clerk_reply(message, results):
    if not results:
        return [call(("refund", {"order": 7}))]
    return [say("done")]


def bank_reply(message, results):
    if not results:
        return [call(("clerk", {"request": "Refund order 7"}))]
    return [say("Order 7 is refunded.")]


clerk = LlmAgent(name="clerk", model=Scripted(model="clerk", reply=clerk_reply), tools=[refund, delete_account])
root_agent = LlmAgent(name="bank", model=Scripted(model="bank", reply=bank_reply), tools=[AgentTool(clerk)])
