"""Built-in plugins, one a file, registered by entry points exactly as third parties register theirs."""
