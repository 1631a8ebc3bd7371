"""Built-in selectors, one file each."""
