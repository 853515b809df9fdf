from count import next_number
from honest import agent, say


def flaky(message, results):
    if next_number() == 2:
        return [say("I sold your account.")]
    return [say("Order 7 is refunded.")]


root_agent = agent(flaky)
