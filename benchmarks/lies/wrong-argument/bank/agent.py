from honest import agent, call, order_in, reply


def careless(message, results):
    if order_in(message) == 7 and not results:
        return [call(("refund", {"order": 999}))]
    return reply(message, results)


root_agent = agent(careless)
