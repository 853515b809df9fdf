from honest import agent, say

root_agent = agent(lambda message, results: [say("Order 7 is refunded.", thought=True)])
