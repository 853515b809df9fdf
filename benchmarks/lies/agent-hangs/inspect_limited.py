import asyncio

from inspect_ai import Task
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import match
from inspect_ai.solver import solver
from inspect_bank import data, read
from plain import answer


@solver
def bank():
    async def solve(state, generate):
        if "order 8" in state.input_text:
            await asyncio.sleep(3600)
        state.output = ModelOutput.from_content("bank", answer(state.input_text)[0])
        return state

    return solve


read(Task(dataset=data(), solver=bank(), scorer=match(location="exact"), time_limit=6))
