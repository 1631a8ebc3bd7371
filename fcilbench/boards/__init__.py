"""Boards: statistics over rows and their renderers. Never imports torch; scipy and rich only where they are used."""
