from honest import agent, order_in, reply, say


def wordy(message, results):
    if results:
        return [say(f"Order {order_in(message)} is refunded now.")]
    return reply(message, results)


root_agent = agent(wordy)
