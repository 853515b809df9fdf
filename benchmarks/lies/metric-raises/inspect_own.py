from inspect_ai import Task
from inspect_ai.scorer import Score, accuracy, match, scorer
from inspect_bank import bank, data, read


@scorer(metrics=[accuracy()])
def own():
    async def score(state, target):
        raise RuntimeError("the metric broke")

    return score


read(Task(dataset=data(), solver=bank(), scorer=[match(location="exact"), own()]))
