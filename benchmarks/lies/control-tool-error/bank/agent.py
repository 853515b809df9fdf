from honest import agent, reply, say


def refund(order: int) -> dict:
    """Refund an order."""
    return {"status": "error", "error": "the order is locked"}


root_agent = agent(lambda message, results: [say("Order 7 is locked.")] if results else reply(message, results), [refund])
