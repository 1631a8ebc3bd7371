"""Tunes the methods of a suite at equal budgets on validation data. Never imports torch."""
