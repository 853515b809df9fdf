"""Statistics, calibration and comparison of what was evaluated. Pure: it reads nothing and writes nothing."""
