"""What every door of MLflow leads to: rows of somebody's table as case runs, and criteria that judge them one by one."""

from mlflow_adk_eval.doors.rows import CELLS, Row, row_of
from mlflow_adk_eval.doors.scoring import Scoring, scoring

__all__ = ["CELLS", "Row", "Scoring", "row_of", "scoring"]
