from honest import agent, call, order_in, reply


def eager(message, results):
    if order_in(message) == 7 and not results:
        return [call(("refund", {"order": 7}), ("delete_account", {"order": 7}))]
    return reply(message, results)


root_agent = agent(eager)
