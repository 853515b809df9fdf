"""Statistics of what was measured on a sample of cases: intervals, paired tests, and how many cases they need."""
