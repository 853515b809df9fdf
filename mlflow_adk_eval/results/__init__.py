"""What an evaluation found: the report, its tables, votes and repeated runs."""
