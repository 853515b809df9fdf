from inspect_ai import Task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ModelOutput, execute_tools
from inspect_ai.scorer import match
from inspect_ai.solver import solver
from inspect_ai.tool import ToolError, tool
from inspect_bank import read


@tool
def refund():
    async def execute(order: int) -> str:
        """Refund an order.

        Args:
            order: its number
        """
        raise ToolError("the order is locked")

    return execute


@solver
def bank():
    async def solve(state, generate):
        state.messages.append(ModelOutput.for_tool_call("bank", "refund", {"order": 7}).message)
        messages, _ = await execute_tools(state.messages, [refund()])
        state.messages.extend(messages)
        state.output = ModelOutput.from_content("bank", "Order 7 is refunded.")
        return state

    return solve


data = MemoryDataset([Sample(id="o7", input="Refund order 7, please.", target="Order 7 is refunded.")])
read(Task(dataset=data, solver=bank(), scorer=match(location="exact")))
