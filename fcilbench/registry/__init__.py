"""Finds plugins by entry point, without importing them; describes and resolves them in a child process."""
