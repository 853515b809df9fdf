import base64
import os

from image import PNG
from inspect_ai import Task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageUser, ContentImage, ContentText, ModelOutput, get_model
from inspect_ai.scorer import model_graded_qa
from inspect_ai.solver import solver
from inspect_bank import read


@solver
def bank():
    async def solve(state, generate):
        state.output = ModelOutput.from_content("bank", "The total is 30 euros.")
        return state

    return solve


picture = ContentImage(image="data:image/png;base64," + base64.b64encode(PNG).decode())
question = ChatMessageUser(content=[picture, ContentText(text="What is the total of this receipt?")])
data = MemoryDataset([Sample(id="receipt", input=[question], target="The answer names the total of the receipt.")])
judge = get_model("openai-api/judge/judge", base_url=os.environ["OPENAI_BASE_URL"], api_key="x", max_retries=2)
read(Task(dataset=data, solver=bank(), scorer=model_graded_qa(model=judge)))
