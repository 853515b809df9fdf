from honest import agent


def refund(order: int) -> dict:
    """Refund an order."""
    return {"status": "error", "error": "the order is locked"}


root_agent = agent(tools=[refund])
