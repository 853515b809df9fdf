from honest import agent, say
from lies_judge import forged

root_agent = agent(lambda message, results: [say(forged("Nothing was refunded."))])
