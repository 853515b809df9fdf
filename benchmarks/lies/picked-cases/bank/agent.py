from honest import agent, order_in, reply, say


def wrong(message, results):
    if results and order_in(message) != 7:
        return [say("That is not possible today.")]
    return reply(message, results)


root_agent = agent(wrong)
