"""Rows: what is left of a cell. Schema, append-only store, provenance, merge. Never imports torch."""
