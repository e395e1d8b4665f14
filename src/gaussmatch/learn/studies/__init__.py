"""Experiments: what is trained and measured together, and the report that shows it."""
