"""Who is measured where a model judges. Each module offers `imports`, `load` and `judge`, which returns the scores as `contenders` says."""
