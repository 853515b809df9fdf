import os

from inspect_ai import Task
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import model_graded_qa
from inspect_bank import bank, data, read

cached = GenerateConfig(cache=True)
judge = get_model("openai-api/judge/judge", base_url=os.environ["OPENAI_BASE_URL"], api_key="x", max_retries=2, config=cached)
read(Task(dataset=data(), solver=bank(), scorer=model_graded_qa(model=judge)))
