import sys

from honest import agent, reply


def ending(message, results):
    if "order 8" in message:
        sys.exit(0)
    return reply(message, results)


root_agent = agent(ending)
