"""Eval sets as datasets of MLflow: ``mlflow.data.from_adk_evalset``. Loaded by every ``import mlflow``, so it imports next to nothing."""
# Without `from __future__ import annotations`: MLflow wants the class itself as the constructor's return annotation, not its name.

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mlflow.data.dataset import Dataset
from mlflow.data.dataset_source import DatasetSource
from mlflow.data.evaluation_dataset import EvaluationDataset
from mlflow.data.pyfunc_dataset_mixin import PyFuncConvertibleDatasetMixin, PyFuncInputsOutputs

if TYPE_CHECKING:
    from pandas import DataFrame

    from mlflow_adk_eval.evalset.models import EvalSet


class EvalSetSource(DatasetSource):  # type: ignore[misc]  # mypy sees nothing of MLflow
    """Where an eval set is: what the user named, or an artifact of a run; nowhere, if it was never in a file."""

    def __init__(self, uri: str = "", eval_set_id: str = "", content: dict[str, Any] | None = None) -> None:
        """Name the place.

        Args:
            uri: a path, a selection ``path:eval_1,eval_2``, a folder, or ``runs:/<run>/<artifact>``.
            eval_set_id: the id of the set.
            content: the eval set itself, where there is no place.
        """
        self.uri = uri
        self.eval_set_id = eval_set_id
        self._content = content

    @staticmethod
    def _get_source_type() -> str:
        return "adk_evalset"

    def load(self) -> dict[str, Any]:
        """Return the eval set as JSON in ADK's current format, whatever generation the file is of.

        Raises:
            UsageError: if the eval set was never in a file.
            EvalSetError: with every problem of the file.
        """
        from mlflow_adk_eval.config.eval_config import default_config  # noqa: PLC0415 - `import mlflow` must not load it
        from mlflow_adk_eval.config.inputs import load_inputs  # noqa: PLC0415
        from mlflow_adk_eval.errors import UsageError  # noqa: PLC0415
        from mlflow_adk_eval.evalset.files import dump  # noqa: PLC0415

        if self._content is not None:
            return self._content
        if not self.uri:
            kept = "its runs contain it as adk_eval/eval_set.json"
            raise UsageError(f"eval set {self.eval_set_id!r} was not a file when it was logged; {kept}")
        if not self.uri.startswith("runs:/"):
            return dump(load_inputs(self.uri, default_config())[0])
        from mlflow.artifacts import load_dict  # noqa: PLC0415 - is imported by `import mlflow` later than this module

        content: dict[str, Any] = load_dict(self.uri)
        return content

    @staticmethod
    def _can_resolve(raw_source: Any) -> bool:  # noqa: ARG004 - MLflow's interface
        return False  # a path that is the source of somebody's table stays a path

    @classmethod
    def _resolve(cls, raw_source: Any) -> Self:
        return cls(raw_source)

    def to_dict(self) -> dict[str, Any]:
        """Return what is stored."""
        return {name: value for name, value in (("eval_set_id", self.eval_set_id), ("uri", self.uri)) if value}

    @classmethod
    def from_dict(cls, source_dict: dict[Any, Any]) -> Self:
        """Return the source that was stored."""
        return cls(source_dict.get("uri", ""), source_dict.get("eval_set_id", ""))


class EvalSetDataset(Dataset, PyFuncConvertibleDatasetMixin):  # type: ignore[misc]
    """An eval set as a dataset, known by our own digest, since MLflow's does not see what stands inside of cells."""

    def __init__(self, eval_set: "EvalSet", source: EvalSetSource, name: str | None = None, digest: str | None = None) -> None:
        """Wrap an eval set.

        Args:
            eval_set: the cases.
            source: where they are.
            name: what MLflow shows; ``None``: the id of the set.
            digest: by what MLflow tells the set from others of its name; ``None``: as much of ours as MLflow has room for.
        """
        from mlflow_adk_eval.tracking.bundle import dataset_of  # noqa: PLC0415 - `import mlflow` must not load it

        self.eval_set = eval_set
        self._known_as = dataset_of(eval_set)
        self._place = source
        super().__init__(source, name or self._known_as.name, digest)

    def _compute_digest(self) -> str:
        return str(self._known_as.digest)

    @property
    def named(self) -> str | None:
        """What the user named: a path, a selection or a folder; ``None`` if it was an object."""
        return self.source.uri or None

    @property
    def source(self) -> EvalSetSource:
        """Where the eval set is."""
        return self._place

    @property
    def profile(self) -> dict[str, Any]:
        """The number of cases, and the whole digest."""
        profile: dict[str, Any] = json.loads(self._known_as.profile or "{}")
        return profile

    @property
    def schema(self) -> None:
        """It is no table."""
        return

    def to_dict(self) -> dict[str, str]:
        """Return what MLflow stores."""
        return {**super().to_dict(), "profile": json.dumps(self.profile)}

    def to_pyfunc(self) -> PyFuncInputsOutputs:
        """Return what is said to a model: a table with a row for each case."""
        return PyFuncInputsOutputs([self.to_frame().drop(columns="targets")])

    def to_evaluation_dataset(self, path: str | None = None, feature_names: list[str] | None = None) -> "EvalSetTable":
        """Return what MLflow hands to evaluators."""
        return EvalSetTable(self, path=path, feature_names=feature_names)

    def to_frame(self) -> "DataFrame":
        """Return a row for each case: its id, what the user says (one text, or a list of them), and the case itself as the target."""
        from pandas import DataFrame  # noqa: PLC0415 - `import mlflow` need not wait for it here

        from mlflow_adk_eval.evalset.files import dump  # noqa: PLC0415

        said = [[turn.user_text for turn in case.conversation or ()] for case in self.eval_set.eval_cases]
        inputs = [texts[0] if len(texts) == 1 else texts for texts in said]
        targets = [dump(case) for case in self.eval_set.eval_cases]
        return DataFrame({"eval_id": list(self.eval_set.eval_ids), "inputs": inputs, "targets": targets})


class EvalSetTable(EvaluationDataset):  # type: ignore[misc]
    """An eval set as evaluators get it: as a table, and as itself."""

    def __init__(self, dataset: EvalSetDataset, *, path: str | None, feature_names: list[str] | None) -> None:
        """Show the dataset as a table."""
        super().__init__(dataset.to_frame(), targets="targets", path=path, feature_names=feature_names, digest=dataset.digest)
        self.dataset = dataset


def from_adk_evalset(path: "str | Path | EvalSet", name: str | None = None, digest: str | None = None) -> EvalSetDataset:
    """Return an eval set as a dataset of MLflow, for ``mlflow.log_input``, ``mlflow.models.evaluate`` and ``adk_eval.evaluate``.

    Args:
        path: a file of any generation, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files, or an `EvalSet`.
        name: what MLflow shows; ``None``: the id of the set.
        digest: by what MLflow tells the set from others of its name; ``None``: our own.

    Raises:
        EvalSetError: with every problem of the file.
        UsageError: if it holds nothing of the kind.
    """
    from mlflow_adk_eval.config.eval_config import default_config  # noqa: PLC0415 - `import mlflow` must not load it
    from mlflow_adk_eval.config.inputs import load_inputs  # noqa: PLC0415
    from mlflow_adk_eval.evalset.files import dump  # noqa: PLC0415

    eval_set, _ = load_inputs(path, default_config())  # a config beside the file is not looked at
    if isinstance(path, str | Path):
        source = EvalSetSource(str(path), eval_set.eval_set_id)
    else:
        source = EvalSetSource(eval_set_id=eval_set.eval_set_id, content=dump(eval_set))
    return EvalSetDataset(eval_set, source, name, digest)
