"""Rules: each demand of a policy, applied to the evidence."""
