import os

from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_bank import data, read, task
from pydantic_evals.evaluators import EqualsExpected, LLMJudge

model = OpenAIChatModel("judge", provider=OpenAIProvider(base_url=os.environ["OPENAI_BASE_URL"], api_key="x"))
judge = LLMJudge(rubric="The answer says what was done about the order.", model=model, include_input=True)
read(data(EqualsExpected(), judge).evaluate_sync(task, progress=False))
