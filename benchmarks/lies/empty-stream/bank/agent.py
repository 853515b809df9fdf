from honest import agent

root_agent = agent(lambda message, results: [])
