"""Built-in aggregators."""
