"""What MLflow finds by entry points. ``import mlflow`` loads it, so nothing here imports more than it must."""
