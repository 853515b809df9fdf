"""What follows from results: statistics, the calibration of judges, and the comparison of two runs.

Pure: nothing here reads or writes anything. The gate, `power` and the pages all call the same functions, so that a number never depends
on who asked for it. `stats` knows cases and values only; `calibration` and `comparison` know reports.
"""
