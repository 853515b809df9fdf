"""Reports and comparisons as HTML pages."""
