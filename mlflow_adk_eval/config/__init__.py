"""The eval config: the criteria with their thresholds and settings, and the inputs of an evaluation."""
