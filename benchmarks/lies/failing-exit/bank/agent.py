from honest import agent, say

root_agent = agent(lambda message, results: [say("I sold your account.")])
