"""Reports and comparisons as HTML pages: single files that load nothing and, but for the report's filter, run nothing.

`report` and `compare` each render one page; `turns` and `chart` prepare what templates cannot compute, and `page` holds what both share.
"""
