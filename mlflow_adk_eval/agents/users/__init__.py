"""Who speaks with an agent: the turns of a case as they are written, the user's own code, or a model that plays a user."""

from mlflow_adk_eval.agents.conversation import WrittenUser

__all__ = ["WrittenUser"]
