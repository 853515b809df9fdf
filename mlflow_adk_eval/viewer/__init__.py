"""The viewer: evaluations of an MLflow store as pages on this machine, read-only unless people label.

`store` reads runs as `gate` and `compare` do. `pages` prepares each page of what it read, for the templates, which are made of the same components
as the HTML report. `app` says which address shows what, and lets in nothing but this machine's own browser. `server` serves it.
"""
