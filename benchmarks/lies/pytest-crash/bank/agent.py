from honest import agent, reply


def lost(message, results):
    if "order 8" in message:
        raise ConnectionError("the model is gone")
    return reply(message, results)


root_agent = agent(lost)
