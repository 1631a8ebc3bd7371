"""Built-in plugins, one a file; they register by entry point exactly as third-party plugins do."""
