from honest import agent, say

root_agent = agent(lambda message, results: [say("The total is 30 euros.")])
