"""Where MLflow evaluates: criteria as metrics, scorers and an evaluator, agents as models, eval sets as datasets."""
