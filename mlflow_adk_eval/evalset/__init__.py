"""What is evaluated: ADK's file formats as light models of our own.

`models` has the data (`EvalSet`, `EvalCase`, `Invocation` and so on), and the digest that says whether two eval sets demand the same; `files`
says once what it is that a user names, reads eval sets of every generation and writes today's; `rows` reads cases as a stream, from JSON Lines and Parquet, and `conversion` writes them in any
of these formats; `conversation` has what agents did: recordings, this package's own format, and ADK's result files. All of them parse by
`parse`, which names every problem by its JSON path.
"""
