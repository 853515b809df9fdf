import os

from image import PNG
from pydantic_ai import BinaryContent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_bank import read
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import LLMJudge

question = ["What is the total of this receipt?", BinaryContent(data=PNG, media_type="image/png")]
model = OpenAIChatModel("judge", provider=OpenAIProvider(base_url=os.environ["OPENAI_BASE_URL"], api_key="x"))
judge = LLMJudge(rubric="The answer names the total of the receipt.", model=model, include_input=True)
data = Dataset(name="receipts", cases=[Case(name="receipt", inputs=question)], evaluators=[judge])
read(data.evaluate_sync(lambda question: "The total is 30 euros.", progress=False))
