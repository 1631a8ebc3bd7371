"""Built-in stressors."""
