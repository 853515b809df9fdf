import asyncio

from google.adk.agents import LlmAgent
from honest import Scripted, refund, reply


class Slow(Scripted):
    async def generate_content_async(self, llm_request, stream=False):
        if "order 8" in str(llm_request.contents):
            await asyncio.sleep(3600)
        async for response in super().generate_content_async(llm_request, stream):
            yield response


root_agent = LlmAgent(name="bank", model=Slow(model="slow", reply=reply), tools=[refund])
