from honest import agent

root_agent = agent()
